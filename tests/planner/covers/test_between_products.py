"""A group of several products is cut between them where its parts are cheaper."""

import pytest
from fusionplan.planner.bitsets import bitset
from fusionplan.planner.costs.device import builtin
from fusionplan.planner.covers.between_products import cut_between_products, stages_of
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
