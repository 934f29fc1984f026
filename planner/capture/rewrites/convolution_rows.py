"""Convolutions as products of matrices: what each pixel of the result reads is a row.

Of one pixel at a time the rows are the image's own pixels. Of patches (the step is the size) each
pixel of the image is in one row. Of images of few channels the rows are windows onto a copy with
zeros around it and beside its channels, in which a line of a window is one run of memory. So they
are where channels are in groups for which a library has no fast kernel, each group in a copy of its
own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from ..fx_nodes import value_of

__all__ = [
    "FAST_GROUPS",
    "RowsOf",
    "channels_behind",
    "cut_or_padded",
    "dense",
    "grouped_rows",
    "is_of_slow_groups",
    "pixels",
    "rows_of",
]

aten = torch.ops.aten

RowsOf = Callable[[Callable[..., fx.Node], fx.Node], tuple[Any, Any]]
"""What each pixel of a convolution's result reads as a row, and the weight in the same order."""

_END = 2**63 - 1
"""Of a slice that goes on to the last element."""

_THIN, _CHANNELS = range(2, 5), 4
"""Channels of an image for which a library has no fast kernel, and how many each pixel is given."""

_VECTOR = 8
"""Elements of 16 bits that a thread loads at once."""

_WIDE = 16
"""Channels of the result, at least, that such a convolution must have to be worth a product."""


FAST_GROUPS = (4, 8, 16, 32, 64, 128)
"""Channels of a group with which a library's convolutions are fast, side by side: twice as fast as
in planes, where those of 24 take twice as long (3 x 3, bfloat16, batches of 64, one H200)."""

_LONG, _PLACES = 1024, 9
"""Products of each element of the result from which on a library's grouped convolution is so slow
that windows pay, and places of its window that are few enough in groups of those widths: it took
12.8 ms for 16 groups of 48 channels and 128 places, of 8 lines of 499, where products take 0.1 (one
H200)."""


def is_of_slow_groups(node: fx.Node) -> bool:
    """Whether a convolution of many products is in groups for which a library has no fast kernel.
    The channels of a group have to be whole vectors."""
    if node.target is not aten.convolution.default:
        return False
    image, weight = value_of(node.args[0]), value_of(node.args[1])
    if image is None or weight is None:
        return False
    groups, dilation = node.args[8], node.args[5]
    if node.args[6] or groups == 1 or any(n != 1 for n in dilation):  # type: ignore[union-attr]
        return False
    channels, wide = weight.shape[1], weight.shape[0] // groups
    if channels % _VECTOR or wide < _WIDE or image.dim() != 4:
        return False
    places = weight.shape[2:].numel()
    if channels in FAST_GROUPS and places <= _PLACES:
        return False
    return bool(channels * places >= _LONG)


def rows_of(node: fx.Node) -> RowsOf | None:
    """The function that makes a convolution a product; None where it stays a convolution. It takes
    a function that makes calls, and the convolution. It gives the rows and the weight, both
    dense."""
    return next((make for is_so, make in _ROWS if is_so(node)), None)


def _is_product(node: fx.Node) -> bool:
    """Whether each pixel of the result is a product with pixels of the image that no other reads:
    with one of them, or with those of a patch."""
    if node.target is not aten.convolution.default:
        return False
    weight, padding, groups = value_of(node.args[1]), node.args[4], node.args[8]
    if weight is None or node.args[6] or groups != 1 or any(padding):  # type: ignore[arg-type]
        return False
    return weight.shape[2:].numel() == 1 or _has_patches(node)


def _has_patches(node: fx.Node) -> bool:
    """Whether the pixels that one of the result reads lie beside those of the next."""
    weight, strides, dilation = value_of(node.args[1]), node.args[3], node.args[5]
    assert weight is not None
    sizes = tuple(weight.shape[2:])
    steps, gaps = tuple(strides), tuple(dilation)  # type: ignore[arg-type]
    return set(sizes) != {1} and steps == sizes and set(gaps) == {1}


def _is_thin(node: fx.Node) -> bool:
    """Whether a convolution reads images of so few channels that a library has no fast kernel for
    it. It took ten times as long as the bytes do for 7 x 7 of 3 channels, be they padded to 4, 8 or
    16, and five times for 3 x 3 (bfloat16, batches of 64, one H100)."""
    image, weight, dilation = value_of(node.args[0]), value_of(node.args[1]), node.args[5]
    if node.target is not aten.convolution.default or image is None or weight is None:
        return False
    if node.args[6] or node.args[8] != 1 or any(n != 1 for n in dilation):  # type: ignore[union-attr]
        return False
    return image.shape[1] in _THIN and weight.shape[2:].numel() > 1 and weight.shape[0] >= _WIDE


def pixels(call: Callable[..., fx.Node], node: fx.Node) -> tuple[Any, Any]:
    """The pixels that a convolution of one at a time reads, dense, and its weight."""
    x, weight, _, strides = node.args[:4]
    for dim, step in enumerate(strides, 2):  # type: ignore[arg-type]
        if step != 1:
            x = call(aten.slice.Tensor, x, dim, 0, _END, step)
    return dense(call, channels_behind(call, x)), weight


def _patches(call: Callable[..., fx.Node], node: fx.Node) -> tuple[Any, Any]:
    """The patches that a convolution reads, [images, height, width, ...], and its weight, with the
    elements of a patch in the order of memory that the image has."""
    given: Any = node.args[:4]
    x, weight, _, sizes = given
    images, _, *places = node.meta["val"].shape
    for dim, (count, size) in enumerate(zip(places, sizes, strict=True), 2):
        x = call(aten.slice.Tensor, x, dim, 0, count * size)
    value = value_of(x)
    assert value is not None
    cut = [n for pair in zip(places, sizes, strict=True) for n in pair]
    counts, within = [range(first, 2 * len(sizes), 2) for first in (0, 1)]
    if value.stride(1) != 1 or value.shape[1] == 1:
        x = call(aten.view.default, x, [images, -1, *cut])
        order = [0, *(2 + d for d in counts), 1, *(2 + d for d in within)]
        return dense(call, call(aten.permute.default, x, order)), dense(call, weight)
    x = call(aten.view.default, channels_behind(call, x), [images, *cut, -1])
    order = [0, *(1 + d for d in counts), *(1 + d for d in within), 1 + len(cut)]
    patches = dense(call, call(aten.permute.default, x, order))
    return patches, dense(call, channels_behind(call, weight))


def _windows(call: Callable[..., fx.Node], node: fx.Node) -> tuple[Any, Any]:
    """What a convolution of few channels reads for each pixel, [images, height, width, high, run],
    and its weight: with zeros around the image and beside its channels, the pixels of a line of the
    window are one run of memory, which starts and ends on whole vectors."""
    given: Any = node.args[:5]
    image, weight, _, steps, before = given
    images, _, *places = node.meta["val"].shape
    *outer, wide = weight.meta["val"].shape[2:]
    whole = -(-wide * _CHANNELS // _VECTOR) * _VECTOR // _CHANNELS
    pixels, sizes = channels_behind(call, image), [*outer, whole]
    for dim, size in enumerate(sizes):
        read = (places[dim] - 1) * steps[dim] + size
        pixels = cut_or_padded(call, pixels, 1 + dim, before[dim], read)
    pixels = dense(call, cut_or_padded(call, pixels, 1 + len(sizes), 0, _CHANNELS))
    first, *strides, _ = pixels.meta["val"].stride()
    along = [step * stride for step, stride in zip(steps, strides, strict=True)]
    shape = [images, *places, *outer, whole * _CHANNELS]
    windows = call(aten.as_strided.default, pixels, shape, [first, *along, *strides[:-1], 1])
    weight = channels_behind(call, weight)
    weight = cut_or_padded(call, weight, 1 + len(sizes), 0, _CHANNELS)
    weight = cut_or_padded(call, weight, len(sizes), 0, whole)
    return dense(call, windows), dense(call, weight)


def grouped_rows(call: Callable[..., fx.Node], node: fx.Node) -> tuple[Any, Any]:
    """The elements that each pixel of a convolution's result reads of each group, [groups, pixels,
    ...], and the weight, [groups, channels of the result, ...]: windows onto a copy with zeros
    around it, in which the pixels of a line of a window are one run of memory."""
    given: Any = node.args[:5]
    image, weight, _, (down, across), (top, left) = given
    groups: Any = node.args[8]
    images, _, height, width = node.meta["val"].shape
    *_, channels, high, wide = weight.meta["val"].shape
    lines, places = (height - 1) * down + high, (width - 1) * across + wide
    pixels = call(aten.permute.default, image, [0, 2, 3, 1])
    for dim, before, size in ((1, top, lines), (2, left, places)):
        pixels = cut_or_padded(call, pixels, dim, before, size)
    pixels = call(aten.view.default, pixels, [images, lines, places, groups, channels])
    pixels = dense(call, call(aten.permute.default, pixels, [3, 0, 1, 2, 4]))
    *outer, line, place, _ = pixels.meta["val"].stride()
    steps = [*outer, down * line, across * place, line, 1]
    shape = [groups, images, height, width, high, wide * channels]
    windows = dense(call, call(aten.as_strided.default, pixels, shape, steps))
    rows = call(aten.view.default, windows, [groups, images * height * width, -1])
    columns = dense(call, call(aten.permute.default, weight, [0, 2, 3, 1]))
    return rows, call(
        aten.view.default, columns, [groups, weight.meta["val"].shape[0] // groups, -1]
    )


def cut_or_padded(
    call: Callable[..., fx.Node], node: fx.Node, dim: int, before: int, size: int
) -> fx.Node:
    """So many elements along a dimension, the first `before` of them 0, and the last where there
    are no more."""
    value = value_of(node)
    assert value is not None
    after = size - before - value.shape[dim]
    if after < 0:
        node = call(aten.slice.Tensor, node, dim, 0, size - before)

    def zeros(count: int) -> list[fx.Node]:
        shape = [count if d == dim else n for d, n in enumerate(value.shape)]
        kept = {"dtype": value.dtype, "device": value.device}
        return [call(aten.full.default, shape, 0, **kept)] if count > 0 else []

    parts = [*zeros(before), node, *zeros(after)]
    return call(aten.cat.default, parts, dim) if len(parts) > 1 else node


def channels_behind(call: Callable[..., fx.Node], node: Any) -> fx.Node:
    """A view with the channels as the last dimension."""
    value = value_of(node)
    assert value is not None
    return call(aten.permute.default, node, [0, *range(2, value.dim()), 1])


def dense(call: Callable[..., fx.Node], node: Any) -> fx.Node:
    """A node whose elements lie in order: itself, or a copy."""
    value = value_of(node)
    assert value is not None
    if value.is_contiguous():
        return node  # type: ignore[no-any-return]
    return call(aten.clone.default, node, memory_format=torch.contiguous_format)


def _is_of_pixels(node: fx.Node) -> bool:
    return _is_product(node) and not _has_patches(node)


def _is_of_patches(node: fx.Node) -> bool:
    return _is_product(node) and _has_patches(node)


_ROWS: tuple[tuple[Callable[[fx.Node], bool], RowsOf], ...] = (
    (_is_of_pixels, pixels),
    (_is_of_patches, _patches),
    (_is_thin, _windows),
)
"""Convolutions that are products, by what they read."""
