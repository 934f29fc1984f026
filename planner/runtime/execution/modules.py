"""A graph of the planner as the FX graph that an executor wants."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from ...capture.capture import Captured
from ...errors import PlanError
from ...graph.graph import INPUT, Arg, Graph, Ref, Symbol, TensorType
from ...graph.ops import overload


def captured_of(
    graph: Graph,
    device: torch.device,
    inputs_alone: bool = False,
    constants: Mapping[int, torch.Tensor] = MappingProxyType({}),
) -> Captured:
    """The graph with an FX graph that computes it on a device. inputs_alone: other nodes have no
    fake values, which take as long as all else and only Inductor reads. constants: by node. Raises
    PlanError for a node that is no operator."""
    made, root = fx.Graph(), torch.nn.Module()
    nodes: list[fx.Node] = []
    with FakeTensorMode() as mode:
        for node in graph.nodes:
            if node.op == INPUT:
                new = made.placeholder(node.name)
            elif node.id in constants:
                root.register_buffer(f"constant{node.id}", constants[node.id])
                new = made.get_attr(f"constant{node.id}")
            else:
                args = tuple(_argument(a, nodes, device) for a in node.args)
                kwargs = {k: _argument(v, nodes, device) for k, v in node.kwargs}
                new = made.call_function(_overload(node.op), args, kwargs)
            left_out = inputs_alone and node.op != INPUT
            typed = None if left_out else node.type
            new.meta["val"] = None if typed is None else _fake(typed, device, mode)
            nodes.append(new)
    made.output(tuple(None if o is None else nodes[o] for o in graph.outputs))
    return Captured(fx.GraphModule(root, made), graph, device, tuple(nodes))


def _overload(name: str) -> Any:
    if name == "operator.getitem":  # One of the results of an operation.
        return operator.getitem
    try:
        return overload(name)
    except (AttributeError, ValueError) as error:
        raise PlanError(f"{name} is no operator that can run by itself") from error


def _argument(value: Arg, nodes: Sequence[fx.Node], device: torch.device) -> Any:
    if isinstance(value, Ref):
        return nodes[value.node]
    if isinstance(value, tuple):
        return [_argument(v, nodes, device) for v in value]
    if not isinstance(value, Symbol):
        return value
    if value.kind == "device":
        return device if value.name == "graph" else torch.device(value.name)
    if value.kind in ("dtype", "layout", "memory_format"):
        found = getattr(torch, value.name, None)
        if isinstance(found, (torch.dtype, torch.layout, torch.memory_format)):
            return found
    raise PlanError(f"an operation with a {value.kind} cannot run by itself")


def _fake(tensor: TensorType, device: torch.device, mode: FakeTensorMode) -> torch.Tensor:
    dtype = getattr(torch, tensor.dtype)
    with mode:
        return torch.empty_strided(tensor.shape, tensor.stride, dtype=dtype, device=device)
