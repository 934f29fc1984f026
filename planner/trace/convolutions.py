"""Depthwise convolutions: a sum over the taps of a filter, each a window onto the image times the
filter's weight there, which all pixels of a channel share.

No tile has an axis for the taps: they are written out, so that a weight is loaded and converted
once for all pixels that a thread has, and no filter is padded to a power of two.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from ..errors import Refused
from ..graph.dtypes import register_dtype
from ..graph.graph import Arg, Node, Ref
from ..graph.op import Op
from ..graph.ops import bound
from ..values.values import Choice, Dims, Literal, Load, Window, Windows, compute
from .combine import combined, united
from .views import Reader, TracedValue, TraceSteps
from .windows import hits

MOST_TAPS = 128
"""Taps of a filter, each of which is three values or more. The vendor's kernels of 9 x 9 and
11 x 11 took 198 us where those of ours are expected to take 18 (MixNet, one H200)."""

MOST_BESIDE = 8
"""Neighbours along an axis that a thread has as values of their own, each of eight channels,"""

MOST_IN_TURNS, ROWS_IN_TURNS = 16, 4
"""and each of four channels, where the filter has so many rows that each is a turn of a loop (see
`tiles.passes.repeat_rows`): more would be straight-line code whose loads fill the registers."""


def depthwise(reader: Reader, node: Node, windows: Windows) -> TraceSteps:
    """The sum over all taps, in the dtype of registers."""
    named = bound(node)
    image, weight, bias = named["input"], named["weight"], named["bias"]
    assert isinstance(image, Ref)
    assert isinstance(weight, Ref)
    _, channels, *sizes = reader.shape(image.node)
    _, each, *kernel = reader.shape(weight.node)
    if each != 1 or channels != named["groups"]:
        raise Refused("opaque", f"{node.name} sums over several channels")
    if math.prod(kernel) > MOST_TAPS:
        raise Refused("size", f"{node.name} has more than {MOST_TAPS} taps")
    batch, channel = windows[:2]
    kind = node.type
    assert kind is not None
    total: TracedValue | None = None
    for tap in itertools.product(*map(range, kernel)):
        seen = _seen(node, tap, windows)
        inside = [hits(w, 0, n) for w, n in zip(seen, sizes, strict=True)]
        if any(low >= high for low, high in inside):
            continue  # It sees nothing but padding.
        pixel = yield image.node, (batch, channel, *seen)
        pixel = _padded(reader, pixel, inside, seen, node)
        filtered = yield weight.node, (channel, None, *(Window(place, 1, 1) for place in tap))
        over: Dims = ((), filtered[1][0], *(() for _ in tap))
        if total is None:
            # All taps are alike then; where a filter's rows are turns of a loop, they have to be.
            total = reader.add(Literal(0.0), ((),) * len(over), register_dtype(kind.dtype), node)
        total = _taken_in(reader, total, pixel, (filtered[0], over), node)
    if total is None:
        raise Refused("opaque", f"{node.name} sees nothing but padding")
    if isinstance(bias, Ref):
        added, dims = yield bias.node, (channel,)
        total = combined(
            reader, Op.ADD, total, Ref(added), ((), dims[0], *(() for _ in kernel)), node
        )
    return total


def _taken_in(
    reader: Reader, total: TracedValue, pixel: TracedValue, weight: TracedValue, node: Node
) -> TracedValue:
    """The sum so far with one tap more."""
    assert node.type is not None
    dims = united(reader, united(reader, total[1], pixel[1]), weight[1])
    dtype = register_dtype(node.type.dtype)
    operands = {"self": Ref(pixel[0]), "other": Ref(weight[0]), "addend": Ref(total[0])}
    return reader.add(compute(Op.FMA, dtype, **operands), dims, dtype, node)


def _seen(node: Node, tap: Sequence[int], windows: Windows) -> tuple[Window, ...]:
    """The pixels under a tap, for every pixel of the result that the windows show."""
    assert node.type is not None
    named = bound(node)
    found = []
    for place, at in enumerate(tap):
        stride, padding, dilation = (
            _number(named[name], place) for name in ("stride", "padding", "dilation")
        )
        whole = Window(at * dilation - padding, stride, node.type.shape[2 + place])
        found.append(whole.inside(windows[2 + place]))
    return tuple(found)


def _number(given: Arg, place: int) -> int:
    """Of one number for each dimension of the image, or of one for all."""
    assert isinstance(given, tuple)
    found = given[place] if len(given) > 1 else given[0]
    assert isinstance(found, int)
    return found


def _padded(
    reader: Reader,
    pixel: TracedValue,
    inside: Sequence[tuple[int, int]],
    seen: Sequence[Window],
    node: Node,
) -> TracedValue:
    """With 0 in the padding, which a load gives there by itself. inside: of the windows."""
    value, dims = pixel
    own = reader.values[value]
    if isinstance(own.kind, Load) and not own.kind.at:
        return pixel
    zero: int | None = None
    for place, ((low, high), window) in enumerate(zip(inside, seen, strict=True)):
        if (low, high) == (0, window.size):
            continue
        if zero is None:
            zero, _ = reader.add(Literal(0.0), ((),) * len(dims), own.dtype, node)
        along = dims[2 + place] or reader.space.fresh(window.size)
        ends = ((zero, 0, low), (value, low, high), (zero, high, window.size))
        pieces = tuple(piece for piece in ends if piece[1] < piece[2])
        dims = (*dims[: 2 + place], along, *dims[3 + place :])
        value, _ = reader.add(Choice(along, pieces), dims, own.dtype, node)
    return value, dims


def runs(reader: Reader, node: Node, dims: Dims) -> list[tuple[int, int]]:
    """Of a convolution read at these dimensions, factors to unroll and how many neighbours of
    each read pixels in common, the best first: of none that lies side by side in memory."""
    named = bound(node)
    image, weight = named["input"], named["weight"]
    assert isinstance(image, Ref)
    assert isinstance(weight, Ref)
    found = []
    kind, kernel = reader.group.nodes[image.node].type, reader.shape(weight.node)[2:]
    for place in reversed(range(len(kernel))):
        factors = reader.space.resolve(dims[2 + place])
        if kind is None or len(factors) != 1 or kind.stride[2 + place] == 1:
            continue
        size = reader.space.extent(factors[0])
        # Blocks are powers of two: of runs that are so many, no block is filled in part.
        in_turns = place == len(kernel) - 1 and place > 0 and kernel[0] >= ROWS_IN_TURNS
        most = MOST_IN_TURNS if in_turns else MOST_BESIDE
        whole = (n for n in range(1, most + 1) if size % n == 0)
        parts = max(whole, key=lambda n: (n > 1 and size // n & (size // n - 1) == 0, n))
        if parts > 1 and _number(named["stride"], place) < kernel[place]:
            found.append((factors[0], parts))
    return found
