"""Products whose rows do not start aligned, by one call for every n-th of them.

The fast kernels of matrix products write rows that start on 16 bytes. Of a result with 50,257
columns of 16 bits every eighth row does, and so does every eighth row after any other, from some
column below 8 on. So eight calls, each for an eighth of the rows, write all but a few columns into
the result itself: nothing is padded, and no result is copied. The columns at both ends are one more
product, of a few columns, whose result is copied to its places.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ..graph.dtypes import itemsize

ALIGNED = 16
"""Bytes: rows of a result that start so are written by the fast kernels of matrix products."""

_LEAST_ROWS = 128
"""Of one call; below it the tiles of its product are not full."""


@dataclass(frozen=True, slots=True)
class StridedCalls:
    """The calls that compute a product of these sizes. whole: elements in 16 bytes; calls: every
    so many rows are one call; body: columns of each; ends: columns on each side that are done
    apart."""

    columns: int
    whole: int
    calls: int
    body: int
    ends: int

    def first(self, call: int) -> int:
        """The first column of a call whose rows start aligned there."""
        return -call * self.columns % self.whole


def turns_of(rows: int, columns: int, dtype: str) -> StridedCalls | None:
    """None where the rows of the result start aligned, or are too few or too short."""
    whole = ALIGNED // itemsize(dtype)
    calls = whole // math.gcd(columns, whole)
    found = StridedCalls(columns, whole, calls, columns // whole * whole - whole, 2 * whole)
    if calls == 1 or rows % calls or rows < calls * _LEAST_ROWS or columns < 4 * whole:
        return None
    return found


def mm_strided_rows(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """x @ w.T of x [rows, summed] and w [columns, summed]: [rows, columns], contiguous.

    Raises ValueError for sizes that `turns_of` has no turns for."""
    rows, columns = x.shape[0], w.shape[0]
    turns = turns_of(rows, columns, str(x.dtype).removeprefix("torch."))
    if turns is None:
        raise ValueError(f"{rows} x {columns} of {x.dtype} are not done in turns")
    result = x.new_empty((rows, columns))
    for call in range(turns.calls):
        first = turns.first(call)
        some = slice(first, first + turns.body)
        own = result[call :: turns.calls, some]
        torch.ops.aten.mm.out(x[call :: turns.calls], w[some].t(), out=own)
    n = turns.ends
    both = x @ torch.cat([w[:n], w[-n:]]).t()
    places = result.as_strided((rows, 2, n), (columns, columns - n, 1))
    places.copy_(both.view(rows, 2, n))
    return result


def _like(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x.new_empty((x.shape[0], w.shape[0]))


_LIBRARY = torch.library.Library("fusionplan", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define("mm_strided_rows(Tensor x, Tensor w) -> Tensor")  # type: ignore[no-untyped-call]
for _key, _function in (("CPU", mm_strided_rows), ("CUDA", mm_strided_rows), ("Meta", _like)):
    _LIBRARY.impl("mm_strided_rows", _function, _key)  # type: ignore[no-untyped-call]
