"""Decompositions of writes by an index, which torch's own table makes of writes in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .losses import to

aten = torch.ops.aten


def _index_fill(x: torch.Tensor, dim: int, index: torch.Tensor, value: Any) -> Any:
    """One number at these places, which need not be spread over them first."""
    if index.dtype != torch.int64 or index.dim() > 1:
        return NotImplemented  # Eager refuses it.
    if isinstance(value, torch.Tensor):
        number = to(value, x.dtype)
    else:
        number = aten.full.default([], value, dtype=x.dtype, device=x.device)
    whole = x if x.dim() else aten.unsqueeze.default(x, 0)
    at: list[Any] = [None] * (dim % whole.dim())
    filled = aten.index_put.default(whole, [*at, index], number)
    return filled if x.dim() else aten.clone.default(aten.squeeze.dim(filled, 0))


def _index_copy(x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor) -> Any:
    """`index_copy` by `index_put`. torch's own formula writes in place, which AOTAutograd may trace
    as a write into a tensor that is no input. The result lies in memory in order, as eager's; what
    lies so already is not copied, so that a write in place stays one."""
    whole = x if x.dim() else aten.unsqueeze.default(x, 0)
    given = source if source.dim() else aten.unsqueeze.default(source, 0)
    dim %= whole.dim()
    sizes = [index.numel() if d == dim else size for d, size in enumerate(whole.shape)]
    fits = list(given.shape) == sizes and source.dtype == x.dtype and index.dtype == torch.int64
    if index.dim() > 1 or not fits:
        return NotImplemented  # Eager refuses it.
    ordered = whole
    if not whole.is_contiguous():
        ordered = aten.clone.default(whole, memory_format=torch.contiguous_format)
    at: list[Any] = [None] * dim
    flat = index if index.dim() else aten.unsqueeze.default(index, 0)
    copied = aten.index_put.default(ordered, [*at, flat], given)
    return copied if x.dim() else aten.squeeze.dim(copied, 0)


BY_INDEX: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((aten.index_fill.int_Scalar, aten.index_fill.int_Tensor), _index_fill),
    aten.index_copy.default: _index_copy,
}
