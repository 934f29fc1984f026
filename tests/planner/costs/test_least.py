"""The least that the device needs for a whole graph: what products pass to one another counts."""

from __future__ import annotations

from fusionplan.planner.costs.device import builtin
from fusionplan.planner.costs.least import least, least_of_whole, passed_bytes
from fusionplan.planner.graph.parse import parse

H200 = builtin("h200")

ATTENTION = """
%0 = input() : bfloat16[4096, 64]
%1 = input() : bfloat16[64, 4096]
%2 = input() : bfloat16[4096, 64]
%3 = aten.mm.default(%0, %1) : bfloat16[4096, 4096]
%4 = aten._softmax.default(%3, -1, False) : bfloat16[4096, 4096]
%5 = aten.mm.default(%4, %2) : bfloat16[4096, 64]
return %5
"""

RESIDUAL = """
%0 = input() : bfloat16[65536, 64]
%1 = input() : bfloat16[64, 64]
%2 = aten.mm.default(%0, %1) : bfloat16[65536, 64]
%3 = aten.relu.default(%2) : bfloat16[65536, 64]
%4 = aten.mm.default(%3, %1) : bfloat16[65536, 64]
%5 = aten.add.Tensor(%4, %2) : bfloat16[65536, 64]
%6 = aten.mm.default(%5, %1) : bfloat16[65536, 64]
%7 = aten.amax.default(%6, (-1)) : bfloat16[65536]
return %7
"""


def test_scores_of_attention_do_not_count():
    graph = parse(ATTENTION)
    assert passed_bytes(graph, (3, 5)) == {3: 0, 5: 0}
    assert least_of_whole(graph, H200).bytes_s == least(graph, H200).bytes_s


def test_what_products_pass_on_counts():
    graph = parse(RESIDUAL)
    rows = 2 * 65536 * 64
    # The sum is read once, whatever of it other products made; the last result stays in a kernel.
    assert passed_bytes(graph, (2, 4, 6)) == {2: rows, 4: 2 * rows, 6: rows}
    found = least_of_whole(graph, H200)
    assert found.products_s > 2 * least(graph, H200).products_s
    assert found.seconds == H200.launch_s + found.products_s
