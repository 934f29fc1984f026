"""A training step is run by our plans or by a peer, as a whole, and by what it takes in sum."""

from dataclasses import replace

import pytest
import torch
from fusionplan.api import load, plans
from fusionplan.planner.graph.graph import key
from fusionplan.planner.plan import GroupPlan, Plan
from fusionplan.planner.runtime.dispatch import whole_lowering
from fusionplan.tuner import training
from fusionplan.tuner.capture_model import capture_model
from fusionplan.tuner.measure import Interleaved
from fusionplan.tuner.model_peers import (
    LARGE,
    TRAINING_MODES,
    in_order,
    step_of,
    training_modes_for,
)
from fusionplan.tuner.progress import Silent
from fusionplan.tuner.training import Steps, peer_sums, settled
from tuner_fakes import captured

FORWARD = captured(lambda x: torch.exp(x) + 1, torch.randn(4)).graph
BACKWARD = captured(lambda x: torch.sin(x) * 2, torch.randn(4)).graph


def plan(graph, measured, own=True, **peers):
    nodes = tuple(n.id for n in graph.nodes if n.op != "input")
    groups = (GroupPlan(nodes, "triton", ""),) if own else ()
    figures = tuple(peers.items())
    return Plan(key(graph), "d", (), "measured", groups, measured=measured, peers=figures)


def decide(forward, backward):
    return settled((forward, FORWARD), (backward, BACKWARD))


def test_ours_stay_when_they_win_in_sum_though_not_in_each():
    forward = plan(FORWARD, 2.0, eager=1.5, default=3.0)
    backward = plan(BACKWARD, 1.0, eager=4.0, default=3.0)
    assert decide(forward, backward) == ((forward, backward), None)


@pytest.mark.parametrize("peer", ["eager", "default"])
def test_a_peer_that_wins_in_sum_is_kept_for_both(peer):
    times = {"eager": 9.0, "default": 9.0}
    forward = plan(FORWARD, 1.0, **times | {peer: 2.0})
    backward = plan(BACKWARD, 5.0, **times | {peer: 2.0})
    kept, name = decide(forward, backward)
    assert name == peer
    assert [p.measured for p in kept] == [2.0, 2.0]
    assert [p.peers for p in kept] == [forward.peers, backward.peers]
    want = ("aten", "") if peer == "eager" else ("inductor", "default")
    assert [whole_lowering(p, g) for p, g in zip(kept, (FORWARD, BACKWARD), strict=True)] == [
        want,
        want,
    ]


def test_without_a_forward_plan_of_ours_the_backward_plan_claims_nothing():
    forward = plan(FORWARD, 1.0, own=False, eager=1.0)
    backward = plan(BACKWARD, 0.1, eager=4.0)
    kept, name = decide(forward, backward)
    assert name == "eager"
    assert [p.groups for p in kept] == [(), ()]
    assert [p.measured for p in kept] == [1.0, 4.0]


def test_a_difference_within_the_margin_changes_nothing():
    forward, backward = plan(FORWARD, 1.0, eager=0.995), plan(BACKWARD, 1.0, eager=0.995)
    assert decide(forward, backward)[1] is None


def test_nothing_is_decided_without_peers_that_ran_both():
    forward, backward = plan(FORWARD, 1.0, eager=0.1), plan(BACKWARD, 1.0, default=0.1)
    assert peer_sums((forward, backward)) == {}
    assert decide(forward, backward) == ((forward, backward), None)


class Rounds:
    """Ten rounds, in which each takes what it is said to take."""

    def __init__(self, **seconds: float) -> None:
        self.seconds = seconds

    def interleaved(self, calls, budget_s) -> Interleaved:
        return Interleaved({name: [self.seconds[call()]] * 10 for name, call in calls.items()})


@pytest.mark.parametrize("known", [{}, {"default": 3.0, "max-autotune-no-cudagraphs": 2.0}])
@pytest.mark.parametrize("theirs", [0.5, 2.0])
def test_whole_steps_of_large_graphs_are_compared_with_both_modes(monkeypatch, known, theirs):
    monkeypatch.setattr(training, "step_of", lambda model, origin: lambda: "ours")
    monkeypatch.setattr(training, "step_by", lambda origin, mode: lambda: mode.replace("-", "_"))
    timer = Rounds(ours=1.0, max_autotune=theirs, reduce_overhead=0.9 * theirs)
    forward, backward = plan(FORWARD, 0.4, eager=1.0), plan(BACKWARD, 0.6, eager=3.0)
    added = tuple(known.items())
    planned = [
        (replace(p, peers=p.peers + added), graph)
        for p, graph in ((forward, FORWARD), (backward, BACKWARD))
    ]
    kept, name = Steps(None, None, timer, Silent()).settled(planned)
    timed = ["max-autotune"] if known else ["reduce-overhead", "max-autotune"]
    best = timed[0]
    share = 0.5 if known else 0.25
    assert [n for n, _ in kept[0].peers[1 + len(known) :]] == timed
    assert dict(kept[0].peers)["max-autotune"] == pytest.approx(theirs * share)
    assert name == (best if theirs < 1 else None)
    assert (kept[0].groups == forward.groups) == (theirs > 1)


def test_whole_steps_are_compared_though_no_graph_ran_as_eager(monkeypatch):
    monkeypatch.setattr(training, "step_of", lambda model, origin: lambda: "ours")
    monkeypatch.setattr(training, "step_by", lambda origin, mode: lambda: mode.replace("-", "_"))
    timer = Rounds(ours=1.0, max_autotune=0.5, reduce_overhead=2.0)
    planned = [(plan(FORWARD, 0.4), FORWARD), (plan(BACKWARD, 0.6), BACKWARD)]
    kept, name = Steps(None, None, timer, Silent()).settled(planned)
    assert name == "max-autotune"
    assert [p.measured for p in kept] == [0.25, 0.25]


def test_a_step_with_a_large_graph_has_no_peer_but_eager_graph_by_graph():
    def long(x: torch.Tensor) -> torch.Tensor:
        for _ in range(LARGE):
            x = torch.sin(x)
        return x

    assert training_modes_for([FORWARD, BACKWARD]) == TRAINING_MODES
    assert training_modes_for([FORWARD, captured(long, torch.randn(4)).graph]) == ()


def test_a_traced_graph_is_traced_again_into_the_same_graph() -> None:
    """Else the last comparison of whole steps runs without the plans that it is about."""

    def model(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        rows = y.shape[0]  # y is met first, and used last
        return torch.exp(x * 2)[:rows] + y

    inputs = (torch.randn(6, 8, requires_grad=True), torch.randn(4, 8))
    parts = capture_model(model, inputs, training=True).parts
    forward, origin = parts[0], parts[0].origin
    assert origin is not None
    loaded = load(in_order(origin.gm), on_miss="model", evidence="any", dynamic=False)
    step_of(loaded, origin)()
    assert forward.stage == "forward"
    assert forward.key in {plan.graph_key for plan in plans(loaded)}
    for factor in range(torch._dynamo.config.recompile_limit + 1):
        each = capture_model(lambda x, y, n=factor: x * n + y.shape[0], inputs, training=True)
        loaded = load(in_order(each.parts[0].origin.gm), on_miss="model", evidence="any")
        step_of(loaded, each.parts[0].origin)()
        assert each.parts[0].key in {plan.graph_key for plan in plans(loaded)}
    torch._dynamo.reset()
    otherwise = load(origin.gm, on_miss="model", evidence="any", dynamic=False)
    step_of(otherwise, origin)()
    assert forward.key not in {plan.graph_key for plan in plans(otherwise)}
