"""Measuring, with a stopwatch that is told the times, and whole on the CPU in the interpreter."""

from dataclasses import replace

import pytest
import torch
from fusionplan.bench import host
from fusionplan.bench.measure import (
    Notes,
    _accuracy_in_memory,
    accuracy_of,
    compare,
    measure,
    ready_baselines,
    rewritten,
)
from fusionplan.bench.result import EAGER, OURS, REWRITTEN, MeasuredWorkload, Missing
from fusionplan.bench.workloads import WORKLOADS, make
from fusionplan.planner.costs.device import H200
from fusionplan.planner.errors import FusionplanError
from fusionplan.tuner.capture.capture_model import CallArguments
from fusionplan.tuner.capture.rotating_inputs import RotatingInputs
from fusionplan.tuner.measure.timing import Timer

CPU = torch.device("cpu")


class FakeStopwatch:
    """A call that gives a number says its own time; others take a millisecond."""

    def laps(self, calls):
        return [r if isinstance(r := call(), float) else 1e-3 for call in calls]


TIMER = Timer(FakeStopwatch(), least=5, most=5)


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_ours_is_compared_with_the_best_of_the_others():
    calls = {OURS: lambda: 2e-3, EAGER: lambda: 9e-3, "default": lambda: 4e-3}
    times, best = compare(calls, TIMER, 1.0, Notes())
    assert times[EAGER].seconds == 9e-3
    assert times[OURS].runs == 10
    assert times[OURS].halves_s == (2e-3, 2e-3)
    assert times[OURS].spread == 0.0
    assert (best.baseline, best.median) == ("default", pytest.approx(0.5))


def test_passes_that_differ_are_told():
    laps = iter([1e-3] * 9 + [3e-3] * 9)  # 3 rounds to warm up, 1 to see, 5 that count
    times, _ = compare({OURS: lambda: next(laps), EAGER: lambda: 1e-3}, TIMER, 1.0, Notes())
    assert times[OURS].halves_s == (1e-3, 3e-3)
    assert times[OURS].spread == pytest.approx(1.0)


def test_what_is_rewritten_by_hand_is_timed_but_is_no_baseline():
    calls = {OURS: lambda: 2e-3, EAGER: lambda: 4e-3, REWRITTEN: lambda: 1e-3}
    times, best = compare(calls, TIMER, 1.0, Notes())
    assert times[REWRITTEN].seconds == 1e-3
    assert (best.baseline, best.median) == (EAGER, pytest.approx(0.5))


def test_a_note_tells_that_what_is_rewritten_computes_something_else():
    call = CallArguments((torch.randn(100, dtype=torch.bfloat16),))
    for change, told in ((1.0, 0), (1.5, 1)):
        notes = Notes()
        turns = RotatingInputs.of(call)
        wrong = {EAGER: lambda turn: call.run(torch.exp)}
        wrong[REWRITTEN] = lambda turn, factor=change: call.run(torch.exp) * factor
        ready = ready_baselines(wrong, turns, torch.exp, call, notes)
        assert set(ready) == {EAGER, REWRITTEN}
        assert [n.startswith("flex: result 0: error") for n in notes.kept] == [True] * told


def test_what_is_rewritten_takes_the_call_of_the_workload(monkeypatch):
    workload = replace(WORKLOADS["attn_naive"], rewritten="Attention")
    _, call = make(workload, "cpu", scale=64)
    modes = []
    monkeypatch.setattr(torch, "compile", lambda m, mode, dynamic: modes.append(mode) or m)
    run = rewritten(workload, RotatingInputs.of(call), CPU)
    assert run(0).shape == call.args[0].shape
    assert modes == ["max-autotune-no-cudagraphs"]


def fails():
    raise torch.OutOfMemoryError("CUDA out of memory.\nTried a lot")


def test_a_peer_that_runs_out_of_memory_beside_the_others_is_left_out():
    notes = Notes()
    calls = {OURS: lambda: 2e-3, "default": fails, EAGER: lambda: 4e-3}
    times, best = compare(calls, TIMER, 1.0, notes)
    assert set(times) == {OURS, EAGER}
    assert best.baseline == EAGER
    told = "default fails beside the others: OutOfMemoryError: CUDA out of memory."
    assert notes.kept == [told]


def test_our_own_failure_is_no_baselines():
    with pytest.raises(torch.OutOfMemoryError):
        compare({OURS: fails, EAGER: lambda: 4e-3}, TIMER, 1.0, Notes())


def test_without_a_peer_there_is_nothing_to_compare_with():
    with pytest.raises(FusionplanError, match="neither eager nor"):
        compare({OURS: lambda: 2e-3, EAGER: fails}, TIMER, 1.0, Notes())


@pytest.mark.parametrize(
    "change, problem",
    [
        (lambda y: y, ""),
        (lambda y: y * 1.1, "error"),
        (lambda y: torch.where(y > 1, torch.nan, y), "not finite"),
        (lambda y: y.float(), "float32"),
    ],
)
def test_accuracy(change, problem):
    x = torch.randn(1000, dtype=torch.bfloat16)
    found = accuracy_of(torch.exp, CallArguments((x,)), lambda: change(torch.exp(x)))
    assert problem in found.problem
    assert bool(found.problem) is bool(problem)


def test_infinities_that_eager_has_too_are_right():
    x = torch.tensor([0.0, 1.0, 2.0])
    found = accuracy_of(torch.log, CallArguments((x,)), lambda: torch.log(x))
    assert (found.problem, found.ratio) == ("", 1.0)


def test_errors_are_against_float32_where_float64_does_not_fit():
    x = torch.randn(1000, dtype=torch.bfloat16)
    seen = []

    def model(x):
        seen.append(x.dtype)
        if x.dtype == torch.float64:
            raise torch.OutOfMemoryError
        return torch.exp(x)

    notes = Notes()
    found = _accuracy_in_memory(model, CallArguments((x,)), lambda: torch.exp(x), notes)
    assert seen == [torch.float64, torch.float32, torch.bfloat16]
    assert (found.problem, found.ratio) == ("", 1.0)
    assert found.eager > 1e-4
    assert notes.kept == ["errors are against float32, as there is no memory for float64"]


@pytest.mark.dynamo
def test_a_workload_is_measured_by_its_plan():
    workload = WORKLOADS["custom_loss_many_small_ops"]
    found = measure(workload, CPU, None, 1e-6, on_miss="model", rounds=2, scale=64)
    assert isinstance(found, MeasuredWorkload)
    assert found.times[OURS].runs == 2 * 2  # of two halves
    assert found.floor_s == workload.floor_s(H200)  # the interpreter stands for one
    assert set(found.times) == {OURS, EAGER}
    assert found.kernels >= 1
    assert "triton" in found.lowerings
    assert found.accuracy.problem == ""
    assert found.plan.startswith("triton")


@pytest.mark.dynamo
def test_a_workload_without_a_plan_is_missing(tmp_path):
    workload = WORKLOADS["groupnorm_silu"]
    found = measure(workload, CPU, str(tmp_path / "none.db"), 1.0, timer=TIMER, scale=32)
    assert isinstance(found, Missing)
    assert "planner tune" in found.why


def test_host_cost_is_the_best_run_by_the_clock():
    ticks = iter([0.0, 5.0, 5.0, 7.0, 7.0, 17.0, 20.0, 24.0, 24.0, 28.0])
    counted = []
    cost = host.microseconds(lambda: counted.append(1), CPU, calls=4, clock=lambda: next(ticks))
    assert cost == pytest.approx(0.5e6)
    assert len(counted) == host.WARM_UP + 4 * host.BEST_OF


@pytest.mark.dynamo
def test_every_way_of_calling_gives_the_same(tmp_path):
    with torch.no_grad():
        calls = host.calls_by_way(100, CPU, str(tmp_path / "none.db"))
        loaded, (direct,) = calls[host.LOADED](), calls[host.EXECUTOR]()
    assert set(calls) == {host.EXECUTOR, host.LOADED, host.ATEN}
    torch.testing.assert_close(loaded, direct)
