"""Read and write rows that begin anywhere as whole vectors of 16 bytes."""

from __future__ import annotations

from dataclasses import replace

from ..alignment import aligned_rows, is_aligned, is_apart, is_copied
from ..blocks import Blocks
from ..instructions import Instruction, Loops, TileLoad, TileStore
from ..program import TileProgram


def align_rows(program: TileProgram) -> TileProgram:
    """Blocks of rows begin at the last multiple of 16 bytes before the row, if most of what a
    kernel accesses is rows that begin elsewhere; whether a program holds a row, walks it, or has
    one block of it. Lanes outside the row hold elements of its neighbours, or none: like all lanes
    past an end, they are left out of reductions and stores."""
    rows = aligned_rows(program.blocks)
    if rows is None:
        return program
    blocks = replace(program.blocks, aligned=rows)

    def change(each: Instruction, _: Loops, __: Blocks) -> Instruction:
        if not isinstance(each, (TileLoad, TileStore)):
            return each
        if is_aligned(each.access, rows, blocks):
            return replace(each, rows="aligned")
        if isinstance(each, TileLoad) and is_copied(each.access, rows.axis, blocks):
            return replace(each, rows="copied")
        if isinstance(each, TileLoad) and is_apart(each.access, rows.axis, blocks):
            return replace(each, rows="apart")
        return each

    return replace(program, blocks=blocks).deciding(rows, change)
