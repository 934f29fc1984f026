"""Choose the loops that begin the loads of later turns while they work on one."""

from __future__ import annotations

from dataclasses import replace

from ..blocks import Blocks
from ..instructions import Instruction, Loops, TileLoop
from ..program import TileProgram


def pipeline_loops(program: TileProgram, *, num_stages: int, flatten: bool) -> TileProgram:
    """The stages of every innermost loop; an outer one is run as one with it where `flatten` says
    so, so that the loads of its next turn begin before this turn ends."""

    def change(each: Instruction, _: Loops, __: Blocks) -> Instruction:
        if not isinstance(each, TileLoop):
            return each
        if any(isinstance(inner, TileLoop) for inner in each.body):
            return replace(each, flatten=True) if flatten else each
        return replace(each, stages=num_stages) if num_stages > 1 else each

    return program.deciding(("stages", num_stages, flatten), change)
