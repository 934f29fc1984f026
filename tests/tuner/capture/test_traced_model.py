"""A model that Dynamo traces once, run in several ways behind that one trace."""

from functools import partial

import pytest
import torch
from fusionplan.planner.costs.device import builtin
from fusionplan.planner.covers.cover import modelled_plan
from fusionplan.planner.runtime.dispatch import front_end
from fusionplan.planner.runtime.dispatch.dispatch import Dispatcher
from fusionplan.planner.runtime.dispatch.plan_runners import Policy, Sources
from fusionplan.tuner.capture import traced_model
from fusionplan.tuner.capture.capture_model import capture_model
from fusionplan.tuner.capture.traced_model import TracedGraph
from torch import nn
from torch._dynamo.utils import counters

pytestmark = pytest.mark.dynamo


class Halves(nn.Module):
    """Two graphs, the first of which gives one of its inputs and writes to a buffer."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen += 1
        y = torch.sin(x) * 2
        torch._dynamo.graph_break()
        return self.linear(y).relu() + x, x


X = torch.randn(4, 16)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Halves().eval()


def test_all_ways_share_one_trace(model):
    found, seen = [], model.seen.clone()
    captured = capture_model(
        model, (X,), seen=lambda each: found.append((each, model.seen.clone()))
    )
    assert [each for each, _ in found] == [part.captured for part in captured.parts]
    # The model has run once to see that it does, and the first graph had not when it was told.
    assert found[0][1] == seen + 1
    traced = captured.traced
    counters.clear()
    asked = []

    def twice(graph):
        asked.append(graph)
        return lambda *args: [2 * each for each in graph.gm(*args)]

    def itself(graph):
        return graph.gm

    other = torch.randn(4, 16)
    doubled, plain = traced.by(twice), traced.by(itself)
    with torch.no_grad():
        for x in (X, other, X):
            seen = model.seen.clone()
            torch.testing.assert_close(plain(x), model(x))
            assert model.seen == seen + 2  # once by each
            assert not torch.equal(doubled(x)[0], plain(x)[0])
    assert asked == traced.graphs  # each once
    assert len(asked) == 2
    assert not counters["stats"]  # Dynamo was not asked again


def test_by_a_plan_our_kernels_run(model, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    traced = capture_model(model, (X,)).traced
    graphs = len(traced.graphs)

    def find(captured):
        return modelled_plan(captured.graph, builtin("h200"))

    dispatcher = Dispatcher(Policy(), Sources(find))
    run = traced.by(partial(TracedGraph.by_plan, dispatcher=dispatcher))
    with torch.no_grad():
        for x in (X, torch.randn(4, 16)):
            torch.testing.assert_close(run(x), model(x))
    runners = [live.runner for live in dispatcher.live.values()]
    assert len(runners) == graphs
    assert sum(each.kernels_per_call for each in runners) == 3
    assert all(each.calls == 2 for each in runners)


class Line(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x):
        return self.linear(x).tanh()


def test_a_call_by_a_plan_is_as_short_as_that_of_a_loaded_model(monkeypatch):
    """Else the contest would time more of the host than the user has."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    entered, frames = [], front_end.Frames

    def counting(model, function, enter):
        return frames(model, function, lambda *a, **k: entered.append(a) or enter(*a, **k))

    monkeypatch.setattr(front_end, "Frames", counting)
    model = Line().eval()
    traced = capture_model(model, (X,)).traced
    wrapped, itself = [], traced.graphs[0].itself
    traced.graphs[0].itself = lambda *args: wrapped.append(args) or itself(*args)
    dispatcher = Dispatcher(Policy(), Sources(lambda c: modelled_plan(c.graph, builtin("h200"))))
    run = traced.by(partial(TracedGraph.by_plan, dispatcher=dispatcher), model)
    with torch.no_grad():
        for _ in range(4):
            torch.testing.assert_close(run(X), model(X))
    assert len(entered) == len(wrapped) == 1


def test_a_graph_that_is_traced_later_is_made_then(model):
    traced = capture_model(model, (X,)).traced
    before = len(traced.graphs)
    run = traced.by(lambda graph: graph.gm)
    with torch.no_grad():
        more = torch.randn(7, 16)
        torch.testing.assert_close(run(more), model(more))
    assert len(traced.graphs) == 2 * before


def test_training_and_varying_sizes_have_no_trace_to_share(model):
    assert capture_model(model, (X.clone().requires_grad_(),), training=True).traced is None
    assert capture_model(model, (X,), dynamic=True).traced is None


def test_a_copy_knows_which_inputs_stay():
    found = []

    def backend(gm, inputs):
        copy = traced_model._copied(gm)
        pairs = zip(gm.graph.nodes, copy.graph.nodes, strict=True)
        found.extend(
            getattr(a, "_dynamo_source", None) == b._dynamo_source
            for a, b in pairs
            if a.op == "placeholder"
        )
        assert copy.graph is not gm.graph
        return gm

    class Own(nn.Linear):
        def forward(self, x):
            return super().forward(x)

    with torch.no_grad():
        torch.compile(Own(4, 4), backend=backend)(torch.randn(2, 4))
    assert found == [True] * 3


def test_both_graphs_of_a_training_step_are_told_before_it_runs():
    """They are planned from then on: ResNet-50's backward graph was first planned when its turn
    came, and half of it was not planned in time."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
    found = []
    captured = capture_model(model, (X,), training=True, seen=found.append)
    assert [part.stage for part in captured.parts] == ["forward", "backward"]
    assert {id(each) for each in found} == {id(part.captured) for part in captured.parts}
