"""Groups that a vendor's call computes: what is found of a function, and its numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from fusionplan.planner.graph.graph import Graph
from fusionplan.planner.lowerings.vendor import Equal, equals
from fusionplan.tuner.gate.check import check
from fusionplan.tuner.gate.reference import expected
from fusionplan.tuner.trial.evaluate import evaluate
from oracle import captured, whole_group

CPU = torch.device("cpu")
Function = Callable[..., torch.Tensor]


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


def found(function: Function, inputs: Sequence[torch.Tensor]) -> tuple[Graph, tuple[Equal, ...]]:
    group = whole_group(captured(function, inputs)[0].graph).graph
    return group, equals(group)


def the_call(graph: Graph, op: str):
    (node,) = (n for n in graph.nodes if n.op == f"aten.{op}.default")
    return node


def compared(function: Function, inputs: Sequence[torch.Tensor], name: str) -> Graph:
    """The only equal of a function, after its numbers were found as good as eager's."""
    whole, given = captured(function, inputs)
    part = whole_group(whole.graph)
    (only,) = equals(part.graph)
    assert only.name == name
    tensors = [given[whole.graph.inputs.index(i)] for i in part.inputs]
    assert [only.graph.nodes[i] for i in only.graph.inputs] == [
        part.graph.nodes[i] for i in part.graph.inputs
    ]
    actual = evaluate(only.graph, tensors, CPU)
    assert check(expected(part.graph, tensors, CPU), actual, "given") is None
    return only.graph
