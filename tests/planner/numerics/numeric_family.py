"""A family of small functions, one kernel for all of them, and the numbers that they are given."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

Function = Callable[..., torch.Tensor]
INF, NAN = math.inf, math.nan
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@dataclass(frozen=True)
class Family:
    """ulps: distance from eager's result that finite results other than 0 may have, in units of
    the last place of the result's type; 0 asks for the same bits (any NaN equals any other).
    untouched: functions that give the input itself."""

    name: str
    functions: dict[str, Function]
    inputs: tuple[torch.Tensor, ...]
    ulps: int = 0
    untouched: tuple[str, ...] = ()


def ends(dtype: torch.dtype, count: int = 16) -> torch.Tensor:
    """The ends of an integer type and what is near 0."""
    info = torch.iinfo(dtype)
    low = [info.min, info.min + 1, info.min // 2, -7, -3, -2, -1]
    high = [0, 1, 2, 3, 5, 7, info.max // 2, info.max - 1, info.max]
    return torch.tensor([n for n in (*low, *high) if n >= info.min][-count:], dtype=dtype)


def pairs(x: torch.Tensor, y: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Every element beside every other."""
    y = x if y is None else y
    return x.repeat_interleave(len(y)), y.repeat(len(x))
