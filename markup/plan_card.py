"""Plans in a notebook: the bars of a report, and a table of the groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from . import render

MOST_GROUPS = 40
"""Rows of a table; of more groups the first."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One way to run the model. kind: "plan", "baseline", "apart" or "least"; share: of the seconds
    beside those of the slowest, from 0 to 1."""

    name: str
    kind: str
    seconds: float
    share: float


@dataclass(frozen=True, slots=True)
class GroupRow:
    number: int
    operations: str
    lowering: str
    config: str
    kernels: int
    predicted_s: float | None
    measured_s: float | None


@dataclass(frozen=True, slots=True)
class PlanCard:
    """One plan. more: groups that are not in `groups`."""

    title: str
    about: str
    verdict: str
    ways: tuple[Bar, ...]
    groups: tuple[GroupRow, ...]
    more: int = 0


def bars(ways: Sequence[tuple[str, str, float]]) -> tuple[Bar, ...]:
    """Of names, kinds and seconds, the fastest first."""
    slowest = max((seconds for _, _, seconds in ways), default=0.0) or 1.0
    ordered = sorted(ways, key=lambda way: way[2])
    return tuple(Bar(name, kind, seconds, seconds / slowest) for name, kind, seconds in ordered)


def cards_html(cards: Sequence[PlanCard], notes: Sequence[str] = ()) -> str:
    return render("plan.html", plans=cards, notes=notes)
