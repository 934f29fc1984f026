"""Views of a tensor in memory that are only other strides and another first element: diagonals,
sliding windows, and slices behind a reshape."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .graph import Arg, Graph, Node, Ref
from .ops import View, is_input, overload, row


@dataclass(frozen=True, slots=True)
class Strided:
    """Element (i, j, ...) lies `offset` + i * stride[0] + j * stride[1] + ... elements behind the
    first one of the input."""

    input: int
    offset: int
    stride: tuple[int, ...]


def strided(graph: Graph, node: Node) -> Strided | None:
    """Where the elements of a view of an input lie; None where views alone do not lead there, or
    where one of them copies."""
    chain = [node]
    while not is_input(chain[-1]):
        if not isinstance(row(chain[-1]), View) or not chain[-1].inputs:
            return None
        chain.append(graph.nodes[chain[-1].inputs[0]])
    source, *views = reversed(chain)
    tensor = source.type
    if tensor is None:
        return None
    start = torch.empty_strided(tensor.shape, tensor.stride, dtype=torch.int8, device="meta")
    seen, memory = start, start.untyped_storage()._cdata
    for view in views:
        try:
            named = {name: _value(value, seen) for name, value in view.kwargs}
            seen = overload(view.op)(*(_value(a, seen) for a in view.args), **named)
        except RuntimeError:  # such a view is none of these strides
            return None
        if seen.untyped_storage()._cdata != memory:
            return None
    return Strided(source.id, int(seen.storage_offset()), tuple(map(int, seen.stride())))


def _value(argument: Arg, source: torch.Tensor) -> object:
    if isinstance(argument, Ref):
        return source
    return list(argument) if isinstance(argument, tuple) else argument
