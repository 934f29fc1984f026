"""The contest: ways to run the same thing, timed in turn, with inputs that change, under one rule.

Every round times each contestant twice: *cold*, one call by itself after the second-level cache of
the device was overwritten, and the caches of the host, and *busy*, a few calls one after the other
with the host's time included. A user's program may be bound by either, and its host may be slower
than in a tune, as where other processes share the processor: of short calls it is also asked how
long a busy one takes where the host takes half as long again (`SLOWER_HOST`). A contestant is
judged by the one in which it falls further behind the fastest. The least behind wins; of those that
are equal (`timing.is_equal`), the one named first. Rounds go on until intervals tell the winner
from all others or show that they are equal, or the budget ends; who is clearly behind drops out.
The winner is not always what is kept: `decision/decide.py` names the contestants in their order,
gives the user's own code 1% in advance, and may keep a plan that spares memory.

What the host finds in its caches depends on who is timed before: without the overwriting, those
that are left after others have dropped out would be timed in another way than before, and than a
new process times them.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from ...planner.plan import Contest, Contestant
from ..capture.rotating_inputs import RotatingInputs
from .timing import Stopwatch, first_of_equals, is_equal, ratio

TurnCall = Callable[[int], object]
"""Runs on the inputs of a turn."""

BUSY_S, MOST_BUSY = 2e-3, 16
"""A busy lap takes at least so many seconds, but has at most so many calls."""

SLOWER_HOST = 1.5
"""Times its time in the tune that the host may take for a call. From one process to the next it
took up to 1.8 times as long on an H200's host with other processes."""

SHORT_S = 2e-3
"""Seconds of a call up to which that is asked. With a longer one the host is done long before the
device, or waits for room in the queue of launches."""

SURE = 3.0
"""Half of an interval in standard deviations, for 99.7%. It is looked at after every round: with
95% one of so many looks would soon mislead."""

CLEARLY = 0.02
"""A contestant drops out if it is slower than the leader's interval by more than this part."""


@dataclass(frozen=True, slots=True)
class Rules:
    """least, most: the number of rounds. budget_s: seconds for all runs; the least number of rounds
    is made in any case. width: two contestants can be called equal if half of the interval is no
    wider than this. warm_up: calls of each contestant that do not count, before the others; None:
    one with every set of inputs, and three more."""

    least: int = 10
    most: int = 400
    budget_s: float = 10.0
    width: float = 0.005
    warm_up: int | None = None


@dataclass(frozen=True, slots=True)
class Behind:
    """A contestant's time beside the fastest's: the median of the ratios by round, and the ends of
    its interval."""

    median: float
    low: float
    high: float


@dataclass(slots=True)
class Laps:
    """Seconds of each round, by contestant, cold and busy; and of the host for a busy call."""

    cold: dict[str, list[float]]
    busy: dict[str, list[float]]
    host: dict[str, list[float]]

    @staticmethod
    def of(names: Sequence[str]) -> Laps:
        return Laps({n: [] for n in names}, {n: [] for n in names}, {n: [] for n in names})

    def without(self, names: Collection[str]) -> Laps:
        """The laps of all other contestants."""
        kept = [name for name in self.cold if name not in names]
        return Laps(*({n: each[n] for n in kept} for each in (self.cold, self.busy, self.host)))

    def behind(self, name: str) -> Behind:
        """The distance from the fastest: cold, busy, or busy with a slower host, whichever is the
        largest."""
        each = [_behind(name, laps) for laps in (self.cold, self.busy, self._slower())]
        return max(each, key=lambda behind: behind.median)

    def _slower(self) -> dict[str, list[float]]:
        """The busy seconds where the host takes longer."""
        return {name: list(map(_slower, laps, self.host[name])) for name, laps in self.busy.items()}


def _slower(busy_s: float, host_s: float) -> float:
    return max(busy_s, SLOWER_HOST * host_s) if busy_s <= SHORT_S else busy_s


def _behind(name: str, laps: Mapping[str, Sequence[float]]) -> Behind:
    best = min(laps, key=lambda n: statistics.median(laps[n]))
    if name == best:
        return Behind(1.0, 1.0, 1.0)
    found = ratio([a / b for a, b in zip(laps[name], laps[best], strict=False)], SURE)
    return Behind(max(1.0, found.median), found.low, found.high)


@dataclass(slots=True)
class _Failing:
    """The calls of a contest, without those that raised an error. fails: see `Ring.contest`."""

    calls: dict[str, TurnCall]
    fails: Callable[[str, Exception], None] | None

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Around a call of this contestant: if it raises an error, it is taken out. The error is
        raised if no other contestant is left."""
        try:
            yield
        except Exception as error:
            if self.fails is None or len(self.calls) == 1:
                raise
            self.fails(name, error)
            del self.calls[name]


@dataclass(slots=True)
class Ring:
    """The device and the rules by which contestants meet. stopwatch: of the device. rules: see
    `Rules`. cool: overwrites the caches of the host."""

    stopwatch: Stopwatch
    turns: RotatingInputs
    rules: Rules = field(default_factory=Rules)
    cool: Callable[[], None] = lambda: None

    def within(self, seconds: float) -> Ring:
        """The same with runs of so many seconds at most, where that is less."""
        budget_s = min(self.rules.budget_s, seconds)
        return replace(self, rules=replace(self.rules, budget_s=budget_s))

    def contest(
        self,
        calls: Mapping[str, TurnCall],
        fails: Callable[[str, Exception], None] | None = None,
    ) -> Contest:
        """Times all of them in turn, at least one. calls: in the order of preference among equals.
        fails: called for each that raises an error, which is then left out; None: the error is
        raised."""
        failing = _Failing(dict(calls), fails)
        self._warm_up(failing)
        count = self._count(failing)
        laps = Laps.of(list(failing.calls))
        running, spent, rounds = list(failing.calls), 0.0, 0
        while not self._is_over(laps, running, rounds, spent):
            for name in (running[(i + rounds) % len(running)] for i in range(len(running))):
                with failing.of(name):
                    spent += self._lap(name, failing.calls[name], laps, rounds, count)
            laps = laps.without(laps.cold.keys() - failing.calls.keys())
            running = [name for name in running if name in failing.calls]
            rounds += 1
            running = _running(laps, running, rounds, self.rules.least)
        return self._result(laps, list(failing.calls), running)

    def _warm_up(self, failing: _Failing) -> None:
        """Calls every contestant with every set of inputs: a CUDA graph may be recorded for
        addresses that come again."""
        for name, call in list(failing.calls.items()):
            with failing.of(name):
                self.turns.watch(partial(call, 0))
        most = self.rules.warm_up
        for name, call in list(failing.calls.items()):
            with failing.of(name):
                for turn in range(len(self.turns) + 3 if most is None else most):
                    self.turns.restore(turn)
                    self.stopwatch.laps([partial(call, turn)])

    def _count(self, failing: _Failing) -> int:
        """The number of calls in a busy lap."""
        once: list[float] = []
        for name, call in list(failing.calls.items()):
            with failing.of(name):
                once += self.stopwatch.laps([partial(call, 0)])
        return max(2, min(MOST_BUSY, math.ceil(BUSY_S / max(min(once), 1e-9))))

    def _lap(self, name: str, call: TurnCall, laps: Laps, number: int, count: int) -> float:
        """Makes the cold and the busy lap of a round. Returns the seconds that they took."""
        self.turns.restore(number)
        began = time.perf_counter()
        self.cool()
        cooled = time.perf_counter() - began
        cold = self.stopwatch.laps([partial(call, number)])[0]
        turns = range(number + 1, number + 1 + count)
        for turn in turns[: len(self.turns)]:
            self.turns.restore(turn)
        host: list[float] = []
        busy = self.stopwatch.burst([_asked(call, turn, host) for turn in turns])
        laps.cold[name].append(cold)
        laps.busy[name].append(busy / count)
        laps.host[name].append(min(host))
        return cooled + cold + busy

    def _is_over(self, laps: Laps, running: Sequence[str], rounds: int, spent: float) -> bool:
        if rounds < self.rules.least:
            return False
        if rounds >= self.rules.most or spent > self.rules.budget_s:
            return True
        return self._is_decided(laps, running)

    def _is_decided(self, laps: Laps, running: Sequence[str]) -> bool:
        leader, *others = sorted(running, key=lambda n: laps.behind(n).median)
        best = laps.behind(leader)
        for name in others:
            behind = laps.behind(name)
            apart = not is_equal(behind.low, best.high)
            narrow = max(behind.high - behind.low, best.high - best.low) < 2 * self.rules.width
            if not (apart or narrow):
                return False
        return True

    def _result(self, laps: Laps, names: Sequence[str], running: Sequence[str]) -> Contest:
        behind = {name: laps.behind(name) for name in names}
        winner = first_of_equals([(n, behind[n].median) for n in names if n in running])
        return Contest(
            tuple(
                Contestant(
                    name,
                    statistics.median(laps.cold[name]),
                    statistics.median(laps.busy[name]),
                    behind[name].median,
                    behind[name].low,
                    behind[name].high,
                    len(laps.cold[name]),
                    statistics.median(laps.host[name]),
                )
                for name in names
            ),
            winner,
            len(self.turns),
            decided=self._is_decided(laps, running),
        )


def _asked(call: TurnCall, turn: int, host: list[float]) -> Callable[[], object]:
    """The call, which adds the seconds that the host took for it."""

    def run() -> object:
        began = time.perf_counter()
        result = call(turn)
        host.append(time.perf_counter() - began)
        return result

    return run


def _running(laps: Laps, running: Sequence[str], rounds: int, least: int) -> list[str]:
    """The contestants that are not clearly behind."""
    if rounds < least:
        return list(running)
    behind = {name: laps.behind(name) for name in running}
    leader = min(running, key=lambda name: behind[name].median)
    limit = behind[leader].high + CLEARLY
    return [name for name in running if name == leader or behind[name].low <= limit]
