"""Scales of plots: from values to places, with round ticks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tick:
    at: float
    label: str


_ROUND: tuple[tuple[float, ...], ...] = (
    tuple(n / 20 for n in range(20, 200)),
    tuple(n / 10 for n in range(10, 100)),
    tuple(n / 4 for n in range(4, 40)),
    (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0),
    (1.0, 1.5, 2.0, 3.0, 5.0, 7.0),
    (1.0, 2.0, 5.0),
    (1.0,),
)
"""Leading digits of ticks, the densest first."""


@dataclass(frozen=True, slots=True)
class LogScale:
    """Positive values from low to high, at places from start to end; what lies outside is drawn at
    the nearer end."""

    low: float
    high: float
    start: float
    end: float

    @staticmethod
    def of(values: Sequence[float], start: float, end: float, room: float = 1.15) -> LogScale:
        """Around the positive values, each end farther out by the factor `room`."""
        positive = [v for v in values if v > 0 and math.isfinite(v)] or [1.0]
        return LogScale(min(positive) / room, max(positive) * room, start, end)

    def at(self, value: float) -> float:
        within = min(max(value, self.low), self.high)
        share = math.log(within / self.low) / math.log(self.high / self.low)
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self, label: Callable[[float], str], most: int = 6) -> tuple[Tick, ...]:
        """At round values, as many as there is room for."""
        for steps in _ROUND:
            found = [v for v in self._candidates(steps) if self.low <= v <= self.high]
            if len(found) <= most:
                break
        found = found[:: -(-len(found) // most) or 1]
        return tuple(Tick(self.at(value), label(value)) for value in found)

    def _candidates(self, steps: Sequence[float]) -> list[float]:
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        return [step * 10.0**power for power in range(first, last + 1) for step in steps]
