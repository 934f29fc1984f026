"""The graph as a page draws it: a row for each step, and lanes of tensors beside the rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..planner.lowerings.registry import LOWERINGS, REGIONAL
from .data import GraphReport, StepReport, Stored

LANE, LANES = 11, 14
"""Pixels from lane to lane, and most lanes. A tensor for which there is none has a label alone."""


@dataclass(frozen=True, slots=True)
class Lane:
    """A tensor beside one row. part: "begin" where it is written, "end" where it is read last,
    "read" where it is read and goes on, "through" where it only passes. x, width: pixels."""

    tensor: int
    x: int
    width: float
    part: str


@dataclass(frozen=True, slots=True)
class DrawnRow:
    """A step with the lanes beside it and the tensors that it writes. label: short, for other rows
    to name it by. kind: see `kind`. share, least: of its seconds
    and the device's least, beside those of the longest step; 0 to 1."""

    step: StepReport
    label: str
    kind: str
    lanes: tuple[Lane, ...]
    writes: tuple[tuple[int, Stored], ...]
    share: float
    least: float
    measured: bool


def rows(graph: GraphReport) -> tuple[DrawnRow, ...]:
    """One for each step, in order."""
    lanes = _lanes(graph.stored)
    longest = max((step.seconds or 0.0 for step in graph.steps), default=0.0) or 1.0
    found = []
    for step in graph.steps:
        beside = [
            Lane(i, 6 + LANE * lanes[i], _width(tensor.nbytes), part)
            for i, tensor in enumerate(graph.stored)
            if i in lanes and (part := _part(tensor, step.place)) is not None
        ]
        writes = [(i, t) for i, t in enumerate(graph.stored) if t.writer == step.place]
        share = (step.seconds or 0.0) / longest
        least = min(1.0, step.least.seconds / longest)
        measured = step.measured_s is not None
        about = label(step), kind(step.lowering)
        found.append(DrawnRow(step, *about, tuple(beside), tuple(writes), share, least, measured))
    return tuple(found)


def lanes_width(found: Sequence[DrawnRow]) -> int:
    """Pixels that the lanes of all rows need."""
    return max((lane.x for row in found for lane in row.lanes), default=0) + LANE


def _lanes(stored: Sequence[Stored]) -> dict[int, int]:
    """The lane of each tensor that another step reads: the lowest that is free."""
    until: list[int] = []
    found: dict[int, int] = {}
    for number, tensor in sorted(enumerate(stored), key=lambda each: each[1].writer):
        if not tensor.readers:
            continue
        lane = next((i for i, end in enumerate(until) if end < tensor.writer), len(until))
        if lane == len(until):
            if lane == LANES:
                continue
            until.append(-1)
        until[lane] = max(tensor.readers)
        found[number] = lane
    return found


def _part(tensor: Stored, place: int) -> str | None:
    last = max(tensor.readers)
    if not tensor.writer <= place <= last:
        return None
    if place == tensor.writer:
        return "begin"
    if place == last:
        return "end"
    return "read" if place in tensor.readers else "through"


def _width(nbytes: int) -> float:
    """Pixels: 1.5 up to 4 KiB, 5 from 1 GiB."""
    return round(min(5.0, max(1.5, 1.5 + 3.5 * (math.log2(max(nbytes, 1)) - 12) / 18)), 1)


def kind(lowering: str) -> str:
    """The kind of a lowering, for its colour: "generated", "region", "compiled" or "call"."""
    known = LOWERINGS[lowering]
    if known.generated:
        return "generated"
    if known in REGIONAL:
        return "region"
    return "compiled" if known.slow else "call"


def label(step: StepReport) -> str:
    return f"group {step.group}" if step.group is not None else f"ATen {step.name}"
