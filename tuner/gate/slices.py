"""Errors of an output, slice by slice: what rounding is allowed in each, and what was found.

A slice is a row along the last dimension, or several short rows together, or a part of a long
one. Sizes and errors count within their slice, so that a wrong row is not lost among right ones,
nor a small one beside large ones. A large output is looked at in pieces.

Here are the factors of the accuracy rule (see `check`), by which `limits` allows errors. The units
of each type come from `reference`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

LEAST, MOST = 256, 1 << 16
"""Elements of a slice. The largest of fewer errors is left to chance too much to be a limit."""

_PIECE = 1 << 24
"""Elements that are looked at at once: of a large output there is no room for copies in float64."""

FACTOR = 2.0
CONDITION = 8.0
UP_OR_DOWN = math.sqrt(2.0)
"""Times the error of rounding to nearest that of rounding up or down at random is."""

_TRUSTED = 0.15
"""Eager's own error, of an element's size and the scale: with more, which random rounding does not
explain, what float64 computes is taken for something else (other random numbers, for one)."""

_VANISHING = 0.05
"""Of the size of eager's result: truth below it is nothing to eager but rounding. Such is the
gradient of a bias of keys, which no softmax sees."""

MOST_FLOAT32 = torch.finfo(torch.float32).max

_MARGIN = 64
"""Times an element that what it is the sum of may be."""

FINITE, ABOVE, BELOW, NAN = 1, 2, 4, 8
"""Kinds of numbers: finite ones, the two infinities, NaN."""


@dataclass(frozen=True, slots=True)
class SliceLimits:
    """For each slice of an output: scale is what an error is compared with besides the element
    itself; largest and typical are the limits for the greatest scaled error and for its root mean
    square. is_rounding: whether eager's own error is what rounding makes."""

    width: int
    scale: torch.Tensor
    largest: torch.Tensor
    typical: torch.Tensor
    is_rounding: bool = True


def width(shape: Sequence[int]) -> int:
    """Elements of a slice of a tensor that has some."""
    row, numel = (shape[-1] if shape else 1), math.prod(shape)
    if row >= LEAST:
        return min(row, MOST)
    return min(numel, row * -(-LEAST // row))


def slices(wide: int, *tensors: torch.Tensor) -> Iterator[tuple[int, tuple[torch.Tensor, ...]]]:
    """The first slice's number, and some slices of each tensor as a matrix. The last slice is as
    long as the others: it begins within the one before it where it must."""
    flat = [t.reshape(-1) for t in tensors]
    numel = flat[0].numel()
    whole, step = numel // wide, max(1, _PIECE // wide)
    for first in range(0, whole, step):
        rows = min(step, whole - first)
        begin = first * wide
        yield first, tuple(t[begin : begin + rows * wide].view(rows, wide) for t in flat)
    if whole * wide < numel:
        yield whole, tuple(t[numel - wide :].view(1, wide) for t in flat)


def place(wide: int, numel: int, row: int, column: int) -> int:
    """The place in the flat tensor of an element of a slice."""
    return min(row * wide, numel - wide) + column


def rounded(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """float64 with what overflows the output's dtype as infinity."""
    big = value.abs() > overflow(dtype)
    return torch.where(big, torch.copysign(torch.full_like(value, math.inf), value), value)


def overflow(dtype: torch.dtype) -> float:
    """Above it, the nearest number of a type is infinity: halfway to the next power of two's step
    is still rounded down."""
    kind = torch.finfo(dtype)
    return float(kind.max * (1 + kind.eps / 4))


def is_near_overflow(value: torch.Tensor) -> torch.Tensor:
    """Of each element, whether sums that make it may overflow float32 in one order and not in
    another."""
    return value.abs() > MOST_FLOAT32 / _MARGIN


def classes(value: torch.Tensor) -> torch.Tensor:
    """What kind of number each element is, as one bit."""
    kind = torch.full(value.shape, FINITE, dtype=torch.uint8, device=value.device)
    kind[torch.isnan(value)] = NAN
    kind[value == math.inf] = ABOVE
    kind[value == -math.inf] = BELOW
    return kind


def errors(
    got: torch.Tensor,
    value: torch.Tensor,
    eager: torch.Tensor,
    scale: torch.Tensor,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Of each element, relative to its size and the scale; 0 where something is not finite. Where
    the value is not, against eager's."""
    true = torch.where(torch.isfinite(value), value, eager)
    judged = torch.isfinite(true) & torch.isfinite(got)
    # Below the smallest normal number a device may write zero.
    floor = torch.finfo(torch.float64 if dtype is torch.float64 else torch.float32).tiny
    floor += torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    size = true.abs() + scale
    error = ((got - true).abs() - floor).clamp_(min=0.0) / size.clamp_(min=1e-300)
    return torch.where(judged, error, 0.0)


def limits(
    value: torch.Tensor,
    eager: torch.Tensor,
    moved: torch.Tensor,
    narrow: torch.Tensor,
    rounding: float,
) -> SliceLimits:
    """From the value in float64, eager's result, and two evaluations with errors: those of
    float32, and those of the output's own type and of the types before it."""
    wide, dtype = width(value.shape), eager.dtype
    found: list[tuple[torch.Tensor, ...]] = []
    for _, piece in slices(wide, value, eager, moved, narrow):
        exact, own, other, rough = (t.double() for t in piece)
        scale = _scale(rounded(exact, dtype), own, other, rough)
        each = [errors(own, exact, own, scale, dtype)]
        each.append(errors(rough, exact, rough, scale, dtype) / UP_OR_DOWN)
        each.append(errors(other, exact, other, scale, dtype))
        most = [e.amax(1, True) for e in each]
        mean = [rms(e) for e in each]
        condition = CONDITION * most[2], CONDITION * mean[2]
        allowed = FACTOR * mean[1] + condition[1] + rounding
        vanishing = rms(_finite(exact)) <= _VANISHING * rms(_finite(own))
        known = (mean[0] <= allowed.clamp(min=_TRUSTED)) | vanishing
        largest = FACTOR * torch.maximum(most[0], most[1]) + condition[0] + rounding
        typical = FACTOR * torch.maximum(mean[0], mean[1]) + condition[1] + rounding
        found.append((scale, largest, typical, known))
    scale, largest, typical, known = (torch.cat(part) for part in zip(*found, strict=True))
    return SliceLimits(wide, scale, largest, typical, bool(known.double().mean() > 0.5))


def loose(eager: torch.Tensor, largest: float, typical: float) -> SliceLimits:
    """The same limits in every slice, for want of anything but eager's result."""
    wide = width(eager.shape)
    scale = torch.cat([_scale(p.double()) for _, (p,) in slices(wide, eager)])
    same = torch.ones_like(scale)
    return SliceLimits(wide, scale, largest * same, typical * same)


def rms(values: torch.Tensor) -> torch.Tensor:
    """The root mean square of each row. Squares of large numbers overflow: the largest is taken
    out first."""
    most = values.abs().amax(1, True)
    safe = torch.where((most > 0) & torch.isfinite(most), most, 1.0)
    return torch.where(most > 0, safe * ((values / safe) ** 2).mean(1, True).sqrt(), 0.0)


def _finite(value: torch.Tensor) -> torch.Tensor:
    return torch.where(torch.isfinite(value), value, 0.0)


def _scale(*values: torch.Tensor) -> torch.Tensor:
    """Of each slice, the root mean square of the first of these that is not zero there."""
    found = rms(_finite(values[0]))
    for other in values[1:]:
        found = torch.where(found > 0, found, rms(_finite(other)))
    return found
