"""Let the blocks in the middle of a row go without masks."""

from __future__ import annotations

from dataclasses import replace

from ...graph.sizes import varies
from ..alignment import WARP
from ..blocks import Blocks
from ..instructions import Instruction, Loops, TileLoop, TileScan, Welford
from ..program import TileProgram, rewritten


def split_ends(program: TileProgram, *, num_warps: int) -> TileProgram:
    """Loops over aligned rows: their first block begins before the row, and their last ends behind
    it; of all others no lane is masked, wherever the row begins. A loop whose loads are pipelined
    stays in one piece: what an `if` loads is not begun before."""
    rows = program.blocks.aligned
    if rows is None:
        return program
    extent, vectors = program.nest.axes[rows.axis].extent, WARP * num_warps * rows.vector

    def change(each: Instruction, _: Loops, blocks: Blocks) -> Instruction:
        if not isinstance(each, TileLoop) or each.axis != rows.axis or each.stages > 1:
            return each
        if any(isinstance(inner, (TileLoop, TileScan)) for inner in each.body):
            return each
        block = (each.blocks or blocks).sizes[each.axis]
        if not varies(extent):
            end = extent // block
            return replace(each, inner=(1, end)) if end > 1 else each
        # One text is for rows of one block, too, which have no inner one. Of squared distances with
        # one vector for a thread, the first and the last block are most of what is done.
        if block <= vectors and any(isinstance(inner, Welford) for inner in each.body):
            return each
        return replace(each, inner=(1, extent // block))

    return rewritten(program, change)
