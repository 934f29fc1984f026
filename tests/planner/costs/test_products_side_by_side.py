"""Products of the same rows by two matrices in one kernel, as an H100 took them."""

import math
from dataclasses import replace

import pytest
from fusionplan.planner.costs.device import H100
from fusionplan.planner.graph.parse import parse
from fusionplan.planner.groups.group import GroupContent
from fusionplan.planner.lowerings.triton import space_for

GATED = """
%0 = input() : bfloat16[{m}, {k}]
%1 = input() : bfloat16[{n}, {k}]
%2 = input() : bfloat16[{n}, {k}]
%3 = aten.permute.default(%1, (1, 0)) : bfloat16[{k}, {n}] strides [1, {k}]
%4 = aten.mm.default(%0, %3) : bfloat16[{m}, {n}]
%5 = aten._to_copy.default(%4, dtype=float32) : float32[{m}, {n}]
%6 = aten.sigmoid.default(%5) : float32[{m}, {n}]
%7 = aten.mul.Tensor(%5, %6) : float32[{m}, {n}]
%8 = prims.convert_element_type.default(%7, bfloat16) : bfloat16[{m}, {n}]
%9 = aten.permute.default(%2, (1, 0)) : bfloat16[{k}, {n}] strides [1, {k}]
%10 = aten.mm.default(%0, %9) : bfloat16[{m}, {n}]
%11 = aten.mul.Tensor(%8, %10) : bfloat16[{m}, {n}]
return %11
"""
"""silu(x @ gate) * (x @ up)."""

TIMED = {
    (8192, 896, 4864): [
        ((64, 128, 128, 8, 4, 0), 254.0),
        ((64, 128, 128, 8, 3, 0), 259.9),
        ((32, 128, 128, 8, 5, 0), 282.6),
        ((64, 128, 128, 8, 3, 132), 286.9),
        ((64, 128, 64, 8, 4, 0), 316.2),
    ],
    (8192, 512, 1536): [
        ((64, 128, 64, 8, 3, 0), 52.7),
        ((64, 256, 64, 8, 3, 264), 70.8),
    ],
    (8192, 2048, 8192): [
        ((64, 128, 128, 8, 3, 0), 823.9),
        ((64, 128, 128, 8, 4, 0), 828.3),
        ((64, 256, 64, 8, 3, 0), 938.3),
        ((64, 128, 64, 8, 4, 0), 1018.6),
        ((64, 128, 128, 8, 3, 132), 1031.8),
    ],
}
"""By m, k and n: blocks of k, m and n, warps, stages and programs; microseconds, code of 26."""


@pytest.mark.parametrize("sizes", TIMED)
def test_two_matrices_side_by_side_are_one_product(sizes: tuple[int, int, int]) -> None:
    m, k, n = sizes
    graph = parse(GATED.format(m=m, k=k, n=n))
    space = space_for(GroupContent.of(graph, tuple(range(3, 12))), H100)
    base, _ = space.top()
    for (summed, rows, columns, warps, stages, programs), measured_us in TIMED[sizes]:
        config = replace(
            base,
            blocks=(("r0", summed), ("x0", rows), ("x1", columns)),
            num_warps=warps,
            num_stages=stages,
            programs=programs,
            subtiles=1,
            group=8,
            access="descriptor",
        )
        cost = space.judge(config)
        assert cost.seconds * 1e6 == pytest.approx(measured_us, rel=0.16), config


SPILLED = {(64, 3): 833.5, (128, 1): 673.2, (32, 4): 1471.6}
"""Microseconds of 8192 x 896 x 4864 by 256 x 128 and 8 warps: by what is summed in a turn, and
stages."""


def test_a_result_without_room_is_spilled_in_every_turn() -> None:
    graph = parse(GATED.format(m=8192, k=896, n=4864))
    space = space_for(GroupContent.of(graph, tuple(range(3, 12))), H100)
    base, best = space.top()
    any_s = replace(space, hopeless_s=math.inf)
    for (summed, stages), measured_us in SPILLED.items():
        config = replace(
            base,
            blocks=(("r0", summed), ("x0", 256), ("x1", 128)),
            num_warps=8,
            num_stages=stages,
            programs=0,
            subtiles=1,
            group=8,
            access="descriptor",
        )
        assert any_s.judge(config).seconds * 1e6 == pytest.approx(measured_us, rel=0.16), config
        assert space.judge(config).rule == "slow"
    assert best.seconds < 300e-6
