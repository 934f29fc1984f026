"""Arguments of views and reductions as numbers, and which part of a tensor a window shows."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ..errors import Refused
from ..graph.graph import Arg, Node
from ..values.values import Window


def integer(number: Arg) -> int | None:
    if number is not None and not isinstance(number, int):
        raise Refused("window", f"a slice at {number!r}, which is no number")
    return number


def before(shape: tuple[int, ...], position: int) -> int:
    return math.prod(shape[:position])


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
