"""The layout of the drawings of a page: lanes of tensors, plots, the roofline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..markup.scale import LogScale, Tick
from ..planner.lowerings.registry import LOWERINGS, REGIONAL
from ..terminal import count, duration
from .data import GraphReport, HistoryEntry, Roof, SearchReport, StepReport, Stored

LANE, LANES = 11, 14
"""Pixels from lane to lane, and most lanes. A tensor for which there is none has a label alone."""

# --- the steps, with the tensors beside them ---


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


# --- plots ---


@dataclass(frozen=True, slots=True)
class Point:
    x: float
    y: float
    title: str
    kind: str = ""
    place: int | None = None


@dataclass(frozen=True, slots=True)
class Plot:
    """dots, line: paths. points: drawn one by one, with a title each."""

    width: int
    height: int
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    dots: str
    line: str
    points: tuple[Point, ...]


_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 560, 210, 62, 12, 14, 34


def search_plot(search: SearchReport) -> Plot | None:
    """Trials in the order in which they ended, over their seconds; those that failed stand above
    all. None where nothing was timed."""
    timed = [(i, t.seconds) for i, t in enumerate(search.trials) if t.seconds]
    if not timed:
        return None
    scale = LogScale.of([s for _, s in timed], _HEIGHT - _BOTTOM, _TOP + 16)
    wide = (_WIDTH - _LEFT - _RIGHT) / max(1, len(search.trials))
    places = [round(_LEFT + (i + 0.5) * wide, 1) for i in range(len(search.trials))]
    dots = "".join(f"M{places[i]} {scale.at(seconds)}h0" for i, seconds in timed)
    line, best = "", math.inf
    points: list[Point] = []
    for i, trial in enumerate(search.trials):
        if trial.seconds is None:
            title = f"trial {i + 1}: {trial.outcome}: {trial.reason}"
            points.append(Point(places[i], _TOP, title, "failed"))
            continue
        title = f"trial {i + 1}: {duration(trial.seconds)}: {trial.candidate}"
        if 0 < trial.seconds < best:
            best = trial.seconds
            y = scale.at(best)
            line += f"H{places[i]}V{y}" if line else f"M{places[i]} {y}"
            points.append(Point(places[i], y, title, "best"))
        if trial.chosen:
            points.append(Point(places[i], scale.at(trial.seconds), title, "chosen"))
    line += f"H{_WIDTH - _RIGHT}"
    last = len(search.trials)
    x_ticks = tuple(
        Tick(places[i], str(i + 1)) for i in sorted({0, (last - 1) // 2, last - 1}) if last
    )
    return Plot(_WIDTH, _HEIGHT, x_ticks, scale.ticks(duration), dots, line, tuple(points))


def history_plot(runs: Sequence[HistoryEntry]) -> Plot | None:
    """Seconds of whole plans that were measured, in the order of time. None for fewer than two."""
    timed = [run for run in runs if run.measured_s and run.same_graph]
    if len(timed) < 2:
        return None
    seconds = [run.measured_s or 0.0 for run in timed]
    scale = LogScale.of(seconds, _HEIGHT - _BOTTOM, _TOP + 16)
    wide = (_WIDTH - _LEFT - _RIGHT) / len(timed)
    points = tuple(
        Point(
            round(_LEFT + (i + 0.5) * wide, 1),
            scale.at(run.measured_s or 0.0),
            f"{run.when}: {duration(run.measured_s)}",
            "timed" if run.key is None else "chosen",
        )
        for i, run in enumerate(timed)
    )
    ends = sorted({0, len(timed) - 1})
    x_ticks = tuple(Tick(points[i].x, timed[i].when[:10]) for i in ends)
    return Plot(_WIDTH, _HEIGHT, x_ticks, scale.ticks(duration), "", "", points)


# --- the roofline ---


@dataclass(frozen=True, slots=True)
class Roofline:
    """A logarithmic plot of operations a second over operations a byte, with the device's roofs.
    arithmetic: the y of the roof of arithmetic without matrix units."""

    plot: Plot
    roof: str
    arithmetic: str
    arithmetic_y: float
    tensor_y: float


def roofline(graph: GraphReport, roof: Roof) -> Roofline | None:
    """Every step that calculates, by the model's operations and bytes, at its measured seconds or
    else the model's. None where there is none."""
    found = [(step, *position) for step in graph.steps if (position := _position(step, graph))]
    if not found:
        return None
    height = 250
    most = max(roof.tensor, roof.arithmetic)
    intensities = [x for _, x, _ in found]
    x_scale = LogScale.of([*intensities, 0.1, 1000.0], _LEFT, _WIDTH - _RIGHT, 1.3)
    lowest = min([y for _, _, y in found] + [roof.bandwidth * x_scale.low * 2])
    y_scale = LogScale(lowest / 1.3, most * 1.6, height - _BOTTOM, _TOP)

    def under(top: float) -> str:
        ridge = top / roof.bandwidth
        first = max(x_scale.low, y_scale.low / roof.bandwidth)
        return (
            f"M{x_scale.at(first)} {y_scale.at(roof.bandwidth * first)}"
            f"L{x_scale.at(ridge)} {y_scale.at(top)}H{_WIDTH - _RIGHT}"
        )

    points = tuple(
        Point(
            x_scale.at(x),
            y_scale.at(y),
            f"{label(step)}: {count(y)} operations a second, {x:.3g} a byte",
            kind(step.lowering),
            step.place,
        )
        for step, x, y in found
    )
    plot = Plot(
        *(_WIDTH, height, x_scale.ticks(lambda v: f"{v:g}"), y_scale.ticks(count)), "", "", points
    )
    roofs = under(roof.tensor), under(roof.arithmetic)
    return Roofline(plot, *roofs, y_scale.at(roof.arithmetic), y_scale.at(roof.tensor))


def _position(step: StepReport, graph: GraphReport) -> tuple[float, float] | None:
    """Operations a byte, and a second."""
    cost = None if step.group is None else graph.explanation.groups[step.group].predicted
    operations = step.least.flops if cost is None else cost.flops + cost.fma + cost.sfu
    if not (operations and step.hbm_bytes and step.seconds):
        return None
    return operations / step.hbm_bytes, operations / step.seconds


def kind(lowering: str) -> str:
    """What a way to run a group is, for its colour: "generated", "region", "compiled" or "call"."""
    known = LOWERINGS[lowering]
    if known.generated:
        return "generated"
    if known in REGIONAL:
        return "region"
    return "compiled" if known.slow else "call"


def label(step: StepReport) -> str:
    return f"group {step.group}" if step.group is not None else f"ATen {step.name}"
