"""Operations that are part of a node: on the values of its operands."""

from __future__ import annotations

import itertools

from ..graph.dtypes import register_dtype
from ..graph.graph import Arg, Node, Ref
from ..graph.op import Op
from ..values.values import Dims, compute
from .views import Reader, TracedValue


def combined(
    reader: Reader, op: Op, left: TracedValue, right: Arg, right_dims: Dims, node: Node
) -> TracedValue:
    """An operation that is part of a node, with a value or a number on its right."""
    assert node.type is not None
    dims = united(reader, left[1], right_dims)
    dtype = register_dtype(node.type.dtype)
    kind = compute(op, dtype, self=Ref(left[0]), other=right)
    return reader.add(kind, dims, dtype, node)


def united(reader: Reader, left: Dims, right: Dims) -> Dims:
    """The dimensions of what reads values of these; those on the right may be missing."""
    for mine, other in zip(left, right, strict=False):
        if mine and other:
            reader.space.unify(mine, other)
    found = (mine or other for mine, other in itertools.zip_longest(left, right, fillvalue=()))
    return tuple(found)
