"""From a scan's node to its value: the view that turns it round, and the dtype it works in."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from ..errors import Refused
from ..graph.dtypes import NARROW, is_float, register_dtype
from ..graph.graph import Node, Ref
from ..graph.ops import ASSOCIATIVE, Cumulative, bound, is_compute
from ..graph.parse import parse
from ..values.axes import Factors
from ..values.values import Scan, Window, Windows, conversion
from .views import Reader, TraceSteps


class ScanReader(Reader, Protocol):
    """A reader that can round a value to the dtype of its node."""

    def rounded(self, value: int, node: Node) -> int: ...


def scan(reader: ScanReader, node: Node, row: Cumulative, windows: Windows) -> TraceSteps:
    """A scan, read whole, from its end, or only its beginning."""
    if reader.in_order:
        raise Refused("scan", f"{node.name} needs all that comes before each element")
    if row.monoid is ASSOCIATIVE:
        return (yield from _associative(reader, node, windows))
    named, assumed = bound(node), node.type
    source, dim = named["self"], named["dim"]
    assert assumed is not None
    assert isinstance(source, Ref)
    assert isinstance(dim, int)
    dim %= max(1, len(assumed.shape))
    reverse = False
    if assumed.shape:
        reverse = _is_reversed(node, windows[dim], assumed.shape[dim])
    value, dims = yield source.node, windows
    value = _converted(reader, value, source.node, node)
    along = dims[dim] if dims else ()
    if not along:
        return value, dims  # Of one element.
    quick = row.quick if assumed.dtype in NARROW else None
    kind = Scan(quick or row.monoid, value, along, reverse)
    return reader.add(kind, dims, assumed.dtype, node)


def _associative(reader: ScanReader, node: Node, windows: Windows) -> TraceSteps:
    """A scan of several tensors along their first dimension by a graph of the user's."""
    named, assumed = bound(node), node.type
    xs, combine, item = named["xs"], named["combine"], named["item"]
    assert assumed is not None
    assert isinstance(xs, tuple)
    assert isinstance(combine, str)
    assert isinstance(item, int)
    reverse = _is_reversed(node, windows[0], assumed.shape[0])
    sources: list[int] = []
    dims: list[Factors] = [()] * len(windows)
    for each in xs:
        assert isinstance(each, Ref)
        if reader.type(each.node).dtype == "bool":
            raise Refused("dtype", f"no kernel scans bool by {node.name}")
        value, own = yield each.node, windows
        sources.append(value)
        for place, factors in enumerate(own):
            if factors and dims[place]:
                reader.space.unify(dims[place], factors)
            dims[place] = dims[place] or factors
    if not dims[0]:
        return sources[item], tuple(dims)
    kind = Scan(
        replace(ASSOCIATIVE, slots=_slots(combine)),
        sources[item],
        dims[0],
        reverse,
        tuple(sources),
        item,
        combine,
    )
    return reader.add(kind, tuple(dims), assumed.dtype, node)


_STEP = 4.0  # Issue slots of an operation of the user's, with what tells whether it counts.


def _slots(combine: str) -> float:
    return _STEP * sum(map(is_compute, parse(combine).nodes))


def _is_reversed(node: Node, window: Window | None, size: int) -> bool:
    """Whether a window onto the scanned dimension turns it round: the source is read through the
    same window then, and scanned from its end."""
    if window is None or (window.start == 0 and window.step == 1 and window.size <= size):
        return False
    if (window.start, window.step, window.size) == (size - 1, -1, size):
        return True
    raise Refused("window", f"{node.name} is a scan read from its middle")


def _converted(reader: ScanReader, value: int, source_node: int, node: Node) -> int:
    """What is scanned in the dtype of the result, as eager converts it before."""
    assert node.type is not None
    source, target = reader.values[value].dtype, node.type.dtype
    if is_float(source) and not is_float(target):
        raise Refused("dtype", f"no kernel scans {source} as {target}")
    register = register_dtype(target)
    if source != register:
        kind = conversion(reader.values[value], register)
        value, _ = reader.add(kind, reader.values[value].dims, register, node)
    if target in NARROW and reader.type(source_node).dtype != target:
        value = reader.rounded(value, node)
    return value
