"""The modes of torch.compile that a graph is compared with where no model is at hand."""

from dataclasses import replace

import pytest
import torch
from fusionplan.db import Store
from fusionplan.planner.capture.capture import Captured, Stage
from fusionplan.planner.costs.device import builtin
from fusionplan.planner.lowerings.inductor import MODES
from fusionplan.planner.lowerings.registry import INDUCTOR
from fusionplan.tuner.capture.capture_model import CallArguments
from fusionplan.tuner.capture.rotating_inputs import RotatingInputs
from fusionplan.tuner.decision import baselines
from fusionplan.tuner.decision.baselines import (
    EAGER,
    GIVES_INPUTS,
    ONE_OF_A_STEP,
    ROUNDS,
    graph_baselines,
    modes_left_out,
)
from fusionplan.tuner.progress.progress import Silent
from fusionplan.tuner.session.effort import TuneLimits
from fusionplan.tuner.session.session import Session
from fusionplan.tuner.session.tune_site import TuneSite
from tuner_fakes import FakeLab, FakeStopwatch, OpenLab, captured
from tuner_fakes import baselines as given_baselines

X, W = torch.randn(4, 16), torch.randn(16, 8)
GRAPHED = ("reduce-overhead", "max-autotune")


def graph(device: str = "cuda") -> Captured:
    found = captured(lambda x, w: torch.softmax(x @ w, -1), X, W)
    return replace(found, device=torch.device(device))


def compared(given: Captured, stage: Stage = "inference") -> list[str]:
    calls = graph_baselines(given, RotatingInputs.of(CallArguments((X, W))), stage)
    return [*calls]


def test_every_mode_is_compared():
    assert compared(graph()) == [EAGER, *MODES]
    assert modes_left_out(graph(), "inference") == {}


@pytest.mark.parametrize("stage", ["forward", "backward"])
def test_cuda_graphs_of_one_graph_of_a_step_are_not(stage: Stage):
    assert compared(graph(), stage) == [EAGER, "default", "max-autotune-no-cudagraphs"]
    assert modes_left_out(graph(), stage) == dict.fromkeys(GRAPHED, ONE_OF_A_STEP)


def test_modes_that_may_not_take_part_say_why():
    exact = replace(graph(), graph=replace(graph().graph, numerics="eager"))
    gives = captured(lambda x, w: (x, x @ w), X, W)
    gives = replace(gives, device=torch.device("cuda"))
    for one, reason in [(exact, ROUNDS), (gives, GIVES_INPUTS)]:
        assert compared(one) == [EAGER]
        assert modes_left_out(one, "inference") == dict.fromkeys(MODES, reason)
    assert compared(graph("cpu")) == [EAGER]


def test_modes_with_cuda_graphs_have_them_as_they_would_be_kept(monkeypatch: pytest.MonkeyPatch):
    plans = []
    monkeypatch.setattr(baselines, "Executor", lambda captured, plan, device: plans.append(plan))
    monkeypatch.setattr(baselines, "GraphedExecutor", lambda executor: lambda *inputs: ["graphed"])
    monkeypatch.setattr(INDUCTOR, "captured", lambda captured, mode: lambda *inputs: [mode])
    calls = graph_baselines(graph(), RotatingInputs.of(CallArguments((X, W))))
    for mode in MODES:
        assert calls[mode](0) == calls[mode](1) == ["graphed" if mode in GRAPHED else mode]
    assert [plan.groups[0].options for plan in plans] == [*GRAPHED]  # each compiled once
    assert all(plan.cudagraph for plan in plans)


@pytest.mark.process
@pytest.mark.dynamo
def test_a_mode_computes_the_graph():
    compiled = baselines._compiled(graph("cpu"), "max-autotune-no-cudagraphs")
    (found,) = compiled(X, W)
    torch.testing.assert_close(found, torch.softmax(X @ W, -1))


@pytest.mark.interpreter
def test_the_plan_says_which_modes_were_not_compared(monkeypatch, tmp_path):
    from fusionplan.tuner.session import session

    monkeypatch.setattr(session, "modes_left_out", lambda captured, stage: {"max-autotune": stage})
    with Store.open(tmp_path / "plans.db") as store:
        lab = OpenLab(FakeLab(lambda group, candidate: 1e-3))
        site = TuneSite(lab, lambda device, l2: FakeStopwatch())
        limits = TuneLimits(2, 600.0)
        tuning = Session(graph("cpu"), (X, W), store, limits, Silent(), "m", site=site)
        plan = tuning.measured(builtin("h200"), given_baselines(eager=3.0), "forward")
    assert plan.contest is not None
    assert plan.contest.left_out == (("max-autotune", "forward"),)
