"""Groups by a rule, where there was no time to ask the cost model."""

import pytest
from fusionplan.planner.costs.device import H200
from fusionplan.planner.covers.by_rule import HELD, groups_by_rule
from fusionplan.planner.covers.cover import best_cuts, covers, partition
from fusionplan.planner.covers.pricing import seconds
from fusionplan.planner.errors import Refusal
from fusionplan.planner.graph.graph import Graph
from fusionplan.planner.graph.ops import is_compute
from fusionplan.planner.graph.parse import parse
from fusionplan.planner.groups.group import GroupContent, Groups
from fusionplan.planner.groups.legality import has_nest


def operations(graph: Graph) -> list[list[str]]:
    """Of each group."""
    groups = groups_by_rule(graph)
    working = [[n for n in nodes if is_compute(graph.nodes[n])] for nodes in groups]
    every = [n for nodes in working for n in nodes]
    assert sorted(every) == [n.id for n in graph.nodes if is_compute(n)]
    for nodes in groups:
        assert not isinstance(has_nest(GroupContent.of(graph, nodes)), Refusal)
    return [[graph.nodes[n].op.split(".")[1] for n in nodes] for nodes in working]


def normalised(rows: int, columns: int, dim: int) -> Graph:
    """Less the mean of a dimension, after a product with two."""
    kept = [1 if d == dim % 2 else n for d, n in enumerate((rows, columns))]
    return parse(f"""
        %0 = input() : float32[{rows}, {columns}]
        %1 = aten.mul.Tensor(%0, 2.0) : float32[{rows}, {columns}]
        %2 = aten.sum.dim_IntList(%1, ({dim}), True) : float32[{kept[0]}, {kept[1]}]
        %3 = aten.mul.Tensor(%2, 0.001) : float32[{kept[0]}, {kept[1]}]
        %4 = aten.sub.Tensor(%1, %3) : float32[{rows}, {columns}]
        %5 = aten.relu.default(%4) : float32[{rows}, {columns}]
        return %5
    """)


def test_what_a_program_holds_stays_with_what_reads_its_sum():
    whole = [["mul", "sum", "mul", "sub", "relu"]]
    assert operations(normalised(4096, 1024, -1)) == whole
    assert operations(normalised(4096, 1024, 0)) == whole


@pytest.mark.parametrize("rows, columns, dim", [(2 * HELD, 256, 0), (64, 2 * HELD, -1)])
def test_what_reads_a_long_sum_is_a_kernel_of_its_own(rows: int, columns: int, dim: int):
    """The first kernel adds, and its small result goes on there as far as that stays small."""
    assert operations(normalised(rows, columns, dim)) == [["mul", "sum", "mul"], ["sub", "relu"]]


def test_a_mean_and_the_variance_behind_it_are_one_kernel():
    """The second sum reads what the first one made, but nothing large is stored in between."""
    wide, narrow = "float32[32768, 256]", "float32[1, 256]"
    graph = parse(f"""
        %0 = input() : {wide}
        %1 = aten.sum.dim_IntList(%0, (0), True) : {narrow}
        %2 = aten.div.Tensor(%1, 32768) : {narrow}
        %3 = aten.sub.Tensor(%0, %2) : {wide}
        %4 = aten.mul.Tensor(%3, %3) : {wide}
        %5 = aten.sum.dim_IntList(%4, (0), True) : {narrow}
        %6 = aten.rsqrt.default(%5) : {narrow}
        %7 = aten.sub.Tensor(%0, %2) : {wide}
        %8 = aten.mul.Tensor(%7, %6) : {wide}
        return %8
    """)
    both = ["sum", "div", "sub", "mul", "sum", "rsqrt"]
    assert operations(graph) == [both, ["sub", "mul"]]


def test_a_product_is_left_to_the_vendor():
    graph = parse("""
        %0 = input() : bfloat16[512, 512]
        %1 = aten.relu.default(%0) : bfloat16[512, 512]
        %2 = aten.mm.default(%1, %0) : bfloat16[512, 512]
        %3 = aten.add.Tensor(%2, %1) : bfloat16[512, 512]
        %4 = aten.tanh.default(%3) : bfloat16[512, 512]
        return %4
    """)
    assert operations(graph) == [["relu"], ["mm"], ["add", "tanh"]]


def test_two_sums_of_a_backward_pass_are_one_kernel():
    """Of a batch norm: both read what the relu lets through."""
    wide, narrow = "float32[32768, 256]", "float32[256]"
    graph = parse(f"""
        %0 = input() : {wide}
        %1 = input() : {wide}
        %2 = input() : {narrow}
        %3 = aten.relu.default(%0) : {wide}
        %4 = aten.sum.dim_IntList(%3, (0)) : {narrow}
        %5 = aten.mul.Tensor(%3, %1) : {wide}
        %6 = aten.sum.dim_IntList(%5, (0)) : {narrow}
        %7 = aten.mul.Tensor(%6, %2) : {narrow}
        %8 = aten.mul.Tensor(%1, %7) : {wide}
        %9 = aten.sub.Tensor(%3, %8) : {wide}
        %10 = aten.sub.Tensor(%9, %4) : {wide}
        return %10
    """)
    found = operations(graph)
    assert found == [["relu", "sum", "mul", "sum", "mul"], ["mul", "sub", "sub"]]
    apart = sum(seconds(GroupContent.of(graph, (n.id,)), H200) for n in graph.nodes if n.inputs)
    own = sum(seconds(GroupContent.of(graph, n), H200) for n in groups_by_rule(graph))
    assert own < 0.5 * apart


@pytest.mark.parametrize("rows, columns, is_by_rule", [(4096, 1024, True), (2 * HELD, 256, False)])
def test_a_search_sets_out_from_the_cheaper_start(rows: int, columns: int, is_by_rule: bool):
    """By the model one kernel is better where a program holds a column, which growing edge by edge
    does not find; of longer columns what has grown is better."""
    graph = normalised(rows, columns, 0)

    def all_seconds(groups: Groups) -> float:
        return sum(seconds(GroupContent.of(graph, nodes), H200) for nodes in groups)

    grown = all_seconds(grown_groups(graph))
    by_rule = all_seconds(groups_by_rule(graph))
    assert (by_rule < 0.95 * grown) == is_by_rule
    assert grown < 0.95 * by_rule or is_by_rule
    chosen = covers(graph, H200, 1)[0].chosen
    assert chosen.greedy_s == pytest.approx(min(grown, by_rule))


def grown_groups(graph: Graph) -> Groups:
    """The groups that grow edge by edge."""
    return partition(graph, best_cuts(graph, H200))
