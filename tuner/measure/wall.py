"""The time budget of a whole tune, on the wall clock. Every step takes from it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

END_SHARE, MOST_END_SHARE = 0.15, 0.4
"""Of all seconds, at least and at most, kept for the comparison of whole models at the end."""

BASELINES_SHARE = 0.6
"""Of what is left before the end, the most that compiling the baselines may take where a search
comes after it."""

CHECK_SHARE = 0.25
"""Of a graph's time, kept at least to check its best plans and to time them by themselves. A plan
that is not checked is not compared, which costs more than what a few more trials would find."""

MOST_CHECK_SHARE = 0.4
"""Of a graph's time, the most that is kept for a check which is only expected to take so long."""

PLAN_SHARE = 0.6
"""Of a graph's time, the most that looking for its covers may take. Then those of its sections are
taken that have come."""

OVERRUN = 0.06
"""Of all seconds, what the end of a tune may take beyond them. Then it is cut off, and the best
plan is kept as it is."""

LEAST_PROMISED = 30.0
"""Seconds of a tune from which that holds: in fewer, one plan is checked and compared anyway."""

CONTEST_SHARE, LEAST_CONTEST_SHARE = 0.06, 0.03
"""Of all seconds, what is left to the contest where plans are still checked, and where none was
found right so far. The overrun comes to it."""

SIZES_SHARE, LEAST_SIZES_SHARE = 0.4, 0.1
"""Of the time of a search, for other sizes where sizes vary; and of all seconds, what measuring
there has at least, even where all else has left it none: a plan without it holds for few sizes."""

LEAST_SHARE = 0.05
"""Of all seconds, what a search has at least, even where the baselines have left it none: its first
kernels are compiled by then."""


@dataclass(slots=True)
class Wall:
    """The remaining time of a tune. Whoever needs some asks what is left then, so that what one
    takes is missing for those who come later, and what it leaves is theirs."""

    seconds: float
    """Of the whole tune, from now on."""
    clock: Callable[[], float] = time.monotonic
    kept_s: float = field(init=False)
    """Seconds kept for the end."""
    check_s: float = 0.0
    """The longest that checking the best plans of a graph has taken so far."""
    expected_check_s: float = 0.0
    """What checking the best plans of all graphs is expected to take."""
    _until: float = field(init=False)

    def __post_init__(self) -> None:
        self._until = self.clock() + self.seconds
        self.kept_s = END_SHARE * self.seconds

    def keep_for_the_end(self, seconds: float) -> None:
        """The end is known to take so long; more than it has been given is kept, to a limit."""
        self.kept_s = min(MOST_END_SHARE * self.seconds, max(self.kept_s, seconds))

    @property
    def left_s(self) -> float:
        return max(0.0, self._until - self.clock())

    @property
    def last_s(self) -> float:
        """The seconds that are left until the tune is cut off."""
        if self.seconds < LEAST_PROMISED:
            return float("inf")
        return max(0.0, self._until + OVERRUN * self.seconds - self.clock())

    def check_left_s(self, is_needed: bool) -> float:
        """The seconds that are left for checking a plan. is_needed: no other one was found
        right."""
        if is_needed and self.seconds < LEAST_PROMISED:
            return float("inf")
        share = LEAST_CONTEST_SHARE if is_needed else CONTEST_SHARE
        return max(0.0, self.left_s - share * self.seconds)

    @property
    def before_end_s(self) -> float:
        """The seconds that are left, less those that are kept for the end."""
        return max(0.0, self.left_s - self.kept_s)

    def baselines_until(self, beside: bool = False) -> float:
        """When compiling the baselines, which begins now, has to be over. beside: the only search
        of the tune runs at the same time; what is left then is kept for its check."""
        share = 1.0 - CHECK_SHARE if beside else BASELINES_SHARE
        return self.clock() + share * self.before_end_s

    def planned_until(self, share: float) -> float:
        """The time at which the search for covers of a graph stops. share: the graph's part of the
        time that is left."""
        return self.clock() + PLAN_SHARE * share * self.before_end_s

    @property
    def is_late(self) -> bool:
        """Whether half of the time kept for the end is spent. Unfinished work of earlier stages is
        then given up."""
        return self.left_s <= self.kept_s / 2

    def search_until(self, share: float) -> float:
        """When a search that begins now ends, of a graph that is given this part of what is left:
        its plans are checked in that time, too."""
        own_s = share * self.before_end_s
        expected_s = min(share * self.expected_check_s, MOST_CHECK_SHARE * own_s)
        check_s = max(CHECK_SHARE * own_s, self.check_s, expected_s)
        search_s = own_s - check_s
        return self.clock() + max(search_s, LEAST_SHARE * self.seconds)
