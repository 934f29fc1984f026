"""`bisect`: the group that is wrong is named, whatever it makes of those behind it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from fusionplan.planner.capture.capture import Captured, capture, decompositions
from fusionplan.planner.costs.device import H200
from fusionplan.planner.covers.cover import modelled_plan
from fusionplan.planner.graph.op import Accuracy, Op
from fusionplan.planner.graph.texts import FORMS, OpText
from fusionplan.planner.plan import Plan
from fusionplan.tuner.gate.bisect import bisect
from torch.fx.experimental.proxy_tensor import make_fx


def model(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
    first = F.gelu(x * 2 + 1)
    chosen = torch.sort(first, -1)[0]  # no kernel of ours: two groups at least
    return [torch.tanh(chosen) * w]


def planned() -> tuple[Captured, Plan, list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(8, 33, generator=generator), torch.randn(33, generator=generator)]
    traced = make_fx(model, decomposition_table=decompositions(), tracing_mode="fake")(*inputs)
    found = capture(traced)
    plan = modelled_plan(found.graph, H200)
    assert sum(g.lowering == "triton" for g in plan.groups) == 2
    return found, plan, inputs


@pytest.mark.interpreter
def test_right_groups_are_within_the_rule() -> None:
    errors = list(bisect(*planned()))
    assert len(errors) == 2
    assert not [e for e in errors if e.fault or e.left_out]
    assert all(0 < e.ours <= e.limit for e in errors)
    assert "erf" in errors[0].operations
    assert "tanh" in errors[1].operations


@pytest.mark.interpreter
def test_a_group_is_not_wrong_for_strides_that_eagers_values_have() -> None:
    """Attention's backward pass gave others on a GPU than its meta function says."""
    found, plan, (x, w) = planned()
    turned = x.t().contiguous().t()
    assert not [e for e in bisect(found, plan, [turned, w]) if e.fault or e.left_out]


@pytest.mark.interpreter
def test_the_first_wrong_group_is_named_and_those_behind_it_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wrong = {Accuracy.EXACT: OpText("tl.erf({self}) * 1.001")}
    monkeypatch.setitem(FORMS, Op.ERF, wrong)
    first, second = bisect(*planned())
    assert "beyond" in first.fault
    assert first.ours > first.limit > first.eager
    assert not second.fault
