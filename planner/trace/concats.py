"""From a concatenation's node to its value."""

from __future__ import annotations

import math

from ..errors import Refused
from ..graph.graph import Node, Ref
from ..graph.ops import View, bound, row
from ..stream.store_pieces import LEAST_RUN, MANY
from ..values.axes import Factors
from ..values.values import Choice, Window, Windows
from .views import Reader, TraceSteps
from .windows import hits


def concat(reader: Reader, node: Node, windows: Windows) -> TraceSteps:
    """A choice between tensors along a dimension; those that the window leaves out are not read."""
    named, shape = bound(node), reader.shape(node.id)
    parts, dim = named["tensors"], named["dim"]
    assert isinstance(parts, tuple)
    assert isinstance(dim, int)
    dim %= len(shape)
    if windows[dim] is None and _is_stored_by_piece(reader, node, parts, dim):
        return (yield from _of_many_alike(reader, node, windows, parts, dim))
    outer = windows[dim] or Window(0, 1, shape[dim])
    pieces: list[tuple[int, int, int]] = []
    dims: list[Factors] = []
    start = 0
    for part in parts:
        assert isinstance(part, Ref)
        own = reader.shape(part.node)
        if len(own) != len(shape):
            raise Refused("concat", f"{node.name} has an operand of another rank")
        size = own[dim]
        low, high = hits(outer, start, start + size)
        if low < high:
            inner = list(windows)
            # An operand of length 1 is the same wherever it is read.
            inner[dim] = None if size == 1 else Window(-start, 1, size).inside(outer)
            value, own_dims = yield part.node, tuple(inner)
            pieces.append((value, low, high))
            for position, factors in enumerate(own_dims):
                if dims and dims[position] and factors:
                    reader.space.unify(dims[position], factors)
                elif dims and factors:
                    dims[position] = factors
            dims = dims or list(own_dims)
        start += size
    along, dtype = dims[dim] or reader.space.fresh(outer.size), reader.type(node.id).dtype
    result = (*dims[:dim], along, *dims[dim + 1 :])
    if len({value for value, _, _ in pieces}) == 1 < len(pieces):
        # One operand of length 1 again and again is that operand, expanded.
        once = Choice((), ((pieces[0][0], 0, 1),))
        value, _ = reader.add(once, tuple(dims), dtype, node)
        return value, result
    kind = Choice(along, tuple(sorted(pieces, key=lambda piece: piece[1])))
    return reader.add(kind, result, dtype, node)


def _is_stored_by_piece(reader: Reader, node: Node, parts: tuple[object, ...], dim: int) -> bool:
    """Whether the pieces are many of one size, and the group does nothing but store the result."""
    nodes = [part.node for part in parts if isinstance(part, Ref)]
    if len(nodes) < MANY or len({reader.shape(n) for n in nodes}) > 1:
        return False
    shape = reader.shape(nodes[0])
    if len(shape) != len(reader.shape(node.id)) or math.prod(shape[dim:]) < LEAST_RUN:
        return False
    result = {node.id}
    for each in reader.group.nodes[node.id + 1 :]:
        if result.intersection(each.inputs):
            if not isinstance(row(each), View):
                return False
            result.add(each.id)
    return not result.isdisjoint(reader.group.outputs)


def _of_many_alike(
    reader: Reader, node: Node, windows: Windows, parts: tuple[object, ...], dim: int
) -> TraceSteps:
    """A choice by the number of the piece, which is a factor of its own. All pieces are read over
    the same factors."""
    pieces: list[int] = []
    dims: list[Factors] = []
    for part in parts:
        assert isinstance(part, Ref)
        value, own = yield part.node, windows
        pieces.append(value)
        for position, factors in enumerate(own):
            if dims and dims[position] and factors:
                reader.space.unify(dims[position], factors)
            elif dims and factors:
                dims[position] = factors
        dims = dims or list(own)
    size = reader.shape(node.id)[dim] // len(parts)
    number = reader.space.fresh(len(parts))
    if size > 1 and not dims[dim]:
        dims[dim] = reader.space.fresh(size)
    dims[dim] = (*number, *dims[dim])
    kind = Choice(number, tuple((value, i, i + 1) for i, value in enumerate(pieces)))
    return reader.add(kind, tuple(dims), reader.type(node.id).dtype, node)
