"""A group of several products is cut between them where its parts are cheaper."""

import pytest
from fusionplan.planner.bitsets import bits, bitset
from fusionplan.planner.costs.device import builtin
from fusionplan.planner.covers.between_products import (
    cut_between_products,
    stages_of,
    with_epilogues,
)
from fusionplan.planner.covers.candidates import CandidateGroup, Ground
from fusionplan.planner.graph.parse import parse

T = "float32[64, 64]"
BLOCK = f"""
%0 = input() : {T}
%1 = input() : {T}
%2 = aten.mm.default(%0, %1) : {T}
%3 = aten.relu.default(%2) : {T}
%4 = aten.mm.default(%3, %1) : {T}
%5 = aten.exp.default(%1) : {T}
%6 = aten.add.Tensor(%4, %5) : {T}
%7 = aten.mm.default(%6, %1) : {T}
%8 = aten.add.Tensor(%7, %3) : {T}
return %8
"""
WHOLE = bitset([2, 3, 4, 5, 6, 7, 8])
STAGES = [bitset([2, 3]), bitset([4, 5, 6]), bitset([7, 8])]
BEHIND = STAGES[1] | STAGES[2]


def test_a_stage_is_a_product_with_what_follows_it():
    assert stages_of(Ground(parse(BLOCK), builtin("h200")), WHOLE) == STAGES


@pytest.mark.parametrize(
    "seconds, expected",
    [
        ({WHOLE: 4.0}, STAGES),
        ({WHOLE: 2.9}, [WHOLE]),
        ({WHOLE: None, STAGES[0] | STAGES[1]: 1.5}, [STAGES[0] | STAGES[1], STAGES[2]]),
        ({WHOLE: 3.5, STAGES[1]: None, BEHIND: 2.0}, [STAGES[0], BEHIND]),
    ],
)
def test_the_cheapest_parts_are_taken(seconds: dict[int, float | None], expected: list[int]):
    ground = Ground(parse(BLOCK), builtin("h200"))

    def price(group: CandidateGroup) -> float | None:
        return seconds.get(group.nodes, 1.0 if group.nodes in STAGES else None)

    found = cut_between_products(ground, [ground.candidate(WHOLE)], price)
    assert [group.nodes for group in found] == expected


IMAGE, FILTER, ROWS = "bfloat16[8, 64, 4, 4]", "bfloat16[64, 1, 3, 3]", "bfloat16[128, 64]"
CONVOLVED = f"""
%0 = input() : {IMAGE}
%1 = input() : {FILTER}
%2 = input() : bfloat16[64, 64]
%3 = aten.convolution.default(%0, %1, None, (1, 1), (1, 1), (1, 1), False, (0, 0), 64) : {IMAGE}
%4 = aten.exp.default(%2) : bfloat16[64, 64]
%5 = aten.relu.default(%3) : {IMAGE}
%6 = aten.view.default(%5, (128, 64)) : {ROWS}
%7 = aten.mm.default(%6, %4) : {ROWS}
%8 = aten.relu.default(%7) : {ROWS}
return %8
"""


@pytest.mark.parametrize("joined_s, expected", [(0.5, [[3, 5], [4, 7, 8]]), (3.0, None)])
def test_a_lone_convolution_takes_its_epilogue_from_the_product(
    joined_s: float, expected: list[list[int]] | None
):
    """What the product reads of others stays with it. A view is of no group by itself."""
    ground = Ground(parse(CONVOLVED), builtin("h200"))
    alone, product = bitset([3]), ground.compute & ~bitset([3])

    def price(group: CandidateGroup) -> float:
        return joined_s if group.nodes >> 3 & 1 and group.nodes != alone else 1.0

    start = [ground.candidate(alone), ground.candidate(product)]
    found = with_epilogues(ground, start, price)
    own = [[n for n in bits(group.nodes) if n != 6] for group in found]
    assert sorted(own) == sorted(expected or [[3], [4, 5, 7, 8]])
