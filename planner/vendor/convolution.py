"""A convolution with what follows it by one call of cuDNN: bias, another image, relu."""

from __future__ import annotations

from collections.abc import Sequence

import torch

aten = torch.ops.aten

WHOLE = 8
"""Channels, of the image and of the result, that the library's fused kernels take at once."""


def convolution_relu(
    image: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    added: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> torch.Tensor:
    """relu(convolution + bias + added) of image [images, channels, height, width], weight [out,
    channels, high, wide] and bias [out], summed in float32 and rounded once. added: like the
    result."""
    wide = [t.float() if t.dtype in _NARROW else t for t in (image, weight, bias)]
    total = aten.convolution.default(*wide, stride, padding, dilation, False, [0, 0], 1)
    total = total if added is None else total + added
    return torch.relu(total).to(image.dtype)


_NARROW = (torch.float16, torch.bfloat16)


def _by_library(
    image: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    added: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> torch.Tensor:
    """The same on a GPU; without a kernel of the library's for these sizes, by several calls."""
    found: torch.Tensor
    bias = bias.to(image.dtype)  # the library would read one of another type as one of this
    try:
        if added is None:
            found = aten.cudnn_convolution_relu.default(
                image, weight, bias, stride, padding, dilation, 1
            )
        else:
            found = aten.cudnn_convolution_add_relu.default(
                image, weight, added, 1.0, bias, stride, padding, dilation, 1
            )
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:
        found = aten.convolution.default(
            image, weight, bias, stride, padding, dilation, False, [0, 0], 1
        )
        found = torch.relu(found if added is None else found + added)
    return found


def _like(
    image: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    added: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> torch.Tensor:
    return aten.convolution.default(  # type: ignore[no-any-return]
        image, weight, None, stride, padding, dilation, False, [0, 0], 1
    )


_LIBRARY = torch.library.Library("fusionplan", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define(  # type: ignore[no-untyped-call]
    "convolution_relu(Tensor image, Tensor weight, Tensor bias, Tensor? added, int[] stride, "
    "int[] padding, int[] dilation) -> Tensor"
)
for _key, _function in (("CPU", convolution_relu), ("CUDA", _by_library), ("Meta", _like)):
    _LIBRARY.impl("convolution_relu", _function, _key)  # type: ignore[no-untyped-call]
