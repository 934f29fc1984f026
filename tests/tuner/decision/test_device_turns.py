"""The search and torch.compile side by side: turns on the device, errors, Ctrl-C."""

import threading
import time
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from fusionplan.tuner.decision import baselines as baselines_module
from fusionplan.tuner.decision import device_turns
from fusionplan.tuner.decision.baselines import Baselines
from fusionplan.tuner.decision.device_turns import Stop, side_by_side, timed_in_turn
from fusionplan.tuner.measure import measure_role
from fusionplan.tuner.measure.fair_lock import FairLock
from fusionplan.tuner.measure.measure_role import MeasureRole
from fusionplan.tuner.measure.time_limit import end_now
from fusionplan.tuner.measure.timing import Timer, stopwatch_for
from fusionplan.tuner.measure.wall import Wall
from fusionplan.tuner.progress.progress import Silent


def test_both_run_at_the_same_time_and_are_over_afterwards():
    inside, seen = threading.Barrier(2, timeout=10), []

    def one(name: str) -> None:
        inside.wait()  # neither passes before the other is here
        seen.append((name, threading.current_thread() is threading.main_thread()))

    side_by_side(lambda: one("work"), lambda: one("here"), Stop(time.monotonic))
    assert sorted(seen) == [("here", True), ("work", False)]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_what_is_raised_here_stops_the_work(error):
    stop, begun, looks = Stop(time.monotonic), threading.Event(), []
    until = time.monotonic() + 60.0

    def work() -> None:
        begun.set()
        while stop() < until:
            time.sleep(0.005)
        looks.append(until - (until - stop()))  # differences stay numbers

    def here() -> None:
        begun.wait()
        raise error

    with pytest.raises(error):
        side_by_side(work, here, stop)
    assert looks[0] > until


def test_what_the_work_raises_is_raised_here():
    def work() -> None:
        raise ValueError("of the work")

    with pytest.raises(ValueError, match="of the work"):
        side_by_side(work, lambda: None, Stop(time.monotonic))


def test_a_failure_of_the_work_ends_what_is_compiled_here():
    begun, calls = threading.Event(), []
    stop = Stop(time.monotonic)

    def compile_for_long(turn: int) -> None:
        calls.append(turn)
        begun.set()
        for _ in range(6000):
            time.sleep(0.01)

    def work() -> None:
        begun.wait()
        raise ValueError("of the work")

    given = dict.fromkeys(("default", "reduce-overhead"), compile_for_long)
    baselines = Baselines(given, Silent(), nullcontext, wall=Wall(600.0), is_over=stop.is_set)
    start = time.monotonic()
    with pytest.raises(ValueError, match="of the work"):
        side_by_side(work, baselines.warm, stop, end_now)
    assert time.monotonic() - start < 30.0
    assert calls == [0]  # the first was cut off, the second not begun
    assert set(baselines.left_out) == set(given)
    end_now()  # with nothing under way that does nothing


def test_what_inductor_times_holds_the_turns_and_nothing_stays_changed(monkeypatch):
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner
    from torch._inductor.select_algorithm import AlgorithmSelectorCache

    places = [(CachingAutotuner, "bench"), (AlgorithmSelectorCache, "benchmark_choice")]
    before = [vars(owner)[name] for owner, name in places]

    class Turn:
        held = 0

        def __enter__(self) -> None:
            self.held += 1

        def __exit__(self, *error: object) -> None:
            self.held -= 1

    turn, among_tunes, seen = Turn(), Turn(), []
    monkeypatch.setattr(device_turns, "current_gpu_turn", lambda: among_tunes)

    class Launcher:
        store_cubin = False

        def __getattr__(self, name: str) -> object:
            seen.append((turn.held, among_tunes.held))
            raise LookupError(name)

    class Inputs:
        def __getattr__(self, name: str) -> object:
            seen.append((turn.held, among_tunes.held))
            raise LookupError(name)

    tuner = object.__new__(CachingAutotuner)
    tuner.custom_kernel = False
    with timed_in_turn(turn):
        with pytest.raises(LookupError):
            CachingAutotuner.bench(tuner, Launcher())
        with pytest.raises(LookupError):
            AlgorithmSelectorCache.benchmark_choice(None, Inputs())
    assert seen == [(1, 1), (1, 1)]
    assert turn.held == among_tunes.held == 0
    assert [vars(owner)[name] for owner, name in places] == before


def test_others_may_have_the_turn_while_a_call_of_a_graph_tunes_a_kernel(monkeypatch, tmp_path):
    from torch._inductor.output_code import CompiledFxGraph
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    lock, among_tunes = FairLock(tmp_path / "turn"), FairLock(tmp_path / "gpu")
    monkeypatch.setattr(device_turns, "current_gpu_turn", lambda: among_tunes)
    held = {}

    def note(name: str, then=lambda: None):
        def method(self) -> None:
            then()
            held[name] = lock.is_mine and among_tunes.is_mine

        return method

    def tune_a_kernel() -> None:
        CachingAutotuner.precompile(None)
        CachingAutotuner.autotune_to_one_config(None)
        CachingAutotuner.coordinate_descent_tuning(None)

    monkeypatch.setattr(CachingAutotuner, "bench", note("bench"))
    monkeypatch.setattr(CachingAutotuner, "precompile", note("precompile"))
    choosing = note("choosing", lambda: CachingAutotuner.bench(None))
    monkeypatch.setattr(CachingAutotuner, "autotune_to_one_config", choosing)
    tuning = note("coordinate descent", lambda: CachingAutotuner.bench(None))
    monkeypatch.setattr(CachingAutotuner, "coordinate_descent_tuning", tuning)
    monkeypatch.setattr(CompiledFxGraph, "__call__", note("call", tune_a_kernel))
    with timed_in_turn(lock, runs=True):
        CompiledFxGraph.__call__(None)
    assert held == {
        "precompile": False,
        "bench": True,
        "choosing": False,
        "coordinate descent": False,
        "call": True,
    }
    assert [lock.is_mine, among_tunes.is_mine] == [False, False]


def test_baselines_are_called_in_the_turn_of_all_that_share_the_gpu(monkeypatch, tmp_path):
    own, among_tunes = FairLock(tmp_path / "turn"), FairLock(tmp_path / "gpu")
    monkeypatch.setattr(baselines_module, "current_gpu_turn", lambda: among_tunes)
    seen = {name: [] for name in ("eager", "default")}

    def call(name: str, turn: int) -> None:
        seen[name].append((turn, own.is_mine, among_tunes.is_mine))

    given = {name: partial(call, name) for name in seen}
    Baselines(given, Silent(), nullcontext, turn=own).warm()
    assert seen["eager"] == [(0, True, True), (1, True, True)]
    assert seen["default"] == [(0, False, False), (1, True, True)], "the first call compiles"
    assert not own.is_mine
    assert not among_tunes.is_mine


def test_a_measuring_process_answers_in_the_turn_of_all_that_share_the_gpu(monkeypatch, tmp_path):
    among_tunes, seen = FairLock(tmp_path / "gpu"), []
    monkeypatch.setattr(measure_role, "current_gpu_turn", lambda: among_tunes)

    def lost(device: torch.device) -> str:
        seen.append(among_tunes.is_mine)
        return str(device)

    monkeypatch.setattr(measure_role, "why_lost", lost)
    cpu = torch.device("cpu")
    role = MeasureRole(cpu, Timer(stopwatch_for(cpu)), memory_bytes=1 << 30)
    assert role.handle({"do": "probe"}) == {"lost": "cpu"}
    assert seen == [True]
    assert not among_tunes.is_mine
