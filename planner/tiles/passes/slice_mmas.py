"""Slice matrix products of few rows: each warp multiplies a part of a block along the summed axis.

A few rows times a wide matrix have tiles of so few results that most warps would have none of their
own. With a slice of the summed axis each, all of them read the matrix, and what they come to is
added up once, after the loop (sliced K).
"""

from __future__ import annotations

from dataclasses import replace

from ..blocks import LEAST_MMA, Blocks
from ..instructions import Instruction, Loops, Mma
from ..program import TileProgram

SHORTEST = 32
"""Elements of the shortest slice: each is 64 bytes of every row, two instructions of an mma."""


def slice_mmas(program: TileProgram, *, num_warps: int) -> TileProgram:
    """Every mma of few rows in as many slices as there are warps, if not every warp has rows of its
    own. For 8 rows by 2048 x 2048 and by 8192 x 2048 on an H100, tiles of 16 rows
    of the matrix take 5.6 and 14.8 us in slices of four warps, 6.3 and 15.1 in any other way."""
    sizes = program.blocks.sizes
    chosen = frozenset(
        mma.value
        for mma in program.mmas.values()
        if mma.few
        and num_warps > 1
        and sizes[mma.rows] < LEAST_MMA * num_warps
        and sizes[mma.k] >= SHORTEST * num_warps
    )
    if not chosen:
        return program

    def change(each: Instruction, _: Loops, __: Blocks) -> Instruction:
        if not isinstance(each, Mma) or each.value not in chosen:
            return each
        return replace(each, slices=num_warps)

    return program.deciding(("slices", num_warps, chosen), change)
