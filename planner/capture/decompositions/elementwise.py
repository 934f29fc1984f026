"""Decompositions of single elementwise operations and of views, where torch's own table keeps the
operation whole, reads through an index, or loses accuracy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch._refs
from torch._prims_common import suggest_memory_format

from .losses import accumulator, scalar, to

aten = torch.ops.aten


# --- one element ---


def _kept_whole(x: torch.Tensor) -> Any:
    """floor, ceil and trunc of an integer."""
    return NotImplemented if x.dtype.is_floating_point else aten.clone.default(x)


def _power(x: torch.Tensor, exponent: Any) -> Any:
    """x to the power of 1 is x, which a GPU's general function gives but for the last place."""
    one = isinstance(exponent, (int, float)) and exponent == 1
    return aten.clone.default(x) if one and x.dtype.is_floating_point else NotImplemented


def _frac(x: torch.Tensor) -> Any:
    """0.0 for -0.0, as eager; torch's own formula for it depends on its version."""
    return aten.sub.Tensor(x, aten.trunc.default(x))


def _xlogy(x: torch.Tensor, y: torch.Tensor) -> Any:
    """x * log(x) as divergences have it: what is NaN there is so without a choice."""
    if x is not y or not x.dtype.is_floating_point:
        return torch._refs.xlogy(x, y)
    wide = to(x, accumulator(x.dtype))
    product = aten.mul.Tensor(wide, aten.log.default(wide))
    zero = scalar(0, wide.dtype, wide)
    return to(aten.where.self(aten.eq.Scalar(wide, 0), zero, product), x.dtype)


def _hardsigmoid(x: torch.Tensor) -> Any:
    """On GPUs by a float32 factor, for float64 too, as eager there."""
    inside = aten.clamp.default(aten.add.Tensor(to(x, accumulator(x.dtype)), 3), 0, 6)
    if x.device.type == "cpu":
        return to(aten.div.Tensor(inside, 6), x.dtype)
    return to(aten.mul.Tensor(inside, _SIXTH), x.dtype)


def _hardswish(x: torch.Tensor) -> Any:
    """As `_hardsigmoid`."""
    wide = to(x, accumulator(x.dtype))
    product = aten.mul.Tensor(wide, aten.clamp.default(aten.add.Tensor(wide, 3), 0, 6))
    if x.device.type == "cpu":
        return to(aten.div.Tensor(product, 6), x.dtype)
    return to(aten.mul.Tensor(product, _SIXTH), x.dtype)


def _hardsigmoid_backward(grad: torch.Tensor, x: torch.Tensor) -> Any:
    """By the float32 factor on every device."""
    wide = accumulator(x.dtype)
    inside = aten.logical_and.default(aten.gt.Scalar(x, -3), aten.lt.Scalar(x, 3))
    scaled = to(aten.mul.Tensor(to(grad, wide), _SIXTH), x.dtype)
    return aten.where.self(inside, scaled, scalar(0, x.dtype, x))


_SIXTH = 0.16666667163372040
"""1 / 6 in float32."""


def _round_decimals(x: torch.Tensor, *, decimals: int) -> Any:
    """By a power of ten up and down again, in float32 for 16-bit types."""
    if not x.dtype.is_floating_point:
        return aten.clone.default(x)
    if decimals == 0:
        return aten.round.default(x)
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    values, ten = to(x, wide), 10.0 ** abs(decimals)
    first, second = (aten.mul.Tensor, aten.div.Tensor)
    if decimals < 0:
        first, second = second, first
    return to(second(aten.round.default(first(values, ten)), ten), x.dtype)


def _logical(op: Any) -> Callable[..., Any]:
    """A connective of booleans, of the operands' being not 0."""

    def opened(x: torch.Tensor, y: torch.Tensor) -> Any:
        if x.dtype == y.dtype == torch.bool:
            return NotImplemented
        left, right = (v if v.dtype == torch.bool else aten.ne.Scalar(v, 0) for v in (x, y))
        return op(left, right)

    return opened


def _floor_divide(x: Any, y: Any) -> Any:
    return aten.div.Tensor_mode(x, y, rounding_mode="floor")


def _floor_divide_scalar(x: Any, y: Any) -> Any:
    return aten.div.Scalar_mode(x, y, rounding_mode="floor")


def _angle(x: torch.Tensor) -> Any:
    if x.dtype.is_complex:
        return NotImplemented
    dtype = x.dtype if x.dtype.is_floating_point else torch.get_default_dtype()
    turned = aten.where.self(aten.lt.Scalar(x, 0), scalar(math.pi, dtype, x), scalar(0.0, dtype, x))
    return aten.where.self(aten.isnan.default(x), to(x, dtype), turned)


def _ldexp(x: torch.Tensor, exponent: torch.Tensor) -> Any:
    """A whole power of two in four factors: by itself it may be too large or too small for the
    type of a product that is neither."""
    if exponent.dtype.is_floating_point or not x.dtype.is_floating_point:
        return aten.mul.Tensor(x, aten.exp2.default(exponent))
    wide = accumulator(x.dtype)
    far = 2400 if wide == torch.float64 else 400
    exponent = aten.clamp.default(to(exponent, torch.int32), -far, far)
    part = aten.div.Tensor_mode(exponent, 4, rounding_mode="trunc")
    rest = aten.sub.Tensor(exponent, aten.mul.Tensor(part, 3))
    factor, last = (aten.exp2.default(to(each, wide)) for each in (part, rest))
    found = to(x, wide)
    for each in (factor, factor, factor, last):
        found = aten.mul.Tensor(found, each)
    return to(found, x.dtype)


def _with_a_term(op: Any) -> Callable[..., Any]:
    """x + value * op(y, z), where ATen rounds 16-bit floats once, and cuts a number beside
    integers to one. Torch's own table has an operation for it that nothing else uses."""

    def opened(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor, *, value: Any = 1) -> Any:
        dtype, wide = x.dtype, accumulator(x.dtype)
        if not any(v.dtype.is_floating_point or v.dtype.is_complex for v in (x, y, z)):
            value = int(value)
        if dtype == y.dtype == z.dtype != wide:
            x, y, z = (to(v, wide) for v in (x, y, z))
        term = op(y, z)
        total = aten.add.Tensor(x, term if value == 1 else aten.mul.Scalar(term, value))
        return to(total, dtype) if x.dtype != dtype else total

    return opened


def _copy(x: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> Any:
    """What `x.copy_(source)` leaves in x, which keeps its strides: what follows may ask for them.
    Of a slice with gaps they do not matter, as it is put back into the whole."""
    if x.device != source.device:
        return NotImplemented
    written = to(source, x.dtype)
    if written.shape != x.shape:
        written = aten.expand.default(written, list(x.shape))
    strides = x.stride()
    order = sorted(range(x.dim()), key=lambda d: (-strides[d], d))
    if written.stride() == strides or not _is_dense(x, order):
        return written
    ordered = aten.permute.default(written, order)
    dense = aten.clone.default(ordered, memory_format=torch.contiguous_format)
    return aten.permute.default(dense, _inverse(order))


def _is_dense(x: torch.Tensor, order: Sequence[int]) -> bool:
    """Whether the elements fill their memory, each in a place of its own. order: dimensions, the
    longest stride first."""
    wanted = 1
    for dim in reversed(order):
        if x.shape[dim] != 1 and x.stride(dim) != wanted:
            return False
        wanted *= x.shape[dim]
    return True


def _dist(x: torch.Tensor, y: torch.Tensor, p: float = 2) -> Any:
    return aten.linalg_vector_norm.default(aten.sub.Tensor(x, y), p)


# --- views ---


def _join(parts: Sequence[torch.Tensor], dim: int) -> torch.Tensor:
    there = [part for part in parts if part.shape[dim]]
    result: torch.Tensor = there[0] if len(there) == 1 else aten.cat.default(there, dim)
    return result


def _constant_pad(x: torch.Tensor, pad: Sequence[int], value: complex = 0) -> Any:
    """The tensor beside constants, dimension by dimension; what is negative is cut off."""
    if isinstance(value, complex) or not x.numel():
        return NotImplemented
    own = x
    for i, (before, after) in enumerate(zip(pad[::2], pad[1::2], strict=True)):
        dim = x.dim() - 1 - i
        size = x.shape[dim]
        if size + min(before, 0) + min(after, 0) <= 0:
            return NotImplemented
        if before < 0 or after < 0:
            x = aten.slice.Tensor(x, dim, max(-before, 0), size + min(after, 0))
        sides = []
        for count in (before, after):
            shape = list(x.shape)
            shape[dim] = max(count, 0)
            sides.append(aten.full.default(shape, value, dtype=x.dtype, device=x.device))
        x = _join((sides[0], x, sides[1]), dim)
    return aten.clone.default(x) if max(pad) <= 0 else dense(x, suggest_memory_format(own))


def _mirrored(x: torch.Tensor, pad: Sequence[int]) -> Any:
    """Padding by reflection: the edge itself is not repeated."""
    for i, (before, after) in enumerate(zip(pad[::2], pad[1::2], strict=True)):
        dim = x.dim() - 1 - i
        size = x.shape[dim]
        if min(before, after) < 0 or max(before, after) >= size:
            return NotImplemented
        left = aten.flip.default(aten.slice.Tensor(x, dim, 1, before + 1), [dim])
        right = aten.flip.default(aten.slice.Tensor(x, dim, size - after - 1, size - 1), [dim])
        x = _join((left, x, right), dim)
    return x


def _replicated(x: torch.Tensor, pad: Sequence[int]) -> Any:
    """Padding by the elements at the edge."""
    own = x
    for i, (before, after) in enumerate(zip(pad[::2], pad[1::2], strict=True)):
        dim = x.dim() - 1 - i
        cut = x.shape[dim] + min(before, 0) + min(after, 0)
        if cut <= 0:
            return NotImplemented
        if min(before, after) < 0:
            x = aten.slice.Tensor(x, dim, max(-before, 0), max(-before, 0) + cut)
        before, after, size = max(before, 0), max(after, 0), cut
        sides = []
        for count, place in ((before, 0), (after, size - 1)):
            shape = list(x.shape)
            shape[dim] = count
            edge = aten.slice.Tensor(x, dim, place, place + 1)
            sides.append(aten.expand.default(edge, shape))
        x = _join((sides[0], x, sides[1]), dim)
    if max(pad) <= 0:
        return aten.clone.default(x)
    return dense(x, suggest_memory_format(own)) if min(pad) < 0 else x


def _replicated_back(grad: torch.Tensor, x: torch.Tensor, pad: Sequence[int]) -> Any:
    """Gradient of such a padding: the elements at the edge take the sides in."""
    sides = [*zip(pad[::2], pad[1::2], strict=True)]
    left = [x.shape[-1 - i] + min(a, 0) + min(b, 0) for i, (a, b) in enumerate(sides)]
    if max(map(abs, pad)) > _WIDEST_SIDE or min(left) <= 0:
        return NotImplemented
    for i, (before, after) in enumerate(sides):
        dim = x.dim() - 1 - i
        kept = x.shape[dim] + min(before, 0) + min(after, 0)
        low = max(before, 0)
        middle = aten.slice.Tensor(grad, dim, low, low + kept)
        shape = [1] * x.dim()
        shape[dim] = kept
        index = aten.arange.start_step(0, kept, 1, dtype=torch.int64, device=x.device)
        for place, first, count in ((0, 0, low), (kept - 1, low + kept, max(after, 0))):
            edge = aten.eq.Scalar(aten.view.default(index, shape), place)
            for at in range(first, first + count):
                side = aten.slice.Tensor(grad, dim, at, at + 1)
                none = scalar(0, grad.dtype, grad)
                middle = aten.add.Tensor(middle, aten.where.self(edge, side, none))
        around = [0, 0] * i + [max(-before, 0), max(-after, 0)]
        grad = aten.constant_pad_nd.default(middle, around) if any(around) else middle
    return grad if max(pad) > 0 else aten.clone.default(grad)


_WIDEST_SIDE = 8
"""Elements of a side that are added one by one."""


def _reflected_back(grad: torch.Tensor, x: torch.Tensor, pad: Sequence[int]) -> Any:
    """Gradient of a padding by reflection: the sides turned around, onto what they show."""
    for i, (before, after) in enumerate(zip(pad[::2], pad[1::2], strict=True)):
        dim = x.dim() - 1 - i
        size = x.shape[dim]
        if min(before, after) < 0 or max(before, after) >= size:
            return NotImplemented
        middle = aten.slice.Tensor(grad, dim, before, before + size)
        ends = ((0, before, 1), (before + size, before + size + after, size - 1 - after))
        for start, stop, place in ends:
            if stop > start:
                side = aten.flip.default(aten.slice.Tensor(grad, dim, start, stop), [dim])
                around = [0, 0] * i + [place, size - place - (stop - start)]
                middle = aten.add.Tensor(middle, aten.constant_pad_nd.default(side, around))
        grad = middle
    return grad


def _trace(x: torch.Tensor) -> Any:
    return aten.sum.default(aten.diagonal.default(x))


def has_gaps(x: torch.Tensor) -> bool:
    """Whether there is memory between its elements that is not its own. What is scattered into such
    a tensor is such a tensor in eager."""
    spanned = sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True)) + 1
    return spanned > x.numel()


def memory_order(x: torch.Tensor) -> list[int]:
    """The dimensions from the widest stride to the narrowest, of a tensor that is contiguous in
    this order, and not in its own; else none."""
    order = sorted(range(x.dim()), key=x.stride().__getitem__, reverse=True)
    return order if not x.is_contiguous() and x.permute(order).is_contiguous() else []


def _select_scatter(x: torch.Tensor, src: torch.Tensor, dim: int, index: int) -> Any:
    if has_gaps(x):
        return NotImplemented
    return _copy(x, torch._refs.select_scatter(x, src, dim, index))


def _diagonal_scatter(
    x: torch.Tensor, src: torch.Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Any:
    """src where row + offset is the column, x elsewhere. Of an x with gaps the result has gaps."""
    if has_gaps(x):
        return NotImplemented
    dim1, dim2 = dim1 % x.dim(), dim2 % x.dim()
    rows, columns = x.shape[dim1], x.shape[dim2]
    if not src.numel():
        return aten.clone.default(x)
    order = memory_order(x)
    if order:
        rest = [d for d in range(x.dim()) if d not in (dim1, dim2)]
        moved = [rest.index(d) for d in order if d in rest]
        src = aten.permute.default(src, [*moved, len(rest)])
        x, dim1, dim2 = aten.permute.default(x, order), order.index(dim1), order.index(dim2)
        found = _diagonal_scatter(x, src, offset, dim1, dim2)
        return aten.permute.default(found, _inverse(order))
    below = max(-offset, 0)
    if rows > src.shape[-1]:
        src = aten.constant_pad_nd.default(src, [below, rows - below - src.shape[-1]])
    # Dimensions of src are those of x but two, then the diagonal: put each where x has it.
    order = [d for d in range(x.dim()) if d not in (dim1, dim2)] + [dim1, dim2]
    placed = aten.permute.default(aten.unsqueeze.default(src, -1), _inverse(order))
    index = [
        aten.view.default(
            aten.arange.start_step(0, size, 1, dtype=torch.int64, device=x.device),
            [size if d == dim else 1 for d in range(x.dim())],
        )
        for size, dim in ((rows, dim1), (columns, dim2))
    ]
    here = aten.eq.Tensor(aten.add.Scalar(index[0], offset), index[1])
    return dense(aten.where.self(here, to(placed, x.dtype), x))


def dense(x: torch.Tensor, order: torch.memory_format = torch.contiguous_format) -> Any:
    """A tensor in this order in memory: itself, or a copy."""
    if x.is_contiguous(memory_format=order):
        return x
    return aten.clone.default(x, memory_format=order)


def _cross(x: torch.Tensor, y: torch.Tensor, *, dim: int = -1) -> Any:
    """By elements one and two places on; torch's own table reads through an index."""
    if x.shape != y.shape:
        shape = [max(m, n) if m and n else 0 for m, n in zip(x.shape, y.shape, strict=True)]
        x, y = (aten.expand.default(v, shape) for v in (x, y))
    dim %= x.dim()
    (x1, x2), (y1, y2) = ([_ahead(v, dim, n) for n in (1, 2)] for v in (x, y))
    return dense(aten.sub.Tensor(aten.mul.Tensor(x1, y2), aten.mul.Tensor(x2, y1)))


def _ahead(x: torch.Tensor, dim: int, places: int) -> torch.Tensor:
    cut = aten.slice.Tensor(x, dim, places, x.shape[dim])
    return _join((cut, aten.slice.Tensor(x, dim, 0, places)), dim)


def _inverse(order: Sequence[int]) -> list[int]:
    return sorted(range(len(order)), key=lambda place: order[place])


def _diagonal_backward(
    grad: torch.Tensor, sizes: Sequence[int], offset: int, dim1: int, dim2: int
) -> Any:
    zeros = aten.full.default(list(sizes), 0, dtype=grad.dtype, device=grad.device)
    return _diagonal_scatter(zeros, grad, offset, dim1, dim2)


def _eye(
    rows: int,
    columns: int | None = None,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> Any:
    """Ones where the row is the column. Counted in int64: torch's own formula counts in uint8 or
    uint16, and CUDA has no `arange` of the latter."""
    if layout not in (None, torch.strided) or pin_memory:
        return NotImplemented
    row, column = (
        aten.arange.start_step(0, size, 1, dtype=torch.int64, device=device)
        for size in (rows, rows if columns is None else columns)
    )
    here = aten.eq.Tensor(aten.unsqueeze.default(row, -1), column)
    return to(here, dtype or torch.get_default_dtype())


def _repeat(x: torch.Tensor, repeats: Sequence[int]) -> Any:
    """The result lies in order, as eager's does; torch's own formula keeps the order of x."""
    for _ in range(len(repeats) - x.dim()):
        x = aten.unsqueeze.default(x, 0)
    whole = [count * size for count, size in zip(repeats, x.shape, strict=True)]
    spread: list[int] = []
    for count, size in zip(repeats, list(x.shape), strict=True):
        if count != 1 and size != 1:
            x = aten.unsqueeze.default(x, len(spread))
            spread += [count, size]
        else:
            spread.append(count * size)
    found = aten.clone.default(
        aten.expand.default(x, spread), memory_format=torch.contiguous_format
    )
    return aten.view.default(found, whole)


def _zeros(
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> Any:
    """Zeros with memory of their own. What torch makes for derivatives that are zero has none: a
    kernel would read at address 0."""
    return aten.full.default(list(size), 0, dtype=dtype or torch.get_default_dtype(), device=device)


OPENED: dict[Any, Callable[..., Any]] = {
    aten._efficientzerotensor.default: _zeros,
    **dict.fromkeys((aten.floor.default, aten.ceil.default, aten.trunc.default), _kept_whole),
    aten.round.default: _kept_whole,
    aten.pow.Tensor_Scalar: _power,
    aten.frac.default: _frac,
    aten.xlogy.Tensor: _xlogy,
    aten.hardsigmoid.default: _hardsigmoid,
    aten.hardsigmoid_backward.default: _hardsigmoid_backward,
    aten.hardswish.default: _hardswish,
    aten.round.decimals: _round_decimals,
    **{
        op: _logical(op)
        for op in (aten.logical_and.default, aten.logical_or.default, aten.logical_xor.default)
    },
    aten.floor_divide.default: _floor_divide,
    aten.floor_divide.Scalar: _floor_divide_scalar,
    aten.angle.default: _angle,
    aten.ldexp.Tensor: _ldexp,
    aten.addcmul.default: _with_a_term(aten.mul.Tensor),
    aten.addcdiv.default: _with_a_term(aten.div.Tensor),
    aten.copy.default: _copy,
    aten.dist.default: _dist,
    aten.constant_pad_nd.default: _constant_pad,
    **dict.fromkeys((aten.reflection_pad1d.default, aten.reflection_pad2d.default), _mirrored),
    aten.reflection_pad3d.default: _mirrored,
    aten.reflection_pad1d_backward.default: _reflected_back,
    aten.reflection_pad2d_backward.default: _reflected_back,
    aten.reflection_pad3d_backward.default: _reflected_back,
    aten.trace.default: _trace,
    aten.repeat.default: _repeat,
    aten.linalg_cross.default: _cross,
    aten.diagonal_scatter.default: _diagonal_scatter,
    aten.select_scatter.default: _select_scatter,
    aten.diagonal_backward.default: _diagonal_backward,
    aten.eye.default: _eye,
    aten.eye.m: _eye,
    **dict.fromkeys((aten.replication_pad1d.default, aten.replication_pad2d.default), _replicated),
    aten.replication_pad3d.default: _replicated,
    aten.replication_pad1d_backward.default: _replicated_back,
    aten.replication_pad2d_backward.default: _replicated_back,
    aten.replication_pad3d_backward.default: _replicated_back,
}
