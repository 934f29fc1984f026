"""Modes of torch.compile, compiled by processes of their own into Inductor's caches."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from compiling import forked
from fusionplan.planner.lowerings.inductor import MODES
from fusionplan.tuner.capture.capture_model import CallArguments
from fusionplan.tuner.decision import mode_process, modes_ahead
from fusionplan.tuner.decision.baselines import CUT_OFF, Baselines
from fusionplan.tuner.decision.device_turns import timed_in_turn
from fusionplan.tuner.decision.modes_ahead import (
    BROKE,
    ModeProcesses,
    ModesAhead,
    pays,
    write_model,
)
from fusionplan.tuner.measure.fair_lock import FairLock
from fusionplan.tuner.measure.wall import Wall
from fusionplan.tuner.progress.progress import RecordedProgress
from fusionplan.tuner.trial.outcome import Crashed
from fusionplan.tuner.workers.pool import WorkerRole
from fusionplan.tuner.workers.processes import import_path
from torch import nn
from torch._inductor import config

X = torch.randn(4, 16)


def layers(count: int = 3) -> nn.Module:
    made = [each for _ in range(count) for each in (nn.Linear(16, 16), nn.GELU())]
    return nn.Sequential(*made).eval()


_FOUND = """
import json, torch
from functools import partial
from fusionplan.tuner.capture.capture_model import CallArguments, capture_model, run_step
from fusionplan.tuner.capture.traced_model import TracedGraph
from fusionplan.tuner.decision.modes_ahead import ModeProcesses
from fusionplan.tuner.workers.forks import Forks
from torch import nn
from torch._dynamo.utils import counters

if __name__ == "__main__":
    model, x = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16)), torch.randn(4, 16)
    forks = Forks()
    ahead = ModeProcesses(["default"], forks).begin(model, CallArguments((x,)))
    answer = ahead.begun["default"].result(300.0)
    assert list(forks._running), "its process is not forked"
    ahead.close()
    forks.close()
    traced = capture_model(model, (x,)).traced
    counters.clear()
    with torch.no_grad():
        given = traced.by(partial(TracedGraph.by_mode, mode="default"))(x)
        torch.testing.assert_close(given, model(x))
    found = [counters["inductor"], counters["aot_autograd"], counters["stats"]]
    print(json.dumps([answer, *map(dict, found)]))
"""

_STEP = """
import json, torch
from fusionplan.tuner.capture.capture_model import CallArguments, run_step
from fusionplan.tuner.decision.modes_ahead import ModeProcesses
from torch import nn
from torch._dynamo.utils import counters

if __name__ == "__main__":
    model, call = nn.Sequential(nn.Linear(16, 16), nn.GELU()), CallArguments((torch.randn(4, 16),))
    ahead = ModeProcesses(["default"]).begin(model, call, training=True)
    answer = ahead.begun["default"].result(300.0)
    ahead.close()
    given = run_step(torch.compile(model, mode="default", dynamic=False), call)
    torch.testing.assert_close(given, run_step(model, call))
    print(json.dumps([answer, counters["inductor"], counters["aot_autograd"]]))
"""


@pytest.mark.process
@pytest.mark.dynamo
def test_what_a_process_compiled_this_one_finds(tmp_path: Path):
    answer, counted, aot, stats = told_by(_FOUND, tmp_path)
    assert answer == {}
    assert counted["fxgraph_cache_hit"] == aot["autograd_cache_hit"] == 1
    assert "fxgraph_cache_miss" not in counted
    assert not stats  # nor has Dynamo traced the model for it


@pytest.mark.process
@pytest.mark.dynamo
def test_of_a_training_step_both_passes_are_found(tmp_path: Path):
    answer, counted, aot = told_by(_STEP, tmp_path)
    assert answer == {}
    assert counted["fxgraph_cache_hit"] == 2
    assert "fxgraph_cache_miss" not in counted
    assert aot["autograd_cache_hit"] == 1


def told_by(text: str, tmp_path: Path) -> list:
    """What a program prints, whose processes share empty caches of Inductor."""
    script = tmp_path / "program.py"
    script.write_text(text)
    variables = {
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"),
        "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",  # for one kernel it takes longer
        "PYTHONPATH": import_path(),
    }
    environment = os.environ | variables
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-P", script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found: list = json.loads(done.stdout.splitlines()[-1])
    return found


_WORKERS = """
import os
from concurrent.futures import Future
from fusionplan.tuner.decision.inductor_workers import SpareProcess, leave_failed_workers

if __name__ == "__main__":
    spare = SpareProcess()
    from torch._inductor import config
    from torch._inductor.async_compile import AsyncCompile
    config.compile_threads = 2
    spare.begin()
    leave_failed_workers(60.0)
    pool = AsyncCompile.process_pool()
    assert AsyncCompile.use_process_pool()
    print(pool.process.pid, pool.submit(os.getppid).result(60.0))
    print(open(f"/proc/{pool.process.pid}/cmdline").read() == open("/proc/self/cmdline").read())
    AsyncCompile._ready_future = Future()  # as of workers that do not come up
    leave_failed_workers(0.0)
    print(AsyncCompile._ready_future, AsyncCompile.process_pool.cache_info().currsize)
"""


@pytest.mark.process
def test_inductors_workers_are_forked_too(tmp_path: Path):
    script = tmp_path / "workers.py"
    script.write_text(_WORKERS)
    done = forked([str(script)], variables={"PYTHONPATH": import_path(), "TORCH_WARM_POOL": "0"})
    assert done.returncode == 0, done.stderr
    first, same, left = done.stdout.splitlines()
    pid, parent_of_worker = first.split()
    assert pid == parent_of_worker
    assert same == "True"  # not a new interpreter
    assert left == "None 0"


@pytest.mark.parametrize("cores, few, many", [(8, "2", "4"), (16, "4", "8"), (64, "4", "8")])
def test_modes_that_find_each_others_choices_share_a_process(
    monkeypatch: pytest.MonkeyPatch, cores: int, few: str, many: str
):
    roles: dict[str, WorkerRole] = {}
    asked: list[tuple[str, str]] = []

    class FakePool:
        def __init__(self, given: dict[str, WorkerRole]) -> None:
            roles.update(given)

        def submit(self, role: str, message: dict) -> Future:
            asked.append((role, message["mode"]))
            return Future()

        def close(self) -> None: ...

    monkeypatch.setattr(modes_ahead, "Pool", FakePool)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(cores))
    monkeypatch.delenv("TORCHINDUCTOR_COMPILE_THREADS", raising=False)
    ahead = ModeProcesses(MODES).begin(layers(), CallArguments((X,)))
    assert ahead is not None
    ahead.close()
    of = {mode: role for role, mode in asked}
    assert [mode for _, mode in asked] == list(MODES)
    assert of["max-autotune-no-cudagraphs"] == of["max-autotune"] != of["default"]
    assert of["default"] == of["reduce-overhead"]
    assert [role.count for role in roles.values()] == [1, 1]
    assert roles[of["max-autotune"]].politeness > roles[of["default"]].politeness == 0
    threads = {m: roles[of[m]].env["TORCHINDUCTOR_COMPILE_THREADS"] for m in MODES}
    assert (threads["default"], threads["max-autotune"]) == (few, many)


def test_a_process_traces_the_model_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    file, runs = tmp_path / "model.pt", []
    write_model(layers(), CallArguments((X,)), file)

    class FakeTraced:
        def __init__(self, model: nn.Module) -> None:
            runs.append("traced")

        def by(self, make: Callable) -> Callable:
            return lambda x: runs.append(make.keywords["mode"])

    monkeypatch.setattr(mode_process, "traced", FakeTraced)
    compiling = mode_process.Compiling(nullcontext())
    for mode in ("default", "reduce-overhead"):
        request = {"mode": mode, "model": str(file), "path": [], "training": False}
        assert compiling.handle(request) == {}
    assert runs == ["traced", "default", "reduce-overhead"]


def test_without_a_folder_for_temporary_files_modes_are_compiled_here(monkeypatch, tmp_path: Path):
    monkeypatch.setattr(modes_ahead.tempfile, "tempdir", str(tmp_path / "gone"))
    assert ModeProcesses.opened(MODES) is None


def test_a_model_that_cannot_be_handed_over_is_compiled_here():
    processes = ModeProcesses([])
    folder = processes.turn
    model = layers()
    model.forward = lambda x: x  # no name by which another process finds it
    assert processes.begin(model, CallArguments((X,))) is None
    with folder:  # which needs no file any more
        pass


def test_only_a_large_model_pays(monkeypatch: pytest.MonkeyPatch):
    call, modes = CallArguments((X,)), ("default", "max-autotune")
    large = layers(30)
    assert pays(large, call, modes, cores=4)
    assert not pays(large, call, modes, cores=3)
    assert not pays(large, call, (), cores=16)
    assert not pays(layers(29), call, modes, cores=16)
    assert pays(layers(29), call, modes, cores=16, training=True)
    assert not pays(lambda x: x, call, modes, cores=16)
    size = sum(p.nbytes for p in large.parameters()) + X.nbytes
    monkeypatch.setattr(modes_ahead, "MOST_BYTES", size - 1)
    assert not pays(large, call, modes, cores=16)


def answered(answer: object) -> Future:
    future: Future = Future()
    future.set_result(answer)
    return future


def warmed(ahead: ModesAhead, seconds: float = 100.0, sleep=None, is_enough=lambda: False):
    """The modes in the order in which this process compiled them, and all baselines."""
    compiled: list[str] = []
    now = [0.0]

    def compile_(name: str) -> None:
        compiled.append(name)
        # What the caches have needs no processes.
        assert (config.compile_threads == 1) == ahead.has(name)

    given = {
        name: lambda turn, name=name: compile_(name) if not turn else None
        for name in ("eager", *ahead.begun)
    }
    wall = Wall(seconds, lambda: now[0])
    found = Baselines(given, RecordedProgress(), wall=wall, ahead=ahead, is_enough=is_enough)

    def slept(s: float) -> None:
        now[0] += 5.0
        if sleep is not None:
            sleep(now[0])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "sleep", slept)
        found.warm()
    return compiled, found


def test_modes_are_compiled_here_as_they_become_ready(tmp_path: Path):
    slow: Future = Future()
    futures = {"default": slow, "reduce-overhead": answered({}), "max-autotune": Future()}
    closed: list[bool] = []
    ahead = ModesAhead(futures, FairLock(tmp_path / "turn"), lambda: closed.append(True))

    def sleep(now: float) -> None:
        if now >= 20.0 and not slow.done():
            slow.set_result({})

    compiled, found = warmed(ahead, sleep=sleep)
    assert compiled == ["eager", "reduce-overhead", "default"]
    assert [*found.ready] == compiled
    assert not closed  # the last process goes on until the decision
    found.finish()
    assert found.left_out == {"max-autotune": CUT_OFF}  # nor was it begun here
    assert closed == [True]


def test_a_mode_that_is_done_before_the_decision_is_compared(tmp_path: Path):
    slow: Future = Future()
    futures = {"default": answered({}), "reduce-overhead": slow, "max-autotune": Future()}
    closed: list[bool] = []
    ahead = ModesAhead(futures, FairLock(tmp_path / "turn"), lambda: closed.append(True))
    compiled, found = warmed(ahead)
    assert compiled == ["eager", "default"]
    slow.set_result({})
    found.finish()
    assert compiled == ["eager", "default", "reduce-overhead"]
    assert found.left_out == {"max-autotune": CUT_OFF}
    assert closed == [True]
    found.finish()  # does no more
    assert len(compiled) == 3


def test_a_mode_that_is_done_as_the_time_ends_is_compiled_before_the_decision(tmp_path: Path):
    slow: Future = Future()
    ahead = ModesAhead({"default": slow}, FairLock(tmp_path / "turn"))

    def sleep(now: float) -> None:
        if now > 51.0 and not slow.done():  # the end of the time that they have of 100 s
            slow.set_result({})

    compiled, found = warmed(ahead, sleep=sleep)
    assert compiled == ["eager"]
    assert not found.left_out
    found.finish()
    assert compiled == ["eager", "default"]


def test_the_next_search_begins_while_modes_are_still_under_way(tmp_path: Path):
    """The search of the forward graph of a training step was done after 40 s, and the backward
    graph's waited 55 s more for modes that were never done."""
    slow: Future = Future()
    futures = {"reduce-overhead": answered({}), "default": slow, "max-autotune": Future()}
    ahead = ModesAhead(futures, FairLock(tmp_path / "turn"))
    slept: list[float] = []
    compiled, found = warmed(ahead, sleep=slept.append, is_enough=lambda: len(slept) == 2)
    assert compiled == ["eager", "reduce-overhead"]
    assert slept == [5.0, 10.0]
    assert found.compiles  # beside the search of the next graph
    slow.set_result({})
    found.warm()
    assert compiled == ["eager", "reduce-overhead", "default"]
    assert not found.left_out
    found.finish()
    assert found.left_out == {"max-autotune": CUT_OFF}
    assert not found.compiles


def test_a_mode_that_is_done_when_the_time_is_over_is_not_begun(tmp_path: Path):
    slow: Future = Future()
    ahead = ModesAhead({"default": slow}, FairLock(tmp_path / "turn"))
    compiled, found = warmed(ahead)
    slow.set_result({})
    found.wall = Wall(0.0)
    found.finish()
    assert compiled == ["eager"]
    assert found.left_out == {"default": CUT_OFF}


def test_a_mode_that_could_not_be_compiled_there_is_compiled_here(tmp_path: Path):
    ahead = ModesAhead({"default": answered(Crashed("it died"))}, FairLock(tmp_path / "turn"))
    compiled, found = warmed(ahead)
    assert compiled == ["eager", "default"]
    assert not found.left_out


def test_a_mode_that_breaks_the_device_there_is_not_compiled_here(tmp_path: Path):
    """As Inductor's own choices for some convolutions do: the search's findings would be lost."""
    why = "CUDA error: an illegal memory access was encountered"
    ahead = ModesAhead({"max-autotune": answered({BROKE: why})}, FairLock(tmp_path / "turn"))
    compiled, found = warmed(ahead)
    assert compiled == ["eager"]
    assert why in found.left_out["max-autotune"]


def test_a_process_says_that_its_device_is_broken(monkeypatch: pytest.MonkeyPatch):
    def fails() -> None:
        raise RuntimeError("CUDA error")

    compiling = mode_process.Compiling(nullcontext())
    monkeypatch.setattr(mode_process.Compiling, "_run", lambda *of: fails)
    request = {"mode": "default", "model": "", "path": [], "training": False}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(mode_process, "why_lost", lambda device: "it is broken")
    with pytest.raises(mode_process.Broke) as broke:
        compiling.handle(request)
    assert broke.value.args == ({BROKE: "it is broken"},)
    monkeypatch.setattr(mode_process, "why_lost", lambda device: None)
    with pytest.raises(RuntimeError, match="CUDA error"):
        compiling.handle(request)


def test_a_turn_is_held_by_one_thread_of_one_process(tmp_path: Path):
    file, order = tmp_path / "turn", []
    here, elsewhere = FairLock(file), FairLock(file)  # as another process opens it
    inside = threading.Event()

    def wait_for_it() -> None:
        inside.set()
        with elsewhere:
            order.append("elsewhere")

    with here:
        thread = threading.Thread(target=wait_for_it)
        thread.start()
        inside.wait()
        with here:  # as often as it likes
            time.sleep(0.05)
        time.sleep(0.05)
        order.append("here")
    thread.join()
    assert order == ["here", "elsewhere"]


def test_the_calls_of_a_compiled_graph_take_the_turn_too():
    from torch._inductor.output_code import CompiledFxGraph

    taken: list[str] = []

    class Turn:
        def __enter__(self) -> None:
            taken.append("in")

        def __exit__(self, *error: object) -> None:
            taken.append("out")

    graph = object.__new__(CompiledFxGraph)
    graph.compiled_fn_runner = None
    graph.current_callable = lambda inputs: taken.append("runs")
    graph._compile_context = None
    before = CompiledFxGraph.__call__
    with timed_in_turn(Turn(), runs=True):
        graph([])
    assert taken == ["in", "runs", "out"]
    assert CompiledFxGraph.__call__ is before
