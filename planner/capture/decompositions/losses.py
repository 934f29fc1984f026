"""Decompositions that pick by index: losses of classes, gathers of one element a row, places of
extrema, dropout.

An index chooses by comparison with the index of an axis, which a kernel that streams along that
axis has in any case. Only from what lies in memory is the one element read by its index.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot

from ...graph.library import bitcast, uniform
from ...graph.ops import OPS, View

aten = torch.ops.aten


def dims_of(x: torch.Tensor, dim: int | Sequence[int] | None) -> list[int]:
    """Dimensions as torch means them: none given is all."""
    given = [dim] if isinstance(dim, int) else list(dim or ())
    return [d % max(x.dim(), 1) for d in given] if given else list(range(x.dim()))


def to(x: Any, dtype: torch.dtype) -> torch.Tensor:
    """x in another type; itself where it has that type."""
    result: torch.Tensor = x if x.dtype == dtype else aten._to_copy.default(x, dtype=dtype)
    return result


def scalar(number: float, dtype: torch.dtype, like: torch.Tensor) -> torch.Tensor:
    """A constant on the device of another tensor."""
    result: torch.Tensor = aten.full.default([], number, dtype=dtype, device=like.device)
    return result


def accumulator(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


# --- picking by index: a fold over `where(index of the axis == index, value, 0)` ---


def _node_of(x: torch.Tensor) -> fx.Node | None:
    """The node that stands for x in the graph under construction."""
    mode = get_proxy_mode()
    slot = get_proxy_slot(x, mode.tracer, None) if mode is not None else None
    node = getattr(getattr(slot, "proxy", None), "node", None)
    return node if isinstance(node, fx.Node) else None


def _is_stored(x: torch.Tensor) -> bool:
    """Whether x is, or views, what no generated kernel computes: an input of the graph, or the
    result of an opaque operation."""
    node = _node_of(x)
    while isinstance(node, fx.Node) and node.op == "call_function":
        kind = OPS.get(str(node.target))
        if kind is None:
            return True
        if not isinstance(kind, View):
            return False
        source = node.args[0]
        node = source if isinstance(source, fx.Node) else None
    return node is not None


def _picked(x: torch.Tensor, index: torch.Tensor, dim: int) -> torch.Tensor:
    """Where x, shaped as the result, has along `dim` the place that `index` (of size 1 there)
    names. An index outside the axis is nowhere; eager raises for one."""
    shape = [1] * x.dim()
    shape[dim] = size = x.shape[dim]
    narrow = torch.int32 if size < 2**31 else torch.int64
    places = aten.arange.start_step(0, size, 1, dtype=narrow, device=x.device)
    here: torch.Tensor = aten.eq.Tensor(aten.view.default(places, shape), to(index, narrow))
    return here


def _pick(x: torch.Tensor, index: torch.Tensor, dim: int, wide: bool = False) -> torch.Tensor:
    """The one element of x along `dim`, kept with size 1, at `index`; with `wide` a 16-bit float
    comes as float32. Selected, not multiplied: the others may be infinite."""
    here = _picked(x, index, dim)
    found: torch.Tensor
    if x.dtype == torch.bool:
        found = aten.any.dim(aten.logical_and.default(here, x), dim, True)
        return found
    alone = aten.where.self(here, x, scalar(0, x.dtype, x))
    dtype = accumulator(x.dtype) if wide else x.dtype
    found = aten.sum.dim_IntList(alone, [dim], True, dtype=None if dtype == x.dtype else dtype)
    return found if found.dtype == dtype else to(found, dtype)


def _along(x: torch.Tensor, index: torch.Tensor, dim: int) -> torch.Tensor | None:
    """x cut to the index's sizes, which may be smaller beside `dim`; None when the index is not of
    size 1 along `dim`."""
    if x.dim() == 0 or index.dim() != x.dim() or index.shape[dim] != 1 or not x.numel():
        return None
    for other in range(x.dim()):
        if other != dim and index.shape[other] < x.shape[other]:
            x = aten.slice.Tensor(x, other, 0, index.shape[other])
    return x


def _gather(x: torch.Tensor, dim: int, index: torch.Tensor, *, sparse_grad: bool = False) -> Any:
    dim %= max(x.dim(), 1)
    cut = _along(x, index, dim)
    if cut is None or _is_stored(x):
        return NotImplemented
    return _pick(cut, index, dim)


def _scatter_add(x: torch.Tensor, dim: int, index: torch.Tensor, src: torch.Tensor) -> Any:
    """The derivative of a gather; an index of size 1 along `dim` meets no place twice."""
    dim %= max(x.dim(), 1)
    added = _placed(x, dim, index, src, 0)
    return added if added is NotImplemented else aten.add.Tensor(x, added)


def _scatter(x: torch.Tensor, dim: int, index: torch.Tensor, src: torch.Tensor) -> Any:
    return _placed(x, dim, index, src, x)


def _scatter_value(x: torch.Tensor, dim: int, index: torch.Tensor, value: complex) -> Any:
    return _placed(x, dim, index, value, x)


def _placed(x: torch.Tensor, dim: int, index: torch.Tensor, src: Any, other: Any) -> Any:
    """src (a number, or a tensor of size 1 along `dim`) at the index, `other` elsewhere."""
    dim %= max(x.dim(), 1)
    cut = _along(x, index, dim)
    if cut is None or cut.shape != x.shape:
        return NotImplemented
    if isinstance(src, torch.Tensor) and src.dim() != index.dim():
        return NotImplemented  # In place of a source of one element eager takes a number.
    here = _picked(x, index, dim)
    if isinstance(src, torch.Tensor):
        for axis, size in enumerate(index.shape):
            if src.shape[axis] > size:
                src = aten.slice.Tensor(src, axis, 0, size)
    else:
        src = scalar(src, x.dtype, x)
    if not isinstance(other, torch.Tensor):
        other = scalar(other, x.dtype, x)
    return aten.where.self(here, src, other)


# --- losses of classes ---

_NONE, _MEAN, _SUM = range(3)


def _nll_loss(
    x: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    reduction: int,
    ignore_index: int,
) -> Any:
    """Loss and total weight; log probabilities [C], [N, C] or [N, C, ...]. A target that is no
    class counts as one with a log probability of 0; eager raises for one."""
    dim = min(x.dim() - 1, 1)
    if not _are_classes(x, target):
        return NotImplemented
    target = target if target.dim() == x.dim() else aten.unsqueeze.default(target, dim)
    zero = scalar(0, accumulator(x.dtype), x)
    valid = aten.ne.Scalar(target, ignore_index)
    loss = aten.neg.default(_of_class(x, target, valid, dim))
    counted: torch.Tensor = valid
    if weight is not None:
        own = _pick(
            aten.expand.default(_by_class(weight, x.dim()), x.shape), target, dim, wide=True
        )
        loss = aten.mul.Tensor(loss, own)
        counted = aten.where.self(valid, own, zero)
    loss = aten.squeeze.dim(aten.where.self(valid, loss, zero), dim)
    if reduction == _NONE and x.dim() > 1:
        return to(loss, x.dtype), scalar(0, x.dtype, x)
    total = to(aten.sum.default(counted), zero.dtype)
    loss = aten.sum.default(loss)
    if reduction == _MEAN:
        loss = aten.div.Tensor(loss, total)
    return to(loss, x.dtype), to(total, x.dtype)


def _are_classes(x: torch.Tensor, target: torch.Tensor) -> bool:
    """Whether the target has one class for each row of x, in a type that the loss accepts."""
    fits = x.dim() > 0 and bool(x.numel()) and target.dim() in (x.dim() - 1, x.dim())
    return fits and target.dtype in (torch.int64, torch.uint8)


def _of_class(x: torch.Tensor, target: torch.Tensor, valid: torch.Tensor, dim: int) -> torch.Tensor:
    """The element of x at each target, of 16-bit floats as float32; any where it is not valid."""
    if not _is_stored(x):
        return _pick(x, target, dim, wide=True)
    place = aten.where.self(valid, to(target, torch.int64), scalar(0, torch.int64, x))
    return to(aten.gather.default(x, dim, place), accumulator(x.dtype))


def _by_class(weight: torch.Tensor, rank: int) -> torch.Tensor:
    shape = [1] * rank
    shape[min(rank - 1, 1)] = weight.shape[0]
    result: torch.Tensor = aten.view.default(weight, shape)
    return result


def _nll_loss_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: torch.Tensor,
) -> Any:
    """-grad at the target, 0 elsewhere: nothing of x is read."""
    dim = min(x.dim() - 1, 1)
    if not _are_classes(x, target):
        return NotImplemented
    target = target if target.dim() == x.dim() else aten.unsqueeze.default(target, dim)
    zero = scalar(0, x.dtype, x)
    if reduction == _MEAN:
        grad = aten.div.Tensor(grad, total_weight)
    if 0 < grad.dim() < x.dim():
        grad = aten.unsqueeze.default(grad, dim)
    grad = aten.where.self(aten.ne.Scalar(target, ignore_index), aten.neg.default(grad), zero)
    if weight is not None:
        grad = aten.mul.Tensor(grad, _by_class(weight, x.dim()))
    return aten.where.self(_picked(x, target, dim), grad, zero)


def _log_softmax_backward(
    grad: torch.Tensor, output: torch.Tensor, dim: int, input_dtype: torch.dtype
) -> Any:
    """grad - exp(output) * sum(grad); the sum of a loss's gradient is one element (see
    `selected_element_sums`)."""
    wide = accumulator(output.dtype)
    total = aten.sum.dim_IntList(to(grad, wide), [dim], True)
    share = aten.mul.Tensor(aten.exp.default(to(output, wide)), total)
    result = aten.sub.Tensor(to(grad, wide), share)
    return to(result, input_dtype)


# --- where an extremum is ---


def arg_extremum(x: torch.Tensor, dims: list[int], keepdim: bool, sign: int) -> Any:
    """Index of the first greatest (sign 1) or least (-1) element along `dims`, counted over them as
    one; NaN is beyond any number. One fold over (value, index), packed as an integer that orders
    as the pair does, of 32 bits where both have 16; for 64-bit types, which leave no room beside
    them, two folds."""
    sizes = [n if d in dims else 1 for d, n in enumerate(x.shape)]
    count = math.prod(sizes)
    if not x.dim() or not count or count >= 2**31 or x.dtype.is_complex:
        return NotImplemented
    places = aten.arange.start_step(0, count, 1, dtype=torch.int64, device=x.device)
    places = aten.view.default(places, sizes)
    if x.dtype in (torch.float64, torch.int64):
        best = (aten.amax if sign > 0 else aten.amin).default(x, dims, True)
        first = aten.eq.Tensor(x, best)
        if x.dtype == torch.float64:
            first = aten.logical_or.default(first, aten.isnan.default(x))
        beyond = scalar(count, torch.int64, x)
        return aten.amin.default(aten.where.self(first, places, beyond), dims, keepdim)
    if x.dtype == torch.bfloat16 and count <= _LOW_HALF + 1:
        return _first_of_halves(x, to(places, torch.int32), dims, keepdim, sign)
    key = to(_sortable(x, sign), torch.int64)
    # The high word is the value, the low word the index, reversed where the greatest wins.
    low = aten.bitwise_xor.Scalar(places, _LOW_WORD) if sign > 0 else places
    packed = aten.add.Tensor(aten.mul.Scalar(key, 2**32), low)
    best = (aten.amax if sign > 0 else aten.amin).default(packed, dims, keepdim)
    index = aten.bitwise_and.Scalar(best, _LOW_WORD)
    return aten.bitwise_xor.Scalar(index, _LOW_WORD) if sign > 0 else index


_LOW_WORD = 2**31 - 1
_LOW_HALF = 2**16 - 1


def _first_of_halves(
    x: torch.Tensor, places: torch.Tensor, dims: list[int], keepdim: bool, sign: int
) -> torch.Tensor:
    """The index for bfloat16, whose bits are the high half of a float32's. A kernel may hold x
    unrounded: the low half is rounded away, so that equal numbers are those that are for eager."""
    low = aten.bitwise_xor.Scalar(places, _LOW_HALF) if sign > 0 else places
    high = aten.bitwise_and.Scalar(_sortable(x, sign, _rounded_half), ~_LOW_HALF)
    packed = aten.bitwise_or.Tensor(high, low)
    best = (aten.amax if sign > 0 else aten.amin).default(packed, dims, keepdim)
    index = aten.bitwise_and.Scalar(best, _LOW_HALF)
    index = aten.bitwise_xor.Scalar(index, _LOW_HALF) if sign > 0 else index
    return to(index, torch.int64)


def _rounded_half(bits: torch.Tensor) -> torch.Tensor:
    """The bits of a float32 with its high half rounded to the nearest, ties to the even one."""
    odd = aten.ne.Scalar(aten.bitwise_and.Scalar(bits, _LOW_HALF + 1), 0)
    up = aten.add.Tensor(bits, to(odd, torch.int32))
    rounded: torch.Tensor = aten.add.Scalar(up, _LOW_HALF >> 1)
    return rounded


def _sortable(
    x: torch.Tensor, sign: int, changed: Callable[[torch.Tensor], torch.Tensor] = lambda bits: bits
) -> torch.Tensor:
    """An int32 that orders as x does: -0.0 is 0.0, and NaN the greatest or, with sign -1, the
    least. changed: what becomes of the bits of a float32 first."""
    if not x.dtype.is_floating_point:
        return to(x, torch.int32)
    value = to(x, torch.float32)
    bits = changed(bitcast(aten.add.Scalar(value, 0.0), torch.int32))
    flipped = aten.bitwise_xor.Scalar(bits, _LOW_WORD)
    key: torch.Tensor = aten.where.self(aten.lt.Scalar(bits, 0), flipped, bits)
    beyond = _LOW_WORD if sign > 0 else -(2**31)
    nan = scalar(beyond, torch.int32, x)
    key = aten.where.self(aten.isnan.default(value), nan, key)
    return key


def _argmax(x: torch.Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    return arg_extremum(x, dims_of(x, dim if dim is None else [dim]), keepdim, 1)


def _argmin(x: torch.Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    return arg_extremum(x, dims_of(x, dim if dim is None else [dim]), keepdim, -1)


def _max_dim(x: torch.Tensor, dim: int, keepdim: bool = False) -> Any:
    index = arg_extremum(x, dims_of(x, [dim]), keepdim, 1)
    return index if index is NotImplemented else (aten.amax.default(x, [dim], keepdim), index)


def _min_dim(x: torch.Tensor, dim: int, keepdim: bool = False) -> Any:
    index = arg_extremum(x, dims_of(x, [dim]), keepdim, -1)
    return index if index is NotImplemented else (aten.amin.default(x, [dim], keepdim), index)


def _view_dtype(x: torch.Tensor, dtype: torch.dtype) -> Any:
    """The same bits as another type of 32 or 64 bits; 16-bit floats are float32 in registers."""
    pairs = ({torch.float32, torch.int32}, {torch.float64, torch.int64})
    return bitcast(x, dtype) if {x.dtype, dtype} in pairs else NotImplemented


# --- dropout ---


def _native_dropout(x: torch.Tensor, p: float, train: bool | None) -> Any:
    """One random number is drawn; from it and its own index every element makes its own, so that
    no kernel reads a mask."""
    if train is False or p == 0:
        return x, aten.full_like.default(x, True, dtype=torch.bool)
    if p == 1:
        return aten.full_like.default(x, 0), aten.full_like.default(x, False, dtype=torch.bool)
    if not x.dtype.is_floating_point or x.numel() >= 2**32:
        return NotImplemented
    seed = aten.randint.low(-(2**63), 2**63 - 1, [], dtype=torch.int64, device=x.device)
    places = aten.arange.start_step(0, x.numel(), 1, dtype=torch.int64, device=x.device)
    kept = aten.gt.Scalar(uniform(seed, aten.view.default(places, list(x.shape))), p)
    return aten.mul.Tensor(aten.mul.Tensor(x, kept), 1.0 / (1.0 - p)), kept


LOSSES: dict[Any, Callable[..., Any]] = {
    aten.gather.default: _gather,
    aten.scatter_add.default: _scatter_add,
    aten.scatter.src: _scatter,
    aten.scatter.value: _scatter_value,
    aten.nll_loss_forward.default: _nll_loss,
    aten.nll_loss2d_forward.default: _nll_loss,
    aten.nll_loss_backward.default: _nll_loss_backward,
    aten.nll_loss2d_backward.default: _nll_loss_backward,
    aten._log_softmax_backward_data.default: _log_softmax_backward,
    aten.argmax.default: _argmax,
    aten.argmin.default: _argmin,
    aten.max.dim: _max_dim,
    aten.min.dim: _min_dim,
    aten.view.dtype: _view_dtype,
    aten.native_dropout.default: _native_dropout,
}
