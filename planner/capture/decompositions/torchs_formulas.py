"""Operations that torch itself opens wherever a graph is traced, before it asks any table, and
whose formula is not what eager's kernel computes.

While `as_eager_computes` holds, formulas of our own take the place of margin losses: torch's count
targets behind the end of their list, and NaN. Images of bytes, and those whose size a factor leaves
as it is or doubles, as 1.2 does with 4 pixels, are resized by eager's kernels: each has exceptions
of its own there. So are those of which nothing is left, which eager refuses. On a GPU eager's
gradient of the nearest pixel has arithmetic of its own, which may name another pixel than its
forward pass: `F.interpolate(x, scale_factor=1.2)` of 31 numbers gives two of them gradients of 2
and 1 where their results are 1 and 2. Such sizes, too, are resized by eager's kernels.
"""

from __future__ import annotations

import math
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import Any

import torch
from torch._C import DispatchKey

from .element_losses import reduced
from .losses import accumulator, to

aten = torch.ops.aten

_KEYS = (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd)


class _Tracing(threading.local):
    depth = 0


_TRACING = _Tracing()


@contextmanager
def as_eager_computes() -> Iterator[None]:
    """Within it, in this thread, torch's formulas give what eager's kernels do."""
    _install()
    _TRACING.depth += 1
    try:
        yield
    finally:
        _TRACING.depth -= 1


@cache
def _install() -> None:
    resizes = {op: _resized(op) for op in _RESIZES}
    for op, ours in (MARGINS | resizes).items():
        for key in _KEYS:
            if key in op.py_kernels:
                op.py_kernels[key] = _instead(op.py_kernels[key], ours)
        op._dispatch_cache.clear()


def _instead(torchs: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    def opened(*args: Any, **kwargs: Any) -> Any:
        if not _TRACING.depth:
            return torchs(*args, **kwargs)
        found = ours(*args, **kwargs)
        return torchs(*args, **kwargs) if found is NotImplemented else found

    return opened


# --- images ---

_RESIZES = (
    aten.upsample_nearest1d.vec,
    aten.upsample_nearest2d.vec,
    aten.upsample_nearest3d.vec,
    aten._upsample_nearest_exact1d.vec,
    aten._upsample_nearest_exact2d.vec,
    aten._upsample_nearest_exact3d.vec,
    aten.upsample_linear1d.vec,
    aten.upsample_bilinear2d.vec,
    aten.upsample_bicubic2d.vec,
    aten.upsample_trilinear3d.vec,
)


def _resized(op: Any) -> Callable[..., Any]:
    def resized(x: torch.Tensor, *rest: Any) -> Any:
        sizes, given = x.shape[2:], rest[0]
        is_empty = any(bool(n < 1) for n in (*sizes, *(given or ())))
        is_kept = not x.is_floating_point() or is_empty or _is_exceptional(sizes, rest[-1])
        on_gpu = x.device.type == "cuda"
        if not is_kept and "nearest" in op.name() and on_gpu and x.requires_grad:
            is_kept = _has_another_gradient(sizes, given, rest[-1], "exact" in op.name())
        if not is_kept:
            return NotImplemented
        with torch._C._DisablePythonDispatcher():
            return op(x, *rest)

    return resized


def _is_exceptional(sizes: Sequence[Any], factors: Sequence[float] | None) -> bool:
    """Whether a factor below 3 that is no integer gives a size that an integer gives, too: none at
    all, which eager refuses, the same or twice as much."""
    return factors is not None and any(
        factor < 3 and factor != int(factor) and bool(size * factor < size * int(factor) + 1)
        for size, factor in zip(sizes, factors, strict=False)
    )


def _has_another_gradient(
    sizes: Sequence[Any], given: Sequence[Any] | None, factors: Sequence[float] | None, exact: bool
) -> bool:
    """Whether eager's backward pass on a GPU takes other pixels for the nearest ones than its
    forward pass does. Of sizes that vary nobody knows, unless a factor is an integer."""
    if factors is not None and all(factor == int(factor) for factor in factors):
        return False
    if not all(isinstance(size, int) for size in (*sizes, *(given or ()))):
        return True
    pairs = zip(sizes, factors or given or (), strict=True)
    if factors is not None:
        return any(_takes_others(size, int(size * f), f, exact) for size, f in pairs)
    return any(_takes_others(size, int(n), None, exact) for size, n in pairs)


@lru_cache(256)
def _takes_others(size: int, results: int, factor: float | None, exact: bool) -> bool:
    """The forward pass reads pixel `floor((i + half) * scale)` for result i, the backward pass sums
    for pixel p the results from `ceil(p * inverse - half)` to where those of p + 1 begin
    (ATen/native/cuda/UpSample.cuh), both in float32."""
    half = 0.5 if exact else 0.0
    scale = _float32(1 / factor if factor else size / results)
    inverse = _float32(factor if factor else results / size)
    begins = [math.ceil(_float32(_float32(p * inverse) - half)) for p in range(size + 1)]
    begins = [min(begin, results) for begin in begins]
    read = [min(int(_float32((i + half) * scale)), size - 1) for i in range(results)]
    return any(not begins[p] <= i < begins[p + 1] for i, p in enumerate(read))


def _float32(number: float) -> float:
    """The nearest number of float32."""
    rounded: float = struct.unpack("f", struct.pack("f", number))[0]
    return rounded


# --- margins ---


def _multi_margin_loss(
    x: torch.Tensor,
    target: torch.Tensor,
    p: float = 1,
    margin: float = 1,
    weight: torch.Tensor | None = None,
    reduction: int = 1,
) -> Any:
    if x.dim() not in (1, 2) or x.shape[-1] == 0 or p not in (1, 2):
        return NotImplemented  # eager refuses it, as torch's formula does
    rows, classes = (x[None] if x.dim() == 1 else x), target.reshape(-1)
    if classes.shape != rows.shape[:1] or (weight is not None and weight.numel() != x.shape[-1]):
        return NotImplemented
    place = classes[:, None]
    wide = to(rows, accumulator(x.dtype))
    beyond = margin - wide.gather(1, place) + wide
    is_other = torch.arange(x.shape[-1], device=x.device) != place
    counts = is_other & (beyond > 0)
    lost = torch.where(counts, beyond, 0.0)
    lost = lost if p == 1 else lost * lost
    if weight is not None:
        lost = lost * torch.where(counts, to(weight.view(-1), wide.dtype)[place], 0.0)
    lost = lost.sum(1).view(target.shape) / x.shape[-1]
    return to(reduced(lost, reduction), x.dtype)


def _multilabel_margin_loss(x: torch.Tensor, target: torch.Tensor, reduction: int) -> Any:
    """The loss, and which classes are among the targets."""
    if x.dim() > 2 or x.shape != target.shape or x.dim() == 0 or x.shape[-1] == 0:
        return NotImplemented
    rows, targets = (x[None], target[None]) if x.dim() == 1 else (x, target)
    classes = torch.arange(x.shape[-1], device=x.device)
    ends = torch.where(targets < 0, classes, x.shape[-1]).amin(1, keepdim=True)
    is_meant = classes < ends
    named = torch.where(is_meant, targets, 0)
    is_target = ((named[:, :, None] == classes) & is_meant[:, :, None]).any(1)
    wide = to(rows, accumulator(x.dtype))
    beyond = 1.0 - wide.gather(1, named)[:, :, None] + wide[:, None, :]
    counts = is_meant[:, :, None] & ~is_target[:, None, :] & (beyond > 0)
    lost = torch.where(counts, beyond, 0.0).sum((1, 2)) / x.shape[-1]
    if x.dim() == 1:
        lost = lost.view(())
    found = is_target.to(x.dtype).view(x.shape)
    return to(reduced(lost, reduction), x.dtype), found


MARGINS: dict[Any, Callable[..., Any]] = {
    aten.multi_margin_loss.default: _multi_margin_loss,
    aten.multilabel_margin_loss_forward.default: _multilabel_margin_loss,
}
