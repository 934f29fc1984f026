"""Covers in which a node is computed by several groups: the plan, its run, and what is told."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from corpus import Function, corpus_graph, graph_of, tensor
from fusionplan.planner.capture.capture import capture
from fusionplan.planner.config import Config
from fusionplan.planner.costs.device import H200
from fusionplan.planner.covers.candidates import Ground
from fusionplan.planner.covers.cover import modelled_plan
from fusionplan.planner.explain_plan import explain_plan
from fusionplan.planner.explanation import Explanation
from fusionplan.planner.graph.graph import Graph, Node, Ref, TensorType, key
from fusionplan.planner.groups.group import copies_in, is_copied, subgraph
from fusionplan.planner.module import print_module
from fusionplan.planner.plan import GroupPlan, Plan
from fusionplan.planner.runtime.execution.executor import Executor
from fusionplan.planner.trace.precision import is_stored_beside_its_statistic, rounds
from oracle import DEVICE, assert_close
from torch.fx.experimental.proxy_tensor import make_fx

T = TensorType((8, 16), (16, 1), "float32")


def fork(*outputs: int) -> Graph:
    """exp(x), read by relu and by neg."""
    nodes = (
        Node(0, "x", "input", type=T),
        Node(1, "exp", "aten.exp.default", (Ref(0),), type=T),
        Node(2, "relu", "aten.relu.default", (Ref(1),), type=T),
        Node(3, "neg", "aten.neg.default", (Ref(1),), type=T),
    )
    return Graph(nodes, outputs)


def test_who_stores_a_value_that_several_compute() -> None:
    assert copies_in(fork(2, 3), [(1, 2), (1, 3)]) == [(1,), (1,)]
    assert copies_in(fork(2, 3), [(1, 2), (3,)]) == [(), ()]
    assert copies_in(fork(1, 2, 3), [(1, 2), (1, 3)]) == [(), (1,)]
    assert copies_in(fork(1, 2, 3), [(1, 3), (1, 2)]) == [(), (1,)]
    assert copies_in(fork(2, 3), [(1,), (2,), (1, 3)]) == [(), (), (1,)]


def test_a_copy_is_no_output() -> None:
    graph = fork(2, 3)
    assert subgraph(graph, (1, 2)).outputs == (1, 2)
    assert subgraph(graph, (1, 2), (1,)).outputs == (2,)


@pytest.mark.interpreter
def test_a_plan_that_computes_a_node_twice_runs_and_stores_it_nowhere() -> None:
    def function(x):
        y = torch.exp(x)
        return y.sum(0), y.sum(1)

    x = torch.randn(64, 48, device=DEVICE)
    captured = capture(make_fx(function)(x))
    exp, columns, rows = (n.id for n in captured.graph.nodes if n.op != "input")
    groups = ((exp, columns), (exp, rows))
    copies = copies_in(captured.graph, groups)
    made = tuple(
        GroupPlan(
            nodes,
            "triton",
            key(subgraph(captured.graph, nodes, own).graph),
            Config((("x0", 4),), num_warps=1),
            copies=own,
        )
        for nodes, own in zip(groups, copies, strict=True)
    )
    plan = Plan(key(captured.graph), "cpu", (), "modelled", made)
    assert Plan.from_json(plan.to_json()) == plan
    executor = Executor(captured, plan, x.device)
    assert executor.kernels_per_call == 2
    assert executor.text.count("empty(") == 2  # the two sums: nothing passes between the kernels
    exact = [value.double() for value in function(x.double())]
    for mine, ideal, own in zip(executor(x), exact, function(x), strict=True):
        assert_close(mine, ideal, own, "sum")


def test_what_is_told_of_a_node_that_is_computed_twice() -> None:
    graph = corpus_graph("two_axes")
    plan = modelled_plan(graph, H200)
    told = explain_plan(graph, plan, H200)
    assert Explanation.from_json(told.to_json()) == told
    first, second = told.groups
    assert [(o.name, o.copied) for o in first.operations] == [("exp_1", True), ("sum_2", False)]
    assert [(o.name, o.copied) for o in second.operations] == [("exp_1", True), ("sum_3", False)]
    assert [t.name for t in second.inputs] == ["input_0"]
    assert not told.alone
    (boundary,) = told.boundaries  # of the two sums, which read the same value
    assert plan.predicted is not None
    assert boundary.apart_s is not None
    assert plan.predicted <= boundary.apart_s < (boundary.together_s or 0.0)
    assert told.chosen == plan.chosen
    assert print_module(graph, plan).count("def group_") == 2


@pytest.mark.parametrize("shown", [True, False])
def test_what_is_compared_with_its_maximum_is_computed_once(shown: bool) -> None:
    """Shown to the caller it is rounded, and its maximum is of rounded numbers; of a copy it is
    of others."""
    narrow, row = TensorType((8, 16), (16, 1), "bfloat16"), TensorType((8,), (1,), "bfloat16")
    nodes = (
        Node(0, "x", "input", type=narrow),
        Node(1, "exp", "aten.exp.default", (Ref(0),), type=narrow),
        Node(2, "abs", "aten.abs.default", (Ref(1),), type=narrow),
        Node(3, "amin", "aten.amin.default", (Ref(2), (1,)), type=row),
        Node(4, "neg", "aten.neg.default", (Ref(1),), type=narrow),
    )
    graph = Graph(nodes, (3, 4, *(1,) * shown))
    assert is_stored_beside_its_statistic(graph, nodes[1]) == shown
    assert rounds(graph, nodes[1]) == shown
    cheap = Ground(graph, H200).cheap
    assert (cheap >> 1 & 1, cheap >> 4 & 1) == (not shown, 1)


@pytest.mark.parametrize("outputs", [(1, 3), (1, 5), (1,), (3,), (1, 4)])
def test_what_is_stored_beside_its_mean_is_rounded_before(outputs: tuple[int, ...]) -> None:
    """The mean, or what is made of it, is one of the numbers that a gradient will read beside it.
    A mean that nobody else reads is better of those that are not rounded."""
    narrow = TensorType((8, 16), (16, 1), "bfloat16")
    wide, row = replace(narrow, dtype="float32"), TensorType((8, 1), (1, 1), "float32")
    nodes = (
        Node(0, "x", "input", type=narrow),
        Node(1, "exp", "aten.exp.default", (Ref(0),), type=narrow),
        Node(2, "cast", "aten._to_copy.default", (Ref(1),), type=wide),
        Node(3, "sum", "aten.sum.dim_IntList", (Ref(2), (1,), True), type=row),
        Node(4, "sub", "aten.sub.Tensor", (Ref(2), Ref(3)), type=wide),
        Node(5, "sqrt", "aten.sqrt.default", (Ref(3),), type=row),
    )
    graph = Graph(nodes, outputs)
    assert rounds(graph, nodes[1]) == (outputs in ((1, 3), (1, 5)))


@pytest.mark.dynamo
def test_numbers_of_16_bits_are_spread_where_they_are_read() -> None:
    """A float32 copy of them is no value of its own: two kernels that read it read 16 bits."""

    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        wide = x.float()
        return torch.digamma(wide * 2) + 1, (wide @ w.float()).bfloat16()

    narrow = [tensor(8, 16, dtype=torch.bfloat16), tensor(16, 16, dtype=torch.bfloat16)]
    graph = graph_of(function, narrow)
    spread = widened(graph)
    assert len(spread) == 2
    assert all(is_copied(graph, node) for node in spread)


def widened(graph: Graph) -> list[int]:
    casts = [n for n in graph.nodes if "_to_copy" in n.op and n.type]
    return [n.id for n in casts if n.type and n.type.dtype == "float32"]


@pytest.mark.dynamo
@pytest.mark.parametrize(
    "function",
    [
        lambda x: (y := x.float(), y + 1),
        lambda x: (x.float().view(-1), x + 1),
        lambda x: (torch.sort(x.float())[0], x + 1),
    ],
)
def test_spread_numbers_that_are_shown_are_stored(function: Function) -> None:
    graph = graph_of(function, [tensor(8, 16, dtype=torch.bfloat16)])
    (spread,) = widened(graph)
    assert not is_copied(graph, spread)
