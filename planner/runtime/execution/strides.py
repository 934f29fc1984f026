"""Strides that kernels, consumers and callers count on."""

from __future__ import annotations

import torch


def match(value: torch.Tensor, shape: tuple[int, ...], stride: tuple[int, ...]) -> torch.Tensor:
    """The same values with these strides; copied unless only meaningless strides differ."""
    if all(n <= 1 or a == b for n, a, b in zip(shape, value.stride(), stride, strict=True)):
        return value
    if value.numel() == 0:
        return value
    copy = torch.empty_strided(shape, stride, dtype=value.dtype, device=value.device)
    return copy.copy_(value)
