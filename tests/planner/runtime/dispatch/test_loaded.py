"""The short way of a loaded model: only for calls that eager runs, and never another result."""

import copy

import pytest
import torch
from fusionplan.planner.graph.graph import key
from fusionplan.planner.plan import GroupPlan, Plan
from fusionplan.planner.runtime.dispatch.dispatch import Dispatcher
from fusionplan.planner.runtime.dispatch.loaded import loaded
from fusionplan.planner.runtime.dispatch.plan_runners import Policy, Sources
from torch import nn

pytestmark = pytest.mark.dynamo


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x, flag=True):
        return self.linear(x) * (2 if flag else 3)


@pytest.fixture
def asked():
    return []


@pytest.fixture
def backend(asked):
    """Eager is best for inputs of three rows; others have no plan."""

    def find(captured):
        asked.append(captured)
        shapes = [captured.graph.nodes[i].type.shape for i in captured.graph.inputs]
        if (3, 4) not in shapes:
            return "nothing is stored"
        return Plan(key(captured.graph), "cpu", (), "measured", (), frame=True)

    torch._dynamo.reset()
    return Dispatcher(Policy(baseline="eager"), Sources(find))


def calls_of(monkeypatch, short):
    """Counts the calls that go the long way."""
    from torch._dynamo.eval_frame import OptimizedModule

    count = [0]
    long = OptimizedModule.__call__

    def counted(self, *args, **kwargs):
        count[0] += 1
        return long(self, *args, **kwargs)

    monkeypatch.setattr(OptimizedModule, "__call__", counted)
    return count


@pytest.mark.filterwarnings("ignore::fusionplan.planner.cures.FusionplanWarning")
def test_calls_that_eager_runs_go_the_short_way(backend, asked, monkeypatch):
    model = Twice()
    fast = loaded(torch.compile(model, backend=backend, dynamic=False), model)
    count = calls_of(monkeypatch, fast)
    three, five = torch.randn(3, 4), torch.randn(5, 4)
    with torch.no_grad():
        for x, long in [(three, 1), (three, 1), (five, 2), (five, 3), (three, 3)]:
            torch.testing.assert_close(fast(x), model(x))
            assert count[0] == long
        torch.testing.assert_close(fast(three, flag=False), model(three, flag=False))
        assert count[0] == 4  # another value, another graph
    torch.testing.assert_close(fast(three), model(three))
    assert count[0] == 5  # gradients are on
    assert len(asked) == 4


class Parts(nn.Module):
    """Two frames: one of sizes that vary, and one whose sizes stay."""

    @torch._dynamo.disable(recursive=False)
    def forward(self, x):
        return self.last(self.first(x))

    def first(self, x):
        return x.sum(0) + torch.zeros(5, 4)

    def last(self, x):
        return torch.relu(x) * 2


def test_a_call_with_one_frame_left_alone_of_two_goes_the_long_way(asked):
    """Of a graph that was compiled before, too, it is known that it ran."""

    def find(captured):
        graph = captured.graph
        asked.append(graph)
        if (5, 4) not in [graph.nodes[i].type.shape for i in graph.inputs]:
            return Plan(key(graph), "cpu", (), "measured", (), frame=True)
        work = tuple(n.id for n in graph.nodes if n.op != "input")
        return Plan(key(graph), "cpu", (), "measured", (GroupPlan(work[:1], "inductor", ""),))

    torch._dynamo.reset()
    dispatcher = Dispatcher(Policy(baseline="eager"), Sources(find))
    model = Parts()
    fast = loaded(torch.compile(model, backend=dispatcher, dynamic=True), model)
    rows = [3, 7, 7, 9, 9, 3]
    with torch.no_grad():
        for count in rows:
            x = torch.randn(count, 4)
            torch.testing.assert_close(fast(x), model(x))
    runners = [live.runner for live in dispatcher.live.values() if live.runner is not None]
    assert sum(runner.calls for runner in runners) == len(rows)


def test_hooks_and_attributes_are_those_of_the_module(backend):
    model = Twice()
    fast = loaded(torch.compile(model, backend=backend), model)
    x, seen = torch.randn(3, 4), []
    with torch.no_grad():
        fast(x)
        handle = fast.register_forward_hook(lambda *_: seen.append("outer"))
        model.linear.register_forward_hook(lambda *_: seen.append("inner"))
        fast(x)
        handle.remove()
        fast(x)
    assert seen.count("outer") == 1
    assert seen.count("inner") >= 2
    assert fast.linear is model.linear
    assert set(fast.state_dict()) == {f"_orig_mod.{name}" for name in model.state_dict()}
    model.linear.weight.data.zero_()
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x))


def test_a_deep_copy_has_weights_of_its_own(backend):
    model = Twice()
    fast = loaded(torch.compile(model, backend=backend), model)
    x = torch.randn(3, 4)
    with torch.no_grad():
        fast(x)
        other = copy.deepcopy(fast)
        model.linear.weight.data.zero_()
        assert not torch.equal(other(x), fast(x))


def test_a_model_stays_a_model_where_torch_compile_is_off():
    """torch.compile then gives the model itself."""
    model = Twice()
    assert loaded(model, model) is model


def test_functions_and_containers(backend):
    def add(pair, *, by):
        return (pair[0] + pair[1]["y"]) * by["factor"]

    fast = loaded(torch.compile(add, backend=backend), add)
    x = torch.ones(3, 4)
    for factor in (2.0, 2.0, 3.0):
        given = ((x, {"y": x}),), {"by": {"factor": factor}}
        torch.testing.assert_close(fast(*given[0], **given[1]), add(*given[0], **given[1]))
    assert fast.__name__ == "add"
