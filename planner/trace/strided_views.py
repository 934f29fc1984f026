"""Views of a tensor in memory that are only other strides and another first element: diagonals,
sliding windows, and slices behind a reshape."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ..graph.graph import Arg, Graph, Node, Ref
from ..graph.ops import View, is_input, overload, row
from ..graph.sizes import PROBES, at_probe, plain, size, varies


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
    if source.type is None:
        return None
    if not views:
        return Strided(source.id, 0, source.type.stride)
    found = _seen(source, views, plain)
    if found is None:
        return None
    types = (n.type for n in chain if n.type is not None)
    if not any(varies(n) for t in types for n in (*t.shape, *t.stride)):
        return Strided(source.id, found[0], tuple(found[1:]))
    probes = [_seen(source, views, partial(at_probe, probe=p)) for p in range(PROBES)]
    if None not in probes:
        columns = zip(found, *(p for p in probes if p is not None), strict=True)
        found = [size(number, others) for number, *others in columns]
    return Strided(source.id, found[0], tuple(found[1:]))


def _seen(source: Node, views: list[Node], number: Callable[[Any], Any]) -> list[int] | None:
    """Offset and strides of the last of some views, with their numbers as `number` gives them."""
    tensor = source.type
    assert tensor is not None
    shape, stride = (tuple(map(number, each)) for each in (tensor.shape, tensor.stride))
    try:
        seen = torch.empty_strided(shape, stride, dtype=torch.int8, device="meta")
        memory = seen.untyped_storage()._cdata
        for view in views:
            named = {name: _value(value, seen, number) for name, value in view.kwargs}
            seen = overload(view.op)(*(_value(a, seen, number) for a in view.args), **named)
            if seen.untyped_storage()._cdata != memory:
                return None
    except RuntimeError:  # such a view is none of these strides
        return None
    return [int(seen.storage_offset()), *map(int, seen.stride())]


def _value(argument: Arg, source: torch.Tensor, number: Callable[[Any], Any]) -> object:
    if isinstance(argument, Ref):
        return source
    if isinstance(argument, tuple):
        return [number(each) for each in argument]
    return number(argument)
