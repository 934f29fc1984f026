"""Python numbers as tensors hold them: an integer wraps at the width of its type, a float is
rounded to its precision."""

from __future__ import annotations

import math
import struct

import torch
from torch.utils._python_dispatch import _disable_current_modes

from .dtypes import BOUNDS, FLOATS, NARROW
from .sizes import varies


def wrapped(number: int, dtype: str) -> int:
    """The integer that is left in so many bits."""
    low, high = BOUNDS[dtype]
    return (number - low) % (high - low + 1) + low


def single(number: float) -> float:
    """A number at the precision of float32; infinite where it is beyond its range."""
    rounded = _nearest(number)
    # What float32 has in any case is written as the user wrote it.
    is_normal = math.isfinite(rounded) and abs(number) >= 2.0**-126
    return number if is_normal else rounded


def inverse(number: float, dtype: str) -> float:
    """1 / number as CUDA's kernels make it: of a number, and rounded, in float32 or float64."""
    narrow = dtype != "float64"
    number = _nearest(number) if narrow else float(number)
    if number == 0.0:
        return math.copysign(math.inf, number)
    return _nearest(1.0 / number) if narrow else 1.0 / number


def _nearest(number: float) -> float:
    """The nearest number of float32."""
    try:
        (rounded,) = struct.unpack("f", struct.pack("f", number))
    except OverflowError:
        return math.copysign(math.inf, number)
    return float(rounded)


def stored(number: float, dtype: str) -> float:
    """A number as an element of a tensor that is filled with it; one that varies stays as it is."""
    if varies(number) or (dtype in FLOATS - NARROW and not isinstance(number, int)):
        return number
    if dtype in BOUNDS:
        return wrapped(int(number), dtype)
    with _disable_current_modes():  # a fake tensor has no number
        found: float = torch.full((), number, dtype=getattr(torch, dtype)).item()
    return found


def converted(number: float, source: str, target: str) -> float:
    """A number of one type as eager casts it to another."""
    with _disable_current_modes():
        held = torch.full((), number, dtype=getattr(torch, source))
        found: float = held.to(getattr(torch, target)).item()
    return found
