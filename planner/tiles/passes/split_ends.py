"""Let the blocks in the middle of a row go without masks."""

from __future__ import annotations

from dataclasses import replace

from ...graph.sizes import varies
from ..blocks import Blocks
from ..instructions import Instruction, Loops, TileLoop, TileScan
from ..program import TileProgram, rewritten


def split_ends(program: TileProgram) -> TileProgram:
    """Loops over aligned rows: their first block begins before the row, and their last ends behind
    it; of all others no lane is masked, wherever the row begins. A loop whose loads are pipelined
    stays in one piece: what an `if` loads is not begun before."""
    rows = program.blocks.aligned
    # Where sizes vary one text is for rows of one block, too.
    if rows is None or varies(program.nest.axes[rows.axis].extent):
        return program

    def change(each: Instruction, _: Loops, blocks: Blocks) -> Instruction:
        if not isinstance(each, TileLoop) or each.axis != rows.axis or each.stages > 1:
            return each
        if any(isinstance(inner, (TileLoop, TileScan)) for inner in each.body):
            return each
        own = each.blocks or blocks
        end = program.nest.axes[each.axis].extent // own.sizes[each.axis]
        return replace(each, inner=(1, end)) if end > 1 else each

    return rewritten(program, change)
