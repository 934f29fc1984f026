"""What stands behind a product goes to the kernel that reads it, where that is faster."""

from fusionplan.planner.bitsets import bits, bitset
from fusionplan.planner.costs.device import builtin
from fusionplan.planner.covers import pricing
from fusionplan.planner.covers.candidates import CandidateGroup, Ground
from fusionplan.planner.covers.later_reductions import with_readers
from fusionplan.planner.graph.graph import Graph
from fusionplan.planner.graph.parse import parse
from fusionplan.planner.groups.group import GroupContent, with_free_nodes

H100 = builtin("h100")

HEADS = "bfloat16[8, 14, 1024, 64] strides [917504, 64, 896, 1]"
HALF = "bfloat16[8, 14, 1024, 32] strides [917504, 64, 896, 1]"

ROTARY = f"""
%0 = input() : bfloat16[8192, 896]
%1 = input() : bfloat16[896, 896]
%2 = input() : bfloat16[1024, 64]
%3 = input() : bfloat16[1024, 64]
%4 = aten.mm.default(%0, %1) : bfloat16[8192, 896]
%5 = aten.view.default(%4, (8, 1024, 14, 64)) : bfloat16[8, 1024, 14, 64]
%6 = aten.permute.default(%5, (0, 2, 1, 3)) : {HEADS}
%7 = aten.mul.Tensor(%6, %2) : {HEADS}
%8 = aten.slice.Tensor(%6, 3, 0, 32) : {HALF}
%9 = aten.slice.Tensor(%6, 3, 32, 64) : {HALF}
%10 = aten.neg.default(%9) : bfloat16[8, 14, 1024, 32] strides [458752, 32, 448, 1]
%11 = aten.cat.default((%10, %8), -1) : bfloat16[8, 14, 1024, 64]
%12 = aten.mul.Tensor(%11, %3) : bfloat16[8, 14, 1024, 64]
%13 = aten.add.Tensor(%7, %12) : {HEADS}
return %13
"""


def moved(graph: Graph, *start: tuple[int, ...]) -> list[int]:
    """The cover that these groups lead to, by their floors alone."""
    ground = Ground(graph, H100)
    groups = [ground.candidate(bitset(nodes)) for nodes in start]
    return sorted(each.nodes for each in with_readers(ground, groups, lambda each: each.floor_s))


def test_both_terms_of_a_rotary_embedding_are_of_one_kernel():
    graph = parse(ROTARY)
    found = moved(graph, (4, 7), (10, 11, 12, 13))
    assert found == [bitset([4]), bitset([7, 10, 11, 12, 13])]


def test_a_product_that_nobody_else_reads_keeps_what_follows():
    lines = ROTARY.strip().splitlines()[:8]
    graph = parse("\n".join([*lines, f"%8 = aten.exp.default(%7) : {HEADS}", "return %8"]))
    assert moved(graph, (4, 7), (8,)) == [bitset([4, 7]), bitset([8])]


RESIDUAL = """
%0 = input() : bfloat16[6144, 1024]
%1 = input() : bfloat16[1024, 1024]
%2 = input() : bfloat16[6144, 1024]
%3 = aten.mm.default(%0, %1) : bfloat16[6144, 1024]
%4 = aten.add.Tensor(%3, %2) : bfloat16[6144, 1024]
%5 = aten._to_copy.default(%4, dtype=float32) : float32[6144, 1024]
%6 = aten.mul.Tensor(%5, %5) : float32[6144, 1024]
%7 = aten.sum.dim_IntList(%6, (1), True) : float32[6144, 1]
%8 = aten.rsqrt.default(%7) : float32[6144, 1]
%9 = aten.mul.Tensor(%5, %8) : float32[6144, 1024]
%10 = prims.convert_element_type.default(%9, bfloat16) : bfloat16[6144, 1024]
return %10, %4
"""


def test_a_residual_sum_goes_to_the_norm_where_the_model_says_so():
    """The vendor's product takes 22 us, ours with the sum 35; the norm alone 15, with it 24."""
    graph = parse(RESIDUAL)
    ground = Ground(graph, H100)

    def price(group: CandidateGroup) -> float | None:
        part = GroupContent.of(graph, with_free_nodes(graph, bits(group.nodes)))
        return pricing.price_s(part, H100, single=group.nodes.bit_count() == 1)

    norm = bitset([6, 7, 8, 9, 10])
    start = [ground.candidate(bitset([3, 4])), ground.candidate(norm)]
    found = with_readers(ground, start, price)
    assert sorted(each.nodes for each in found) == [bitset([3]), norm | bitset([4])]
