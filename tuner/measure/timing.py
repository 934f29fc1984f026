"""Timing: cold cache, adaptive, interleaved; and which times are equal, and what counts as a win.

Every run is preceded by a flush of the L2 cache: a buffer larger than the cache is zeroed, and the
run is timed between two events of its own, exactly as `triton.testing.do_bench` does it. The launch
is prepared while the buffer is zeroed.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from ..trial.outcome import Timed
from .turns import turn

TimedCall = Callable[[], object]

FLUSH_BYTES = 256 * 2**20
"""What do_bench zeroes; more than any L2 cache so far."""

MARGIN = 0.01
"""A difference below this is no win, however sure it is."""
TIE = 0.003
"""Candidates nearer than this are equal, and the one named first is taken."""

SPARED = 1.1
"""Times the seconds of the fastest plan that one may take which spares a large intermediate."""

WARM_UP = 3
"""Rounds before the first that counts: a call may capture itself as a graph in the second."""

SLOW = 3.0
"""Times the incumbent's, after the first runs, at which a candidate is given up."""


class Stopwatch(Protocol):
    """Runs the calls in order, each with a cold cache, and gives the seconds of each."""

    def laps(self, calls: Sequence[TimedCall]) -> list[float]: ...

    def burst(self, calls: Sequence[TimedCall]) -> float:
        """The seconds of all calls together, one after the other, with whatever cache there is and
        the host's time."""
        ...


class CudaStopwatch:
    """CUDA events around each call, on the current stream."""

    _gpu = ""

    def __init__(self, device: Any, l2_bytes: int = 0) -> None:
        import torch

        self._torch, self._device = torch, device
        self._gpu = str(torch.cuda.get_device_properties(device).uuid)
        elements = self.flushed(l2_bytes) // 4
        self._buffer = torch.empty(elements, dtype=torch.int32, device=device)

    @staticmethod
    def flushed(l2_bytes: int) -> int:
        """Bytes that are written to empty a cache of so many."""
        return max(FLUSH_BYTES, 2 * l2_bytes)

    def laps(self, calls: Sequence[TimedCall]) -> list[float]:
        cuda = self._torch.cuda
        with turn(self._gpu), cuda.device(self._device):
            events = [
                (cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)) for _ in calls
            ]
            for call, (start, end) in zip(calls, events, strict=True):
                self._buffer.zero_()
                start.record()
                call()
                end.record()
            cuda.synchronize()
        return [start.elapsed_time(end) / 1e3 for start, end in events]

    def burst(self, calls: Sequence[TimedCall]) -> float:
        cuda = self._torch.cuda
        with turn(self._gpu), cuda.device(self._device):
            start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
            cuda.synchronize()
            start.record()
            for call in calls:
                call()
            end.record()
            cuda.synchronize()
        seconds: float = start.elapsed_time(end) / 1e3
        return seconds


class WallStopwatch:
    """Seconds on the wall, for what runs on the CPU."""

    def laps(self, calls: Sequence[TimedCall]) -> list[float]:
        found = []
        for call in calls:
            start = time.perf_counter()
            call()
            found.append(time.perf_counter() - start)
        return found

    def burst(self, calls: Sequence[TimedCall]) -> float:
        return sum(self.laps(calls))


def stopwatch_for(device: Any, l2_bytes: int = 0) -> Stopwatch:
    """Events on a GPU, the wall clock elsewhere."""
    return CudaStopwatch(device, l2_bytes) if device.type == "cuda" else WallStopwatch()


@dataclass(frozen=True, slots=True)
class Timer:
    """least, most: bounds on the runs of one candidate. overhead_s: what a run takes besides the
    call, chiefly the flush; it counts towards the budget."""

    stopwatch: Stopwatch
    least: int = 10
    most: int = 1000
    overhead_s: float = 80e-6

    def measure(
        self, call: TimedCall, *, budget_s: float = 0.04, incumbent_s: float | None = None
    ) -> Timed:
        """Median and spread of as many runs as the budget allows."""
        self.stopwatch.laps([call])  # the first run loads, allocates, compiles what is left
        first = self.stopwatch.laps([call] * 3)
        quick = min(first)
        if incumbent_s is not None and quick > SLOW * incumbent_s:
            return timed(first, stopped=True)
        return timed(self.stopwatch.laps([call] * self._runs(quick, budget_s)))

    def interleaved(self, calls: Mapping[str, TimedCall], *, budget_s: float = 0.5) -> Interleaved:
        """All candidates in turn, round after round, the order rotated so that none always
        follows the same one."""
        names = list(calls)
        laps: dict[str, list[float]] = {name: [] for name in names}
        if not names:
            return Interleaved(laps)
        for _ in range(WARM_UP):
            self.stopwatch.laps(list(calls.values()))
        once = sum(self.stopwatch.laps(list(calls.values())))
        rounds = self._runs(once, budget_s, runs_each=len(names))
        while rounds > 0:
            batch = min(rounds, 20)
            order = [names[(i + r) % len(names)] for r in range(batch) for i in range(len(names))]
            for name, lap in zip(
                order, self.stopwatch.laps([calls[name] for name in order]), strict=True
            ):
                laps[name].append(lap)
            rounds -= batch
        return Interleaved(laps)

    def _runs(self, once_s: float, budget_s: float, runs_each: int = 1) -> int:
        wanted = budget_s / max(1e-9, once_s + runs_each * self.overhead_s)
        return max(self.least, min(self.most, int(wanted)))


def timed(laps: Sequence[float], *, stopped: bool = False) -> Timed:
    """Median and interquartile range."""
    if len(laps) < 2:
        return Timed(laps[0], 0.0, len(laps), stopped)
    low, middle, high = statistics.quantiles(laps, n=4, method="inclusive")
    return Timed(middle, high - low, len(laps), stopped)


@dataclass(frozen=True, slots=True)
class Ratio:
    """median of the per-round ratios a/b, and the ends of its 95% confidence interval."""

    median: float
    low: float
    high: float

    @property
    def is_win(self) -> bool:
        """Whether a is faster than b: above noise, and by more than the margin."""
        return self.high < 1.0 and self.median < 1.0 - MARGIN


@dataclass(frozen=True, slots=True)
class Interleaved:
    """Seconds by candidate; the i-th of each come from the same round."""

    laps: Mapping[str, Sequence[float]] = field(default_factory=dict)

    def timing(self, name: str) -> Timed:
        return timed(self.laps[name])

    def ratio(self, a: str, b: str) -> Ratio:
        """The times of a divided by those of b, round by round."""
        return ratio([x / y for x, y in zip(self.laps[a], self.laps[b], strict=True)])

    def wins(self, a: str, b: str) -> bool:
        """Whether a is faster than b above noise and above 1%."""
        return self.ratio(a, b).is_win

    def best(self) -> str:
        """The candidate named first among those whose times are equal to the least."""
        return first_of_equals([(name, self.timing(name).seconds) for name in self.laps])


T = TypeVar("T")


def first_of_equals(times: Sequence[tuple[T, float]]) -> T:
    """The first of those whose times are equal to the least (`TIE`). There is at least one."""
    least = min(time for _, time in times)
    return next(one for one, time in times if is_equal(time, least))


def is_equal(time: float, least: float) -> bool:
    """Whether a time counts as no longer than the least."""
    return time <= least * (1 + TIE)


def ratio(ratios: Sequence[float], z: float = 1.96) -> Ratio:
    """The median with the interval between the order statistics that the sign test leaves: it
    asks nothing of the distribution, and runs on a GPU have a long tail. z: of the interval, in
    standard deviations; 1.96 is 95%."""
    ordered = sorted(ratios)
    n = len(ordered)
    # P(the true median lies below the k-th of n) is binomial; the normal approximation is within
    # one rank from n = 6 on. Below that no interval is sure: take the whole range.
    k = max(0, int((n - z * math.sqrt(n)) / 2)) if n >= 6 else 0
    return Ratio(statistics.median(ordered), ordered[max(0, k)], ordered[min(n - 1, n - 1 - k)])


def conditions(index: int) -> dict[str, int]:
    """Clocks in MHz and temperature in degrees of a GPU by its CUDA index; empty where they
    cannot be read (no driver library, no permission)."""
    try:
        import pynvml
        import torch

        pynvml.nvmlInit()
    except ImportError:
        return {}
    except pynvml.NVMLError:
        return {}
    try:
        uuid = str(torch.cuda.get_device_properties(index).uuid)
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        return {
            "sm_mhz": pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
            "memory_mhz": pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM),
            "temperature_c": pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
        }
    except pynvml.NVMLError:
        return {}
    finally:
        pynvml.nvmlShutdown()
