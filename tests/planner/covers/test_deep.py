"""Long chains of operations: Python's stack does not grow with the length of a graph."""

from __future__ import annotations

import warnings

import pytest
import torch
from fusionplan import executors
from fusionplan.backend import planner
from fusionplan.planner.codegen.source import Program
from fusionplan.planner.config import Config
from fusionplan.planner.cures import FusionplanWarning
from fusionplan.planner.graph.graph import Graph, Ref
from fusionplan.planner.graph.ops import is_compute
from fusionplan.planner.groups.group import copies_in, subgraph
from fusionplan.planner.groups.legality import LARGEST_GROUP
from fusionplan.planner.lower import lower
from fusionplan.planner.trace.survey import dims_of_nodes
from fusionplan.planner.trace.trace import trace
from graphs import Builder
from oracle import DEVICE

DEPTH = 600


def viewed(b: Builder, x: Ref, times: int) -> Ref:
    for _ in range(times):
        x = b.op("unsqueeze.default", x, 0, shape=(1, 8, 16))
        x = b.op("squeeze.dim", x, 0, shape=(8, 16))
    return x


def chain(depth: int, views: int = 0) -> Graph:
    """Sums over the rows of so many tanh of x [8, 16], with pairs of views after each."""
    b = Builder()
    x = b.input(8, 16)
    for _ in range(depth):
        x = viewed(b, b.op("tanh.default", x), views)
    return b.graph(b.op("sum.dim_IntList", x, (1,), shape=(8,)))


@pytest.mark.parametrize("depth, views", [(DEPTH, 0), (LARGEST_GROUP - 1, 5)])
def test_a_long_chain_is_traced(depth: int, views: int) -> None:
    graph = chain(depth, views)
    values = trace(graph)
    assert len(values.values) == depth + 2  # the load and the sum beside them
    assert len(dims_of_nodes(graph).dims) == len(graph.nodes)


@pytest.mark.parametrize("reduction", ["held", "loop"])
def test_a_long_chain_is_one_kernel(reduction: str) -> None:
    config = Config((("x0", 4), ("r0", 16)), reduction=reduction)
    program = lower(chain(DEPTH), config)
    assert isinstance(program, Program)
    (kernel,) = program.kernels
    assert kernel.text.count("tanh(") >= DEPTH


def test_who_reads_a_value_is_found_behind_many_views() -> None:
    b = Builder()
    first = b.op("exp.default", b.input(8, 16))
    last = b.op("relu.default", viewed(b, first, DEPTH))
    graph = b.graph(last)
    assert subgraph(graph, (first.node,)).outputs == (first.node,)
    whole = tuple(range(1, len(graph.nodes)))
    assert subgraph(graph, whole).outputs == (last.node,)
    assert copies_in(graph, [whole, (first.node,)]) == [(first.node,)] * 2


@pytest.mark.dynamo
def test_a_long_chain_runs_in_groups_behind_torch_compile(tmp_path) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        for i in range(DEPTH):
            x = torch.tanh(x) if i % 2 else x * 1.01
        return x

    x = torch.linspace(-3, 3, 96, device=DEVICE).reshape(8, 12)
    options = {"on_miss": "model", "evidence": "any", "store": tmp_path / "none.db"}
    torch._dynamo.reset()
    fast = torch.compile(function, backend=planner, options=options)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", FusionplanWarning)  # nothing falls back
        torch.testing.assert_close(fast(x), function(x), rtol=1e-4, atol=1e-5)
    (executor,) = executors(fast)
    graph = executor.captured.graph
    sizes = [sum(is_compute(graph.nodes[n]) for n in g.nodes) for g in executor.plan.groups]
    assert sum(sizes) == DEPTH
    assert max(sizes) <= LARGEST_GROUP
    assert executor.kernels_per_call == len(sizes)
