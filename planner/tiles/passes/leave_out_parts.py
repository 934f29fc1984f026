"""Read no more than is there of parts that the kernel before has stored."""

from __future__ import annotations

from dataclasses import replace

from ..blocks import Blocks
from ..instructions import Instruction, Loops, TileLoad
from ..program import TileProgram, rewritten


def leave_out_parts(program: TileProgram) -> TileProgram:
    """Loads of parts are masked by the condition under which those parts are chosen, where it is
    known before (see `nests.live_parts`): of 32 parts of the keys of a cache up to three are read,
    where the position is 160."""
    chosen = program.nest.chosen
    if not chosen:
        return program
    order = {each.value: place for place, (each, _) in enumerate(program.evaluations())}

    def change(each: Instruction, _: Loops, __: Blocks) -> Instruction:
        if not isinstance(each, TileLoad) or each.value not in chosen or each.rows or each.via:
            return each
        condition = chosen[each.value]
        known = condition in order and order[condition] < order[each.value]
        return replace(each, chosen=condition) if known else each

    return rewritten(program, change)
