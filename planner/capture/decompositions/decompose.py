"""Decompositions of composite operations into pointwise operations, reductions and views.

torch's core ATen table is the base. It keeps the norms, softmax, gelu and dropout whole, because
a back end may have one kernel for each; here they are the very thing to fuse, so they are opened.
What a vendor library does in one call and nothing here can beat by opening it is kept whole.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch._decomp import core_aten_decompositions, get_decompositions
from torch._prims_common import suggest_memory_format
from torch.utils._pytree import tree_leaves, tree_map_only

from ..refused_types import left_whole
from .by_index import BY_INDEX
from .element_losses import ELEMENT_LOSSES
from .elementwise import OPENED, has_gaps, memory_order
from .lists import LISTS
from .losses import LOSSES, accumulator, dims_of, to
from .pooling import POOLS
from .ranges import RANGES
from .torchs_formulas import MARGINS

aten = torch.ops.aten
Decompositions: TypeAlias = dict[Any, Callable[..., Any]]

# Opened with torch's own formulas.
_OPENED = (
    aten._softmax,
    aten._log_softmax,
    aten._native_batch_norm_legit_no_training,
    aten.batch_norm_backward,
    aten.gelu,
    aten.leaky_relu,
    aten.elu,
    aten.hardtanh,
    aten.linalg_vector_norm,
)

# Likewise, but for the type of their statistics.
_NORMS = (
    aten.native_layer_norm,
    aten.native_batch_norm,
    aten._native_batch_norm_legit,
    aten._native_batch_norm_legit_functional,
    aten._batch_norm_with_update,
    aten._batch_norm_with_update_functional,
)

# In torch's core table, but one vendor call is better than the parts.
_WHOLE = (
    "_scaled_dot_product_flash_attention_for_cpu",
    "scaled_dot_product_attention",
    "addmm",
    "baddbmm",
    "embedding_dense_backward",
    "_unsafe_index",
    "grid_sampler_2d",
    "col2im",
    "im2col",
    "index_add",
    "_upsample_bicubic2d_aa",
    "_upsample_bilinear2d_aa",
    "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d",
    "_upsample_nearest_exact3d",
    "upsample_bicubic2d",
    "upsample_bilinear2d",
    "upsample_linear1d",
    "upsample_nearest1d",
    "upsample_nearest2d",
    "upsample_nearest3d",
    "upsample_trilinear3d",
)


@functools.cache
def _table() -> Decompositions:
    core = core_aten_decompositions()
    table = {op: core[op] for op in core if op.name().split("::")[1].split(".")[0] not in _WHOLE}
    table.update(get_decompositions(_OPENED))
    norms = get_decompositions(_NORMS)
    table.update({op: _with_wide_statistics(formula) for op, formula in norms.items()})
    table.update(_OWN)
    return {
        op: inside(left_whole(op, _with_fresh_results(op, function)))
        for op, function in table.items()
    }


_depth = threading.local()


def inside(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decomposition that knows whether it runs inside of another one."""

    # Without functools.wraps: a thousand of them take part of every process's start.
    def opened(*args: Any, **kwargs: Any) -> Any:
        _depth.of = getattr(_depth, "of", 0) + 1
        try:
            return function(*args, **kwargs)
        finally:
            _depth.of -= 1

    return opened


def _with_fresh_results(op: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """A decomposition whose results have memory of their own where the operation's have. A formula
    may end in one of its operands, or in a view of one (what `copy` leaves is its source): handed
    to the caller, it would be the caller's own tensor, and change with it."""
    returned = getattr(getattr(op, "_schema", None), "returns", ())
    if op in _VIEWS or not returned or any(r.alias_info is not None for r in returned):
        return function

    def opened(*args: Any, **kwargs: Any) -> Any:
        found = function(*args, **kwargs)
        if found is NotImplemented:
            return found
        taken = {_memory(x) for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        return tree_map_only(
            torch.Tensor, lambda x: aten.clone.default(x) if _memory(x) in taken else x, found
        )

    return opened


def _memory(x: torch.Tensor) -> int:
    """Which memory a tensor lies in; tensors without any are each for themselves."""
    return x.untyped_storage()._cdata if torch._C._has_storage(x) else -id(x)


_VIEWS = (aten._unsafe_view.default, aten.lift_fresh.default)
"""Views that their schemas do not call so: they are only made of tensors that nobody else has."""


def _cast(x: torch.Tensor, *, dtype: torch.dtype | None = None, **others: Any) -> Any:
    """A rounding to 16 bits that another decomposition makes, or autograd, is no operation of the
    user's: eager makes it inside of one kernel, or between two. It goes by another name (see
    `trace.precision.rounds`)."""
    users = _depth.of == 1 and torch._C._current_autograd_node() is None
    if users or dtype not in (torch.float16, torch.bfloat16) or any(others.values()):
        return NotImplemented
    return torch.ops.prims.convert_element_type.default(x, dtype)


def decompositions() -> Decompositions:
    """The table for `aot_autograd`, a fresh copy."""
    found = dict(_table())
    # Dynamo of torch 2.12 and later writes `addcmul_` so, and registers the operation as it does.
    fma = getattr(torch.ops.prims, "fma", None)
    return found if fma is None else {**found, fma.default: _fma}


def _fma(a: torch.Tensor, b: Any, c: torch.Tensor) -> Any:
    return aten.add.Tensor(aten.mul.Tensor(a, b), c)


def _count(x: torch.Tensor, dims: Sequence[int]) -> int:
    return math.prod(x.shape[d] for d in dims) if x.dim() else 1


def _mean(
    x: torch.Tensor,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Any:
    """Sum, then division, both in float32 for 16-bit types: the result is rounded once."""
    result = dtype or x.dtype
    if not result.is_floating_point:
        return NotImplemented
    wide = accumulator(result)
    dims = dims_of(x, dim)
    total = aten.sum.dim_IntList(x, dims, keepdim, dtype=None if wide == x.dtype else wide)
    mean = aten.div.Tensor(total, _count(x, dims))
    return mean if result == wide else aten._to_copy.default(mean, dtype=result)


def _of_flags(reduction: Callable[..., Any]) -> Callable[..., Any]:
    """A sum or product into booleans, of whether each element is none of zero: what adds up numbers
    would add up integers, and 0.5 is none. PyTorch opens a sum of all to one over dimensions."""

    def opened(x: torch.Tensor, *where: Any, dtype: torch.dtype | None = None, **more: Any) -> Any:
        if dtype is not torch.bool or x.dtype == torch.bool:
            return NotImplemented
        return reduction(aten.ne.Scalar(x, 0), *where, dtype=dtype, **more)

    return opened


def _mean_of_all(x: torch.Tensor, *, dtype: torch.dtype | None = None) -> Any:
    return _mean(x, dtype=dtype)


def _var_mean(
    x: torch.Tensor,
    dim: int | Sequence[int] | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> Any:
    """Two sweeps: the mean, then the squared distance from it. One sweep over (sum, sum of
    squares) would cancel for data far from zero."""
    if not x.dtype.is_floating_point:
        return NotImplemented
    wide = accumulator(x.dtype)
    values = x if wide == x.dtype else aten._to_copy.default(x, dtype=wide)
    dims = dims_of(x, dim)
    count = _count(x, dims)
    mean = aten.div.Tensor(aten.sum.dim_IntList(values, dims, True), count)
    distance = aten.sub.Tensor(values, mean)
    total = aten.sum.dim_IntList(aten.mul.Tensor(distance, distance), dims, keepdim)
    var = aten.div.Tensor(total, max(count - (1 if correction is None else correction), 0))
    if not keepdim:
        mean = aten.squeeze.dims(mean, dims)
    if wide == x.dtype:
        return var, mean
    return aten._to_copy.default(var, dtype=x.dtype), aten._to_copy.default(mean, dtype=x.dtype)


def _var(
    x: torch.Tensor,
    dim: int | Sequence[int] | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> Any:
    pair = _var_mean(x, dim, correction=correction, keepdim=keepdim)
    return pair if pair is NotImplemented else pair[0]


def _with_wide_statistics(formula: Callable[..., Any]) -> Callable[..., Any]:
    """A norm that keeps its statistics for the backward pass in float32 where its parameters
    are wider than the 16 bits that it normalises, as eager does. torch's formula rounds them on a
    CPU."""

    def opened(x: torch.Tensor, *more: Any, **named: Any) -> Any:
        given = [v for v in (*more, *named.values()) if isinstance(v, torch.Tensor)]
        mixed = x.dtype.itemsize == 2 and any(v.dtype != x.dtype for v in given)
        if x.device.type != "cpu" or not mixed:
            return formula(x, *more, **named)
        result, *others = formula(aten._to_copy.default(x, dtype=torch.float32), *more, **named)
        return (to(result, x.dtype), *others)

    return opened


def _group_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    _batch: int,
    channels: int,
    _spatial: int,
    groups: int,
    eps: float,
) -> Any:
    """As torch's own, but the scale is not folded into a strided view of the statistics."""
    wide = accumulator(x.dtype)
    values = x if wide == x.dtype else aten._to_copy.default(x, dtype=wide)
    shape = list(x.shape)
    parts = aten.view.default(values, [shape[0], groups, channels // groups, *shape[2:]])
    dims = list(range(2, parts.dim()))
    var, mean = aten.var_mean.correction(parts, dims, correction=0, keepdim=True)
    rstd = aten.rsqrt.default(aten.add.Tensor(var, eps))
    result = aten.view.default(aten.mul.Tensor(aten.sub.Tensor(parts, mean), rstd), shape)
    along = [1, channels] + [1] * (len(shape) - 2)
    if weight is not None:
        result = aten.mul.Tensor(result, aten.view.default(weight, along))
    if bias is not None:
        result = aten.add.Tensor(result, aten.view.default(bias, along))
    mean, rstd = aten.squeeze.dims(mean, dims), aten.squeeze.dims(rstd, dims)
    # Beside float32 weights eager keeps the statistics of 16 bits in float32.
    kept = next((v.dtype for v in (weight, bias) if v is not None), x.dtype)
    return to(result, x.dtype), to(mean, kept), to(rstd, kept)


def _split_with_sizes(x: torch.Tensor, sizes: Sequence[int], dim: int = 0) -> list[torch.Tensor]:
    parts, start = [], 0
    for size in sizes:
        parts.append(aten.slice.Tensor(x, dim, start, start + size))
        start += size
    return parts


def _slice_scatter(
    x: torch.Tensor,
    src: torch.Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Any:
    """What is left of the slice, the slice's new content and what is right of it, joined; in the
    order of x in memory, which a write in place keeps."""
    if step != 1 or not x.dim() or has_gaps(x):
        return NotImplemented
    order = memory_order(x)
    if order:
        x, src = aten.permute.default(x, order), aten.permute.default(src, order)
        found = _slice_scatter(x, src, order.index(dim % x.dim()), start, end, step)
        if found is NotImplemented:
            return NotImplemented
        return aten.permute.default(found, [order.index(i) for i in range(x.dim())])
    low, high, _ = slice(start, end).indices(x.shape[dim])
    if src.shape[dim] != high - low:
        return NotImplemented
    if not x.shape[dim]:
        return aten.clone.default(x)
    left = aten.slice.Tensor(x, dim, 0, low)
    right = aten.slice.Tensor(x, dim, high, x.shape[dim])
    parts = [part for part in (left, to(src, x.dtype), right) if part.shape[dim]]
    return aten.cat.default(parts, dim)


def _roll(x: torch.Tensor, shifts: Any, dims: Any = ()) -> Any:
    """Two slices joined, for each dimension; torch's own table reads through an index."""
    shifts = [shifts] if isinstance(shifts, int) else list(shifts)
    dims = [dims] if isinstance(dims, int) else list(dims)
    if not dims:
        flat = aten.view.default(aten.clone.default(x, memory_format=torch.contiguous_format), [-1])
        return aten.view.default(_roll(flat, shifts, [0]), list(x.shape))
    cut = 0
    for shift, dim in zip(shifts, dims, strict=True):
        size = x.shape[dim]
        cut = (size - shift) % size if size else 0
        if cut:
            head = aten.slice.Tensor(x, dim, cut, size)
            x = aten.cat.default([head, aten.slice.Tensor(x, dim, 0, cut)], dim)
    # On a CPU eager joins the parts as well, and keeps channels last.
    joined = cut and x.device.type == "cpu"
    order = suggest_memory_format(x) if joined else torch.contiguous_format
    return aten.clone.default(x, memory_format=order)


_OWN: Decompositions = {
    aten._to_copy.default: _cast,
    aten.mean.default: _mean_of_all,
    aten.sum.dim_IntList: _of_flags(aten.sum.dim_IntList),
    aten.prod.default: _of_flags(aten.prod.default),
    aten.prod.dim_int: _of_flags(aten.prod.dim_int),
    aten.mean.dim: _mean,
    aten.var.correction: _var,
    aten.var_mean.correction: _var_mean,
    aten.native_group_norm.default: _group_norm,
    aten.split_with_sizes.default: _split_with_sizes,
    aten.slice_scatter.default: _slice_scatter,
    aten.roll.default: _roll,
    **BY_INDEX,
    **ELEMENT_LOSSES,
    **LISTS,
    **LOSSES,
    **MARGINS,
    **OPENED,
    **POOLS,
    **RANGES,
}
