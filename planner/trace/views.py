"""Views: what a reader of one sees of its source. A view is no work, only other dimensions, or
another window onto the source's."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Protocol

from ..errors import Refused
from ..graph.graph import Arg, Graph, Node, Ref, TensorType
from ..graph.ops import bound
from ..values.axes import Factors, FactorSpace
from ..values.values import Dims, Load, LoadDim, Value, ValueKind, Window, Windows
from .strided_views import strided
from .windows import before, dims_of, integer, order_of, split_windows

TracedValue = tuple[int, Dims]
"""A value, and the dimensions it is read at."""
Request = tuple[int, Windows]
"""A node to read, and the windows to read it through."""
TraceSteps = Generator[Request, TracedValue, TracedValue]
"""How a node is read: asks for each operand by `yield` and is sent what was found. So the nodes
under way stand on a stack of the reader's (see `trace.Tracer.read`), and no chain of operations is
too long for Python's own."""


class Reader(Protocol):
    """Reads the nodes of a group, as `trace.Tracer` does. in_order: views that do not walk along
    their source in its own order are refused."""

    group: Graph
    space: FactorSpace
    values: list[Value]
    in_order: bool

    def operand(self, node_id: int, shape: tuple[int, ...], windows: Windows) -> TraceSteps:
        """An operand broadcast to `shape`, aligned at the last dimension."""

    def fresh(self, shape: tuple[int, ...], windows: Windows) -> Dims:
        """Dimensions of their own for what is read through windows."""

    def add(self, kind: ValueKind, dims: Dims, dtype: str, node: Node) -> TracedValue:
        """A new value that stands for a node."""

    def dims(self, value: int) -> Dims:
        """Of a value."""

    def shape(self, node_id: int) -> tuple[int, ...]:
        """Of a node. Raises Refused where it is no single tensor."""

    def type(self, node_id: int) -> TensorType:
        """Of a node. Raises Refused where it is no single tensor."""


def view(reader: Reader, node: Node, kind: str, windows: Windows) -> TraceSteps:
    """The value and the dimensions of a view of this kind (see `rows.View`)."""
    named = bound(node)
    source = named.get("self", named.get("a"))
    assert isinstance(source, Ref)
    own, shape = reader.shape(source.node), reader.shape(node.id)
    match kind:
        case "permute":
            order = order_of(node, named, len(shape))
            inner: list[Window | None] = [None] * len(own)
            for position, axis in enumerate(order):
                inner[axis] = windows[position]
            value, dims = yield source.node, tuple(inner)
            return value, tuple(dims[axis] for axis in order)
        case "expand":
            value, dims = yield from reader.operand(source.node, shape, windows)
            fresh = reader.fresh(shape, windows)
            return value, tuple(d or f for d, f in zip(dims, fresh, strict=True))
        case "slice" | "select":
            return (yield from _slice(reader, source.node, named, shape, windows))
        case "flip" if not reader.in_order:
            return (yield from _flip(reader, node, source.node, windows))
        case "flip" | "strided":
            return _strided(reader, node, windows)
    return (yield from _reshape(reader, node, source.node, windows))


def load_dims(
    dims: Dims, shape: tuple[int, ...], stride: tuple[int, ...], windows: Windows
) -> tuple[LoadDim, ...]:
    """The steps of a load of such a tensor over `dims`, guarded where a window leaves the
    tensor."""
    parts = []
    for factors, size, step, window in zip(dims, shape, stride, windows, strict=True):
        if window is None:
            parts.append(LoadDim(factors, step))
            continue
        last = window.start + window.step * (window.size - 1)
        outside = min(window.start, last) < 0 or max(window.start, last) >= size
        limit = size if outside else None
        parts.append(LoadDim(factors, step, window.start, window.step, limit))
    return tuple(parts)


def _slice(
    reader: Reader,
    source: int,
    named: Mapping[str, Arg],
    shape: tuple[int, ...],
    windows: Windows,
) -> TraceSteps:
    dim, own = named["dim"], reader.shape(source)
    assert isinstance(dim, int)
    dim %= len(own)
    inner = list(windows)
    if "index" in named:
        index = named["index"]
        assert isinstance(index, int)
        inner.insert(dim, Window(index % own[dim], 1, 1))
        value, dims = yield source, tuple(inner)
        return value, dims[:dim] + dims[dim + 1 :]
    start, stop, step = (integer(named[name]) for name in ("start", "end", "step"))
    picked = range(own[dim])[start:stop:step]
    # A range forgets which of its numbers vary.
    first = start if start is not None and start == picked.start else picked.start
    inner[dim] = Window(first, picked.step, shape[dim]).inside(windows[dim])
    return (yield source, tuple(inner))


def _reshape(reader: Reader, node: Node, source: int, windows: Windows) -> TraceSteps:
    """Any view that keeps the order of the elements. A window passes where its dimension is also
    one of the source, or a part of one that no more than one index walks along."""
    own, shape = reader.shape(source), reader.shape(node.id)
    inner: list[Window | None] = [None] * len(own)
    places = {(before(own, i), n): i for i, n in enumerate(own) if n != 1}
    for position, window in enumerate(windows):
        if window is None:
            continue
        place = places.get((before(shape, position), shape[position]))
        if place is None:
            split = None
            if not _is_read_by_strides(reader, node):
                split = split_windows(own, shape, windows)
            if split is None:
                return _strided(reader, node, windows)
            inner = list(split)
            break
        inner[place] = window
    value, dims = yield source, tuple(inner)
    sizes = tuple(n if w is None else w.size for n, w in zip(shape, windows, strict=True))
    factors: Factors = tuple(f for dim in dims for f in dim)
    return value, reader.space.regroup(factors, sizes)


def _flip(reader: Reader, node: Node, source: int, windows: Windows) -> TraceSteps:
    own, dims = reader.shape(node.id), bound(node)["dims"]
    inner = list(windows)
    for dim in dims_of(dims, len(own)) if dims else ():
        inner[dim] = Window(own[dim] - 1, -1, own[dim]).inside(windows[dim])
    return (yield source, tuple(inner))


def _is_read_by_strides(reader: Reader, node: Node) -> bool:
    return reader.in_order or strided(reader.group, node) is not None


def _strided(reader: Reader, node: Node, windows: Windows) -> TracedValue:
    """A view that no windows express, of what lies in memory: read by its own strides."""
    found = None if reader.in_order else strided(reader.group, node)
    if found is None or node.type is None:
        raise Refused("window", f"{node.name} is a reshape between a slice and its source")
    shape, dtype = node.type.shape, node.type.dtype
    dims = reader.fresh(shape, windows)
    first = LoadDim((), 1, found.offset, 0)
    parts = (first, *load_dims(dims, shape, found.stride, windows))
    return reader.add(Load(found.input, parts, dtype), dims, dtype, node)
