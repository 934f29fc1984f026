"""What a quick look at a group sees of its space: covers are compared by it."""

from __future__ import annotations

import pytest
from fusionplan.planner.costs.device import BUILTIN
from fusionplan.planner.graph.parse import parse
from fusionplan.planner.space.space import Space, space_of

RELU = """\
%0 = input() : bfloat16[{rows}, {summed}]
%1 = input() : bfloat16[{columns}, {summed}]
%2 = input() : bfloat16[{columns}]
%3 = aten.permute.default(%1, (1, 0)) : bfloat16[{summed}, {columns}] strides [1, {summed}]
%4 = aten.addmm.default(%2, %0, %3) : bfloat16[{rows}, {columns}]
%5 = aten.relu.default(%4) : bfloat16[{rows}, {columns}]
return %5"""


@pytest.mark.parametrize("sizes", [(12608, 768, 3072), (16384, 384, 1536), (65536, 128, 512)])
def test_a_product_is_priced_by_the_programs_that_walk(sizes: tuple[int, int, int]) -> None:
    rows, summed, columns = sizes
    graph = parse(RELU.format(rows=rows, summed=summed, columns=columns))
    space = space_of(graph, BUILTIN["h100"])
    assert isinstance(space, Space)
    usual, best = space.quick(), space.top()
    assert usual is not None
    assert best is not None
    assert best[0].programs > 0
    assert best[1].seconds <= usual.seconds <= 1.03 * best[1].seconds
