"""Convolutions of channels that a library has no fast kernel for, on images with more of them.

A library's fast kernels of 16-bit numbers read eight channels at once, and those of convolutions in
groups are made for groups of certain widths. With zeros for the channels that lack, image and
weight have such widths; what the result then has more is left out. Sums stay the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from ..fx_nodes import value_of
from .convolution_rows import (
    FAST_GROUPS,
    channels_behind,
    cut_or_padded,
    dense,
    is_of_slow_groups,
    rows_of,
)

__all__ = ["padded", "padded_widths"]

aten = torch.ops.aten

_VECTOR = 8
"""Channels that a library's kernels read at once. Of 32 images of 56 x 56, 3 x 3, on an H200: 18
channels 41 us, 20 41, 24 20, 30 40, 32 16; of 28 x 28: 36 channels 30, 40 18; 8 images of 256 x
256: from 64 channels to 3 116 us, to 8 88."""

_WORTH = 1 << 19
"""Elements of an image, or of the result, from which on a copy with more channels pays: 3 us. In
groups, 3 x 3, 64 images on an H200: 216 channels of 28 x 28 in groups of 24 take 129 us, 288 in
groups of 32 52; of 14 x 14, 528 in groups of 48 94, 512 in groups of 64 29, 480 in groups of 96 92,
512 in groups of 128 31."""


def padded_widths(node: fx.Node) -> tuple[int, int] | None:
    """The numbers of channels of the image and of the result that each group is to have; None where
    a convolution stays as it is."""
    if node.target is not aten.convolution.default or node.args[6]:
        return None
    image, weight, result = value_of(node.args[0]), value_of(node.args[1]), node.meta.get("val")
    if image is None or weight is None or image.dim() != 4 or result is None:
        return None
    if image.dtype not in (torch.float16, torch.bfloat16):
        return None
    if not all(isinstance(n, int) for n in (*image.shape, *result.shape)):
        return None
    if max(image.numel(), result.numel()) < _WORTH:
        return None
    groups: Any = node.args[8]
    channels, results = weight.shape[1], weight.shape[0] // groups
    if groups > 1:
        return _of_groups(node, channels, results)
    if rows_of(node) is not None or not (channels % _VECTOR or results % _VECTOR):
        return None
    return _whole(channels), _whole(results)


def _of_groups(node: fx.Node, channels: int, results: int) -> tuple[int, int] | None:
    if channels == 1 or channels in FAST_GROUPS or is_of_slow_groups(node):
        return None
    wide = next((n for n in FAST_GROUPS if n >= max(channels, results)), None)
    return None if wide is None else (wide, wide)


def _whole(channels: int) -> int:
    return -(-channels // _VECTOR) * _VECTOR


def padded(call: Callable[..., fx.Node], node: fx.Node, widths: tuple[int, int]) -> fx.Node:
    """The node that takes the place of a convolution. call: makes a node."""
    groups: Any = node.args[8]
    bias = node.args[2]
    results = node.meta["val"].shape[1] // groups
    made = _image(call, node.args[0], groups, widths[0]), _weight(call, node, widths)
    found = channels_behind(call, call(aten.convolution.default, *made, None, *node.args[3:]))
    if groups > 1:
        places = found.meta["val"].shape[:3]
        found = call(aten.view.default, found, [*places, groups, widths[1]])
        found = dense(call, call(aten.slice.Tensor, found, 4, 0, results))
        found = call(aten.view.default, found, [*places, groups * results])
    elif results < widths[1]:
        found = call(aten.slice.Tensor, found, 3, 0, results)
    if bias is not None:
        found = call(aten.add.Tensor, found, bias)
    return call(aten.permute.default, found, [0, 3, 1, 2])


def _image(call: Callable[..., fx.Node], image: Any, groups: int, wide: int) -> fx.Node:
    """The image with its channels side by side, and more of them."""
    value = value_of(image)
    assert value is not None
    images, channels, height, width = value.shape
    found = channels_behind(call, image)
    found = call(aten.view.default, found, [images, height, width, groups, channels // groups])
    found = dense(call, cut_or_padded(call, found, 4, 0, wide))
    found = call(aten.view.default, found, [images, height, width, groups * wide])
    return call(aten.permute.default, found, [0, 3, 1, 2])


def _weight(call: Callable[..., fx.Node], node: fx.Node, widths: tuple[int, int]) -> fx.Node:
    weight, groups = value_of(node.args[1]), node.args[8]
    assert weight is not None
    results, channels, *places = weight.shape
    shape = [groups, results // groups, channels, *places]
    found = call(aten.view.default, node.args[1], shape)
    for dim, wide in ((1, widths[1]), (2, widths[0])):
        found = cut_or_padded(call, found, dim, 0, wide)
    shape = [groups * widths[1], widths[0], *places]  # type: ignore[operator]
    found = call(aten.view.default, dense(call, found), shape)
    return call(aten.clone.default, found, memory_format=torch.channels_last)
