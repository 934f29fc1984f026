"""Arguments of views and reductions as numbers, and which part of a tensor a window shows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

from ..errors import Refused
from ..graph.graph import Arg, Node
from ..values.values import Window, Windows


def integer(number: Arg) -> int | None:
    if number is not None and not isinstance(number, int):
        raise Refused("window", f"a slice at {number!r}, which is no number")
    return number


def before(shape: tuple[int, ...], position: int) -> int:
    return math.prod(shape[:position])


def split_windows(own: tuple[int, ...], shape: tuple[int, ...], windows: Windows) -> Windows | None:
    """The windows onto a source of which a view splits dimensions, as every second element of a row
    is a column of its pairs. None where a window stands for no single one of the source, or leaves
    its dimension."""
    found: list[Window | None] = []
    position = 0
    for size in own:
        first, whole = position, 1
        while whole < size and position < len(shape):
            whole *= shape[position]
            position += 1
        if whole != size:
            return None
        while position < len(shape) and shape[position] == 1:
            position += 1
        pieces = zip(shape[first:position], windows[first:position], strict=True)
        window = _joined([w or Window(0, 1, n) for n, w in pieces], shape[first:position])
        if window is None:
            return None
        found.append(None if window.is_whole(size) else window)
    return tuple(found) if position == len(shape) else None


def _joined(windows: list[Window], shape: tuple[int, ...]) -> Window | None:
    """The window onto one dimension of the windows onto what it is split into."""
    start, step, size = 0, 1, 1
    stride = math.prod(shape)
    pieces = []
    for window, extent in zip(windows, shape, strict=True):
        stride //= extent
        ends = (window.start, window.start + window.step * (window.size - 1))
        if min(ends) < 0 or max(ends) >= extent:
            return None
        start += window.start * stride
        if window.size != 1:
            pieces.append((window.step * stride, window.size))
    for outer, inner in itertools.pairwise(pieces):
        if outer[0] != inner[0] * inner[1]:
            return None
    if pieces:
        step, size = pieces[-1][0], math.prod(n for _, n in pieces)
    return Window(start, step, size)


def hits(window: Window, start: int, stop: int) -> tuple[int, int]:
    """The range of window indices whose source index falls in [start, stop)."""
    if window.step == 0:
        raise Refused("window", "a concatenation read at one index only")
    if window.step < 0:
        low = max(0, -(-(window.start - stop + 1) // -window.step))
        high = min(window.size, (window.start - start) // -window.step + 1)
        return low, max(low, high)
    low = max(0, -(-(start - window.start) // window.step))
    high = min(window.size, -(-(stop - window.start) // window.step))
    return low, max(low, high)


def dims_of(dim: Arg, rank: int) -> set[int]:
    if dim is None or dim == ():
        return set(range(rank))
    listed = dim if isinstance(dim, tuple) else (dim,)
    return {int(d) % rank for d in listed if isinstance(d, int)} if rank else set()


def order_of(node: Node, named: Mapping[str, Arg], rank: int) -> list[int]:
    if "dims" in named:
        dims = named["dims"]
        assert isinstance(dims, tuple)
        return [int(d) % rank for d in dims if isinstance(d, int)]
    order = list(range(rank))
    first, second = (named.get(n, d) for n, d in (("dim0", 0), ("dim1", 1)))
    if rank > 1 and isinstance(first, int) and isinstance(second, int):
        order[first], order[second] = order[second], order[first]
    return order
