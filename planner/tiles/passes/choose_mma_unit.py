"""Choose for each mma whether a warpgroup multiplies it, or each warp by itself."""

from __future__ import annotations

from dataclasses import replace

from ..blocks import Blocks
from ..instructions import WARPGROUP, Instruction, Loops, Mma
from ..program import TileProgram
from .select_ones_mma import has_warpgroup_rows


def choose_mma_unit(program: TileProgram, *, num_warps: int) -> TileProgram:
    """Four warps multiply at once, straight from shared memory, where a tile has 64 rows for each
    of them to have 16; else each warp brings its part of the operands into registers first."""
    mmas = [] if num_warps % WARPGROUP else program.mmas.values()
    whole = (m for m in mmas if m.slices == 1)
    suited = frozenset(m.value for m in whole if has_warpgroup_rows(program.blocks, m.rows))
    if not suited:
        return program

    def change(each: Instruction, _: Loops, __: Blocks) -> Instruction:
        if isinstance(each, Mma) and each.value in suited:
            return replace(each, suits_warpgroup=True)
        return each

    return program.deciding(("warpgroups", suited), change)
