"""Reading by index: a load whose address has a term that a value gives.

The source must lie in memory: an input of the group, or a view of one. An index that is negative
counts from the end where eager counts so; one outside reads nothing, and gives NaN, or 0 of
integers.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from ..errors import Refused
from ..graph.dtypes import INDICES
from ..graph.graph import Node, Ref
from ..graph.op import Op
from ..graph.ops import IndexedWrite, Lookup, bound, row
from ..values.axes import Factors
from ..values.values import At, Dims, Load, LoadDim, Windows, compute
from .strided_views import strided
from .views import Reader, Request, TracedValue, TraceSteps, load_dims


@dataclass(frozen=True, slots=True)
class Picks:
    """indices: by dimension of the source, the node that names places along it. first: where the
    dimensions of the indices stand in the result, or None where each stands at its own place."""

    source: int
    indices: tuple[tuple[int, int], ...]
    first: int | None


def lookup(reader: Reader, node: Node, way: Lookup, windows: Windows) -> TraceSteps:
    """The load of a lookup, and the dimensions of its result. Raises Refused where the source is
    computed by the same kernel, or the index is no integer."""
    chosen = picks(reader, node, way)
    memory = strided(reader.group, reader.group.nodes[chosen.source])
    if memory is None or node.type is None:
        raise Refused("indexed", f"{node.name} reads by index what the kernel itself computes")
    shape = reader.shape(chosen.source)
    values, dims = yield from index_values(reader, node, chosen, windows)
    if chosen.first is None:
        own = [d for d in range(len(shape)) if d != chosen.indices[0][0]]
        kept = tuple(dims[d] for d in own)
        sizes = tuple(node.type.shape[d] for d in own)
        seen = tuple(windows[d] for d in own)
    else:
        own = [d for d in range(len(shape)) if d not in dict(chosen.indices)]
        sizes = tuple(shape[d] for d in own)
        seen = windows[: chosen.first] + windows[chosen.first + len(dims) :]
        kept = reader.fresh(sizes, seen)
        dims = kept[: chosen.first] + dims + kept[chosen.first :]
    parts = load_dims(kept, sizes, tuple(memory.stride[d] for d in own), seen)
    at = []
    for value, (dim, index) in zip(values, chosen.indices, strict=True):
        if way.wraps:
            value = wrapped_index(reader, value, shape[dim], index)
        at.append(At(value, memory.stride[dim], shape[dim], checked=not way.inside))
    first = LoadDim((), 1, memory.offset, 0)
    dtype = node.type.dtype
    kind = Load(memory.input, (first, *parts) if memory.offset else parts, dtype, tuple(at))
    return reader.add(kind, dims, dtype, node)


def survey(reader: Reader, node: Node, way: Lookup, windows: Windows) -> TraceSteps:
    """The dimensions of a lookup, its source being read as a whole. Raises Refused where a part
    of an axis of the result asks for another part of the source."""
    chosen = picks(reader, node, way)
    shape, whole = reader.shape(chosen.source), reader.shape(node.id)
    value, source = yield chosen.source, (None,) * len(shape)
    _, dims = yield from index_values(reader, node, chosen, windows)
    own = [d for d in range(len(shape)) if d not in dict(chosen.indices)]
    if chosen.first is None:
        kept = tuple(dims[d] for d in own)
        if any(whole[d] != shape[d] for d in own):
            raise Refused("window", f"{node.name} gathers from a part of its source")
    else:
        kept = reader.fresh(tuple(shape[d] for d in own), (None,) * len(own))
        dims = kept[: chosen.first] + dims + kept[chosen.first :]
    for mine, dim in zip(kept, own, strict=True):
        if mine and source[dim]:
            reader.space.unify(mine, source[dim])
    return value, dims


def picks(reader: Reader, node: Node, way: Lookup) -> Picks:
    named = bound(node)
    source, index = named[way.source], named[way.index]
    assert isinstance(source, Ref)
    rank = len(reader.shape(source.node))
    if isinstance(index, tuple):
        found = [(d, i.node) for d, i in enumerate(index) if isinstance(i, Ref)]
        taken = [d for d, _ in found]
        if not found:
            raise Refused("indexed", f"{node.name} has no index")
        # Indices side by side leave their dimensions there, others in front.
        first = taken[0] if taken == list(range(taken[0], taken[-1] + 1)) else 0
        return Picks(source.node, tuple(found), first)
    assert isinstance(index, Ref)
    dim = named.get("dim", 0)
    if not rank or not isinstance(dim, int):
        raise Refused("indexed", f"{node.name} reads a number by index")
    dim %= rank
    return Picks(source.node, ((dim, index.node),), None if way.along else dim)


def index_values(
    reader: Reader, node: Node, chosen: Picks, windows: Windows
) -> Generator[Request, TracedValue, tuple[list[int], Dims]]:
    """The values of the indices, and their common dimensions."""
    nodes = [reader.group.nodes[i] for _, i in chosen.indices]
    if any(n.type is None or n.type.dtype not in INDICES for n in nodes):
        raise Refused("indexed", f"{node.name} reads by what is no index: {nodes[0].type}")
    shape = _broadcast([reader.shape(n.id) for n in nodes])
    if chosen.first is not None:
        shape = shape or ((1,) if _keeps_one(reader, node, chosen) else ())
        windows = windows[chosen.first : chosen.first + len(shape)]
    values: list[int] = []
    dims: list[Factors] = [()] * len(shape)
    for n in nodes:
        value, own = yield from reader.operand(n.id, shape, windows)
        values.append(value)
        for position, factors in enumerate(own):
            if factors and dims[position]:
                reader.space.unify(dims[position], factors)
            dims[position] = dims[position] or factors
    return values, tuple(dims)


def _broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Of tensors that broadcast against each other, aligned at the last dimension."""
    aligned = zip_longest(*(reversed(shape) for shape in shapes), fillvalue=1)
    return tuple(next((n for n in sizes if n != 1), 1) for sizes in aligned)[::-1]


def _keeps_one(reader: Reader, node: Node, chosen: Picks) -> bool:
    """Whether an index without dimensions leaves one of size 1 (`index_select`)."""
    if isinstance(row(node), IndexedWrite):
        return False
    kept = len(reader.shape(chosen.source)) - len(chosen.indices)
    return len(reader.shape(node.id)) > kept


def wrapped_index(reader: Reader, value: int, size: int, index: int) -> int:
    """The place that an index names; a negative one counts from the end."""
    node = reader.group.nodes[index]
    assert node.type is not None
    dtype = node.type.dtype
    dims = reader.dims(value)
    place = compute(Op.WRAP_INDEX, dtype, self=Ref(value), size=size)
    return reader.add(place, dims, dtype, node)[0]
