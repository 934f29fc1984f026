"""The budgets of a tune: three efforts with names, and the limits of one graph's search.

The figures of the efforts are also in a table of docs/howto-tune.md, which no test checks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from ...planner.errors import FusionplanError

Effort = Literal["quick", "default", "thorough"]


@dataclass(frozen=True, slots=True)
class Allowance:
    """trials: most kernels tried for each graph; seconds: most time for all graphs. each: a graph
    of many groups may try so many for each of them, where that is more."""

    trials: int
    seconds: float
    each: int = 0


EFFORTS: dict[Effort, Allowance] = {
    "quick": Allowance(16, 60.0, 4),
    "default": Allowance(64, 180.0, 10),
    "thorough": Allowance(256, 900.0, 24),
}


@dataclass(frozen=True, slots=True)
class TuneLimits:
    """trials: generated kernels tried in all. seconds: of the whole tune, the baselines included
    (see `Wall`). seed: of everything random. each: see `Allowance`."""

    trials: int = EFFORTS["default"].trials
    seconds: float = EFFORTS["default"].seconds
    seed: int = 0
    each: int = 0

    def trials_of(self, groups: int) -> int:
        """Of a graph of so many different groups."""
        return max(self.trials, self.each * groups)


def allowance(effort: str, trials: int | None = None, seconds: float | None = None) -> Allowance:
    """The budget of an effort; `trials` and `seconds` take the place of its own. Raises
    FusionplanError for an effort that does not exist."""
    named = EFFORTS.get(effort)  # type: ignore[call-overload]
    if named is None:
        raise FusionplanError(f"effort {effort!r}: give one of {', '.join(get_args(Effort))}")
    return Allowance(
        named.trials if trials is None else trials,
        named.seconds if seconds is None else seconds,
        named.each if trials is None else 0,
    )


def check_limits(trials: int | None, seconds: float | None) -> None:
    """Raises FusionplanError for limits under which nothing could be tried."""
    if trials is not None and trials < 1:
        raise FusionplanError(f"trials = {trials}: give at least 1")
    if seconds is not None and not (seconds > 0 and math.isfinite(seconds)):
        raise FusionplanError(f"seconds = {seconds}: give a positive number")
