"""Convert loads of bfloat16 to float32 two at a time, where neighbours are separate values.

Two of them are in one register of 32 bits. One is shifted up; the low bits of the other are masked.
These are two instructions, where the compiler takes three. Under a filter whose pixels a thread
keeps, every eighth instruction converts.
"""

from __future__ import annotations

from dataclasses import replace

from ..blocks import Blocks
from ..instructions import Instruction, Loops, TileLoad, TilePlace
from ..program import TileProgram


def unpack_pairs(program: TileProgram) -> TileProgram:
    """Of other kernels memory is the limit, not instructions."""
    nest = program.nest
    if all(output.part is None for output in nest.outputs):
        return program

    def change(each: Instruction, _: Loops, blocks: Blocks) -> Instruction:
        if (
            isinstance(each, TileLoad)
            and (each.access.type.dtype, nest.values[each.value].dtype) == ("bfloat16", "float32")
            and (each.place, each.via, each.rows) == (TilePlace.REGISTERS, None, "")
            and blocks.elements(each.access.axes) > 1
        ):
            return replace(each, in_pairs=True)
        return each

    return program.deciding("pairs", change)
