"""Groups whose configs are few: what the cover counted with is what the plan runs."""

import pytest
from fusionplan.planner.costs.device import H100
from fusionplan.planner.covers import pricing
from fusionplan.planner.covers.cover import modelled_plan
from fusionplan.planner.graph.ops import is_compute
from fusionplan.planner.graph.parse import parse
from fusionplan.planner.groups.group import GroupContent
from fusionplan.planner.lowerings.triton import best

GELU_BACKWARD = """
%0 = input() : bfloat16[8192, 2048]
%1 = input() : bfloat16[2048, 8192]
%2 = input() : bfloat16[8192, 8192]
%3 = aten.mm.default(%0, %1) : bfloat16[8192, 8192]
%4 = aten._to_copy.default(%2, dtype=float32) : float32[8192, 8192]
%5 = aten.mul.Tensor(%4, 0.5) : float32[8192, 8192]
%6 = aten.mul.Tensor(%4, 0.7071067811865476) : float32[8192, 8192]
%7 = aten.erf.default(%6) : float32[8192, 8192]
%8 = aten.add.Tensor(%7, 1) : float32[8192, 8192]
%9 = aten.mul.Tensor(%5, %8) : float32[8192, 8192]
%10 = prims.convert_element_type.default(%9, bfloat16) : bfloat16[8192, 8192]
%11 = aten._to_copy.default(%3, dtype=float32) : float32[8192, 8192]
%12 = aten.mul.Tensor(%8, 0.5) : float32[8192, 8192]
%13 = aten.mul.Tensor(%4, %4) : float32[8192, 8192]
%14 = aten.mul.Tensor(%13, -0.5) : float32[8192, 8192]
%15 = aten.exp.default(%14) : float32[8192, 8192]
%16 = aten.mul.Tensor(%15, 0.3989422804014327) : float32[8192, 8192]
%17 = aten.mul.Tensor(%4, %16) : float32[8192, 8192]
%18 = aten.add.Tensor(%12, %17) : float32[8192, 8192]
%19 = aten.mul.Tensor(%11, %18) : float32[8192, 8192]
%20 = prims.convert_element_type.default(%19, bfloat16) : bfloat16[8192, 8192]
%21 = aten.sum.dim_IntList(%20, (0), True) : bfloat16[1, 8192]
return %10, %20, %21
"""
"""The gradient behind a product, GELU's and the sum for its bias, of a transformer's layer."""


def test_no_group_has_a_price_that_its_plan_has_not() -> None:
    graph = parse(GELU_BACKWARD)
    whole = GroupContent.of(graph, tuple(n.id for n in graph.nodes if is_compute(n)))
    quick = pricing.quick_s(whole, H100)
    found = best(whole, H100)
    assert quick is not None
    assert found is not None
    assert found[1].seconds <= quick


@pytest.mark.slow
def test_a_layers_backward_pass_is_not_left_to_aten_one_by_one() -> None:
    graph = parse(GELU_BACKWARD)
    plan = modelled_plan(graph, H100)
    ours = {node for group in plan.groups for node in group.nodes}
    left = [n.name for n in graph.nodes if is_compute(n) and n.id not in ours]
    assert set(left) <= {graph.nodes[3].name}  # the vendor's product
