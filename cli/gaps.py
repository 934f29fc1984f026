"""The table of `planner explain`: the time of a plan beyond what the device needs at least."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..terminal import duration
from . import render
from .table import Table

if TYPE_CHECKING:
    from ..planner.explanation import Explanation, GroupExplanation, UngroupedNode

MOST = 12
"""Rows of the table."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Groups of one kind with their seconds, those of one, measured where they were; least_s: what
    the device needs for one. times: how many there are, such as the layers of a model."""

    label: str
    lowering: str
    seconds: float
    least_s: float
    times: int = 1

    @property
    def beyond_s(self) -> float:
        """Of all of them together."""
        return self.times * (self.seconds - self.least_s)


def gaps(explanation: Explanation) -> list[Gap]:
    """The largest first. What the model knows no time of is left out."""
    found: dict[tuple[str, str, float], Gap] = {}
    for gap in _each(explanation):
        name = gap.label.partition(":")[2], gap.lowering, gap.seconds
        known = found.get(name)
        found[name] = replace(known, times=known.times + 1) if known else gap
    return sorted(found.values(), key=lambda gap: -gap.beyond_s)


def _each(explanation: Explanation) -> Iterable[Gap]:
    for group in explanation.groups:
        seconds = group.measured.seconds or group.predicted_s
        if seconds is not None and group.least is not None:
            yield Gap(_label(group), group.lowering, seconds, group.least.seconds)
    for alone in explanation.alone:
        if alone.otherwise.aten_s is not None and alone.least is not None:
            yield Gap(_name(alone), "aten", alone.otherwise.aten_s, alone.least.seconds)


def _label(group: GroupExplanation) -> str:
    kinds = [operation.op.partition(".")[2].partition(".")[0] for operation in group.operations]
    return f"group {group.number}: {' '.join(kinds)}"


def _name(alone: UngroupedNode) -> str:
    return f"%{alone.operation.node}: {alone.operation.op}"


def least_line(explanation: Explanation) -> str | None:
    """What the device needs at least, in one line; None where nobody has counted it."""
    least = explanation.least
    if least is None:
        return None
    return (
        f"the device needs at least {duration(least.seconds)}: "
        f"products {duration(least.products_s)}, memory {duration(least.bytes_s)}, "
        f"one launch {duration(least.launch_s)}"
    )


def gaps_table(explanation: Explanation) -> Table | None:
    """The groups that take the most time beyond their least; None where there are none."""
    found = gaps(explanation)[:MOST]
    if not found:
        return None
    columns = ("group", "runs by", "times", "time", "least", "time above least, all")
    made = render.table(*columns, right=columns[2:], wide=("group",))
    for gap in found:
        times = (duration(gap.seconds), duration(gap.least_s), duration(max(0.0, gap.beyond_s)))
        made.add_row(gap.label, gap.lowering, str(gap.times), *times)
    return made
