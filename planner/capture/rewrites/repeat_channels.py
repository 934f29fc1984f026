"""Depthwise convolutions that give several channels of each, with the image's channels repeated.

With as many channels in the image as in the result, each has a filter of its own, which kernels of
ours compute. What repeats the channels is a view to them: each pixel is loaded once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from ..fx_nodes import value_of
from .convolution_rows import channels_behind

__all__ = ["repeated", "repeats"]

aten = torch.ops.aten


def repeats(node: fx.Node) -> bool:
    """Whether a convolution of 16-bit images gives several channels of each channel."""
    if node.target is not aten.convolution.default or node.args[6]:
        return False
    image, weight = value_of(node.args[0]), value_of(node.args[1])
    if image is None or weight is None or image.dim() != 4:
        return False
    channels = image.shape[1]
    return bool(1 < channels == node.args[8] < weight.shape[0])


def repeated(call: Callable[..., fx.Node], image: Any, node: fx.Node) -> fx.Node:
    """The image with every channel as often as the convolution gives one of it, each beside its
    like. call: makes a node."""
    value = value_of(image)
    assert value is not None
    images, channels, height, width = value.shape
    times = node.meta["val"].shape[1] // channels
    found = call(aten.unsqueeze.default, channels_behind(call, image), 4)
    found = call(aten.expand.default, found, [images, height, width, channels, times])
    found = call(aten.reshape.default, found, [images, height, width, channels * times])
    return call(aten.permute.default, found, [0, 3, 1, 2])
