"""Plans of which a group is a vendor's call: run by themselves, between other groups, and from a
store behind torch.compile."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import fusionplan
import pytest
import torch
from fusionplan.backend import planner
from fusionplan.db import Store
from fusionplan.db.records import DeviceRecord, GraphRecord, PlanRecord
from fusionplan.planner.costs.device import profile_of
from fusionplan.planner.errors import PlanError
from fusionplan.planner.graph.graph import key
from fusionplan.planner.lowerings.vendor import equal
from fusionplan.planner.plan import GroupPlan, Plan
from fusionplan.planner.runtime.execution.executor import Executor
from fusionplan.planner.versions import versions
from oracle import captured, whole_group
from test_linear_layers import linear_relu
from test_vendor_attention import (
    BSHD,
    GROUPED,
    QKV,
    B,
    S,
    by_where,
    grouped_causal,
    layout_bshd,
    plain,
    soft_cap,
)
from vendor_equals import CPU, Function, normal

pytestmark = pytest.mark.dynamo


def ran(function: Function, inputs: Sequence[torch.Tensor], name: str) -> Executor:
    """The plan with the whole graph as a vendor's call, after its results were eager's, strides
    included."""
    whole, given = captured(function, inputs)
    nodes = tuple(n.id for n in whole.graph.nodes if n.op != "input")
    groups = (GroupPlan(nodes, "vendor", "", options=name),)
    plan = Plan("", "cpu", (), "measured", groups)
    assert Plan.from_json(plan.to_json()) == plan
    executor = Executor(whole, plan, CPU)
    (actual,), (wanted,) = executor(*given), whole.gm(*given)
    torch.testing.assert_close(actual, wanted, rtol=1e-4, atol=1e-5)
    assert actual.stride() == wanted.stride()
    return executor


def test_a_plan_runs_attention_by_the_call() -> None:
    for function, inputs in ((plain, QKV), (layout_bshd, BSHD), (grouped_causal, GROUPED)):
        executor = ran(function, inputs, "attention")
        assert "scaled_dot_product_attention" in executor.text
        assert "bmm" not in executor.text


def test_a_plan_runs_a_linear_layer_by_the_call() -> None:
    executor = ran(linear_relu, [normal(3, 5, 16), normal(24, 16), normal(24)], "linear_relu")
    assert "_addmm_activation" in executor.text


def test_a_call_stands_between_other_groups() -> None:
    def layer(q, k, v):
        return torch.sort(plain(q * 2, k, v).transpose(1, 2).reshape(B, S, -1))[0] + 1

    whole, given = captured(layer, QKV)
    names = {n.name: n.id for n in whole.graph.nodes}
    last = max(i for name, i in names.items() if name.startswith("bmm"))
    first = next(n.id for n in whole.graph.nodes if n.op == "aten.mul.Tensor")
    nodes = tuple(n.id for n in whole.graph.nodes if n.op != "input" and first < n.id <= last)
    plan = Plan("", "cpu", (), "measured", (GroupPlan(nodes, "vendor", "", options="attention"),))
    executor = Executor(whole, plan, CPU)
    usual, first = executor.text.split("def first(")  # which asks about values before it
    assert [text.count("scaled_dot_product_attention") for text in (usual, first)] == [1, 1]
    torch.testing.assert_close(executor(*given)[0], whole.gm(*given)[0], rtol=1e-4, atol=1e-5)


def test_a_stored_plan_runs_behind_torch_compile(tmp_path: Path) -> None:
    graph = captured(by_where, QKV)[0].graph
    nodes = tuple(n.id for n in graph.nodes if n.op != "input")
    profile, current = profile_of(CPU), versions()
    groups = (GroupPlan(nodes, "vendor", "", options="attention"),)
    plan = Plan(key(graph), profile.key, tuple(sorted(current.items())), "measured", groups)
    with Store.open(tmp_path / "plans.db") as store:
        store.put_device(DeviceRecord(profile.key, profile.name, 1, 0, "90", {}))
        store.put_graph(GraphRecord(plan.graph_key, "attention", 1, {}))
        store.save_plan(
            PlanRecord(
                key=f"{plan.graph_key}-{profile.key}",
                graph_key=plan.graph_key,
                device_key=profile.key,
                versions=current,
                name="attention",
                evidence="measured",
                payload=plan.to_json(),
            )
        )
    options = {"store": str(tmp_path / "plans.db"), "on_miss": "error"}
    torch._dynamo.reset()
    fast = torch.compile(by_where, backend=planner, options=options)
    with torch.no_grad():
        torch.testing.assert_close(fast(*QKV), by_where(*QKV), rtol=1e-4, atol=1e-5)
    assert fusionplan.plans(fast) == [plan]
    (executor,) = fusionplan.executors(fast)
    assert "scaled_dot_product_attention" in executor.text


def test_a_plan_that_names_another_call_is_refused() -> None:
    whole, _ = captured(soft_cap, QKV)
    nodes = tuple(n.id for n in whole.graph.nodes if n.op != "input")
    plan = Plan("", "cpu", (), "measured", (GroupPlan(nodes, "vendor", "", options="attention"),))
    with pytest.raises(PlanError, match="attention"):
        Executor(whole, plan, CPU)
    assert equal(whole_group(whole.graph).graph, "attention") is None
