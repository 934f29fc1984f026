"""Measuring, with a stopwatch that is told the times, and whole on the CPU in the interpreter."""

import pytest
import torch
from fusionplan.bench import host
from fusionplan.bench.measure import accuracy_of, compare, measure
from fusionplan.bench.result import EAGER, OURS, Measured, Missing
from fusionplan.bench.workloads import WORKLOADS
from fusionplan.tuner.capture_model import Call
from fusionplan.tuner.measure import Timer

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
    times, best = compare(calls, TIMER, 1.0)
    assert times[EAGER].seconds == 9e-3
    assert times[OURS].runs == 10
    assert times[OURS].passes_s == (2e-3, 2e-3)
    assert times[OURS].spread == 0.0
    assert (best.peer, best.median) == ("default", pytest.approx(0.5))


def test_passes_that_differ_are_told():
    laps = iter([1e-3] * 9 + [3e-3] * 9)  # 3 rounds to warm up, 1 to see, 5 that count
    times, _ = compare({OURS: lambda: next(laps), EAGER: lambda: 1e-3}, TIMER, 1.0)
    assert times[OURS].passes_s == (1e-3, 3e-3)
    assert times[OURS].spread == pytest.approx(1.0)


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
    found = accuracy_of(torch.exp, Call((x,)), lambda: change(torch.exp(x)))
    assert problem in found.problem
    assert bool(found.problem) is bool(problem)


def test_infinities_that_eager_has_too_are_right():
    x = torch.tensor([0.0, 1.0, 2.0])
    found = accuracy_of(torch.log, Call((x,)), lambda: torch.log(x))
    assert (found.problem, found.ratio) == ("", 1.0)


def test_a_workload_is_measured_by_its_plan():
    workload = WORKLOADS["custom_loss_many_small_ops"]
    found = measure(workload, CPU, None, 1.0, timer=TIMER, on_miss="model", scale=64)
    assert isinstance(found, Measured)
    assert set(found.times) == {OURS, EAGER}
    assert found.kernels >= 1
    assert "triton" in found.lowerings
    assert found.accuracy.problem == ""
    assert found.plan.startswith("triton")


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


def test_every_way_of_calling_gives_the_same(tmp_path):
    with torch.no_grad():
        calls = host.calls_by_way(100, CPU, str(tmp_path / "none.db"))
        loaded, (direct,) = calls[host.LOADED](), calls[host.EXECUTOR]()
    assert set(calls) == {host.EXECUTOR, host.LOADED, host.ATEN}
    torch.testing.assert_close(loaded, direct)
