"""What makes a win: the interval and the margin, a cache that is flushed, an order that turns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from fusionplan.planner import versions
from fusionplan.planner.costs.registers import most
from fusionplan.tuner.measure import timing as measure
from fusionplan.tuner.measure.timing import FLUSH_BYTES, CudaStopwatch, Interleaved, Timer, ratio


def test_a_win_needs_the_interval_and_the_margin() -> None:
    doubtful = ratio([0.9] * 6 + [1.1] * 5)
    assert doubtful.median < 1 - measure.MARGIN
    assert doubtful.high > 1
    assert not doubtful.is_win
    assert not ratio([0.995] * 40).is_win
    assert ratio([0.98] * 40).is_win


def test_the_interval_is_that_of_the_sign_test() -> None:
    found = ratio([i / 100 for i in range(1, 101)])
    assert (found.low, found.high) == (0.41, 0.6)


def test_of_equals_the_first_is_best() -> None:
    laps = {"first": [1.002] * 9, "second": [1.0] * 9, "third": [1.1] * 9}
    assert Interleaved(laps).best() == "first"


class Device:
    """CUDA as the stopwatch uses it; says in `told` what happened, in order."""

    def __init__(self, told: list[str]) -> None:
        self.told, self.cuda, self.int32, self.bytes = told, self, torch.int32, 0

    def empty(self, elements: int, **_: Any) -> Device:
        self.bytes = 4 * elements
        return self

    def zero_(self) -> None:
        self.told.append("flush")

    def device(self, _: Any) -> Any:
        return torch.no_grad()

    def Event(self, **_: Any) -> Any:
        device = self

        class Event:
            def record(self) -> None:
                device.told.append("event")

            def elapsed_time(self, _: Event) -> float:
                return 2.0

        return Event()

    def synchronize(self) -> None:
        self.told.append("synchronize")


def stopwatch(told: list[str], l2_bytes: int = 0) -> tuple[CudaStopwatch, Device]:
    device = Device(told)
    found = object.__new__(CudaStopwatch)
    found._torch, found._device = device, "cuda:0"
    size = CudaStopwatch.flushed(l2_bytes)
    found._buffer = device.empty(size // 4)
    return found, device


def test_the_cache_is_flushed_before_each_call() -> None:
    told: list[str] = []
    watch, _ = stopwatch(told)
    calls: list[Callable[[], object]] = [lambda: told.append("a"), lambda: told.append("b")]
    assert watch.laps(calls) == [0.002, 0.002]
    one = ["flush", "event", "{}", "event"]
    assert told == [t.format(c) for c in "ab" for t in one] + ["synchronize"]


def test_more_is_flushed_than_the_cache_holds() -> None:
    assert CudaStopwatch.flushed(0) == FLUSH_BYTES
    assert CudaStopwatch.flushed(FLUSH_BYTES) == 2 * FLUSH_BYTES


def test_no_candidate_always_follows_the_same_one() -> None:
    order: list[str] = []

    class Watch:
        def laps(self, calls: Any) -> list[float]:
            return [call() for call in calls]

    def call(name: str) -> Callable[[], float]:
        return lambda: order.append(name) or 1.0  # type: ignore[func-returns-value]

    names = "abc"
    Timer(Watch(), least=6, most=6).interleaved({name: call(name) for name in names})
    rounds = ["".join(order[i : i + 3]) for i in range(len(order) - 18, len(order), 3)]
    assert {round_[0] for round_ in rounds} == set(names)


def test_what_code_and_speed_depend_on_is_in_the_key() -> None:
    found = versions.versions()
    assert found["codegen"] == versions.CODEGEN
    assert found["torch"] == torch.__version__
    assert found.keys() >= {"torch", "triton", "cuda", "codegen"}


def test_all_registers_of_an_sm_are_those_of_its_largest_program() -> None:
    assert most(1) == most(8) == 255
    assert (most(16), most(32)) == (128, 64)
