"""The table of `planner explain`: what the device needs at least, and the time beyond it."""

import pytest
from fusionplan.cli.gaps import gaps, gaps_table, least_line
from fusionplan.planner.costs.device import builtin
from fusionplan.planner.costs.least import least_of_whole
from fusionplan.planner.covers.cover import modelled_plan
from fusionplan.planner.explain_plan import explain_plan
from fusionplan.planner.graph.parse import parse

H200 = builtin("h200")

CONVOLUTION = """
%0 = input() : bfloat16[8, 64, 56, 56]
%1 = input() : bfloat16[128, 64, 3, 3]
%2 = aten.convolution.default(%0, %1, None, (1, 1), (1, 1), (1, 1), False, (0, 0), 1) : bfloat16[8, 128, 56, 56]
return %2
"""  # noqa: E501

LAYERS = """
%0 = input() : bfloat16[4096, 1024]
%1 = input() : bfloat16[1024, 1024]
%2 = aten.mm.default(%0, %1) : bfloat16[4096, 1024]
%3 = aten.relu.default(%2) : bfloat16[4096, 1024]
%4 = aten.mm.default(%3, %1) : bfloat16[4096, 1024]
return %4
"""


def test_least_of_a_convolution():
    found = least_of_whole(parse(CONVOLUTION), H200)
    assert found.flops == 2.0 * (8 * 128 * 56 * 56) * (64 * 3 * 3)
    assert found.products_s == pytest.approx(found.flops / (H200.tensor_flops * H200.vendor))
    assert found.nbytes == 2 * (8 * 64 * 56 * 56 + 128 * 64 * 9 + 8 * 128 * 56 * 56)


def test_the_largest_gap_comes_first():
    graph = parse(LAYERS)
    explanation = explain_plan(graph, modelled_plan(graph, H200), H200)
    assert explanation.least == least_of_whole(graph, H200)
    assert least_line(explanation).startswith("the device needs at least ")
    found = gaps(explanation)
    assert sum(gap.times for gap in found) == len(explanation.groups) + len(explanation.alone)
    assert [g.beyond_s for g in found] == sorted((g.beyond_s for g in found), reverse=True)
    assert all(gap.least_s >= H200.launch_s for gap in found)
    assert len(gaps_table(explanation).rows) == len(found)
