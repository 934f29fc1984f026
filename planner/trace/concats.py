"""From a concatenation's node to its value."""

from __future__ import annotations

from ..errors import Refused
from ..graph.graph import Node, Ref
from ..graph.ops import bound
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
    dims[dim] = dims[dim] or reader.space.fresh(outer.size)
    kind = Choice(dims[dim], tuple(sorted(pieces, key=lambda piece: piece[1])))
    return reader.add(kind, tuple(dims), reader.type(node.id).dtype, node)
