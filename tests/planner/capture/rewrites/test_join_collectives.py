"""Sums of collectives: one in place of several, where that is the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fusionplan.planner.capture.capture import tidied
from fusionplan.planner.capture.collectives import process_group
from torch import fx

aten = torch.ops.aten
named = torch.ops._c10d_functional

Traced = tuple[fx.GraphModule, Any]


def traced(build: Callable[..., Any], count: int = 3) -> fx.GraphModule:
    """A graph of `count` inputs [4, 8], with values in its metadata as far as they are read."""
    graph = fx.Graph()
    inputs = [graph.placeholder(f"x{i}") for i in range(count)]
    results = build(graph, *inputs)
    graph.output(results if isinstance(results, tuple) else (results,))
    for node in graph.nodes:
        node.meta["val"] = torch.empty(4, 8, device="meta")
    return fx.GraphModule(torch.nn.Module(), graph)


def summed(graph: fx.Graph, x: fx.Node, *how: Any, target: Any = None) -> fx.Node:
    """x over all ranks, waited for."""
    how = how or ("sum", "g")
    made = graph.call_function(target or named.all_reduce.default, (x, *how))
    return graph.call_function(named.wait_tensor.default, (made,))


def added(graph: fx.Graph, *values: fx.Node, **options: Any) -> fx.Node:
    total = values[0]
    for value in values[1:]:
        total = graph.call_function(aten.add.Tensor, (total, value), options)
    return total


def collectives(gm: fx.GraphModule, numerics: Any = "fast") -> int:
    found = tidied(gm, numerics)
    found.graph.lint()
    return sum(process_group(node) is not None for node in found.graph.nodes)


def three(graph: fx.Graph, *inputs: fx.Node) -> fx.Node:
    return added(graph, *(summed(graph, x) for x in inputs))


def test_sums_over_ranks_are_added_before_they_are_sent() -> None:
    found = tidied(traced(three))
    names = [str(n.target) for n in found.graph.nodes if n.op == "call_function"]
    assert names == ["aten.add.Tensor"] * 2 + [
        "_c10d_functional.all_reduce.default",
        "_c10d_functional.wait_tensor.default",
    ]


def test_what_is_added_is_all_of_it() -> None:
    """Of two ranks that hold the same: an all-reduce doubles."""
    table = {named.all_reduce.default: lambda x, *_: 2 * x, named.wait_tensor.default: lambda x: x}

    class TwoRanks(fx.Interpreter):
        def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
            return table.get(target, target)(*args, **kwargs)

    inputs = torch.randn(3, 4, 8)
    gm = traced(three)
    (before,), (after,) = (TwoRanks(each).run(*inputs) for each in (gm, tidied(gm)))
    torch.testing.assert_close(after, before)
    torch.testing.assert_close(after, 2 * inputs.sum(0))


def test_eagers_roundings_are_kept() -> None:
    assert collectives(traced(three), "eager") == 3


OTHERS: dict[str, Callable[..., Any]] = {
    "another group": lambda g, x, y, z: added(g, summed(g, x), summed(g, y, "sum", "h")),
    "a maximum": lambda g, x, y, z: added(g, summed(g, x, "max", "g"), summed(g, y, "max", "g")),
    "another factor": lambda g, x, y, z: added(g, summed(g, x), summed(g, y), alpha=2),
    "one rank's own": lambda g, x, y, z: added(g, summed(g, x), summed(g, y, "sum", "h"), z),
    "written in place": lambda g, x, y, z: added(
        g, *(summed(g, v, target=named.all_reduce_.default) for v in (x, y))
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_not_the_same_stays(name: str) -> None:
    assert collectives(traced(OTHERS[name])) == 2


def test_a_sum_that_others_read_stays() -> None:
    def build(graph: fx.Graph, x: fx.Node, y: fx.Node, z: fx.Node) -> Any:
        first = summed(graph, x)
        return added(graph, first, summed(graph, y)), first

    assert collectives(traced(build)) == 2


def test_inputs_of_another_type_stay() -> None:
    gm = traced(lambda g, x, y, z: added(g, summed(g, x), summed(g, y)))
    next(iter(gm.graph.nodes)).meta["val"] = torch.empty(4, 8, dtype=torch.float16, device="meta")
    assert collectives(gm) == 2


def test_means_and_scattered_sums_are_linear_too() -> None:
    scattered = {"target": named.reduce_scatter_tensor.default}
    for how, options in ((("avg", "g"), {}), (("sum", 2, "g"), scattered)):

        def build(graph: fx.Graph, *inputs: fx.Node, how=how, options=options) -> fx.Node:  # type: ignore[no-untyped-def]
            return added(graph, *(summed(graph, x, *how, **options) for x in inputs))

        assert collectives(traced(build)) == 1
