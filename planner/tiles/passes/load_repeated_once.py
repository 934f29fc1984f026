"""Load what neighbours have in common once for them, where neighbouring pixels are separate values.

A convolution that gives several channels of each channel reads every pixel of the image for all of
them. Loaded for each channel of the result, neighbouring elements are the same, and a thread moves
each by an instruction of its own. Loaded once, those of several channels are moved together, and
repeated in the registers of the thread.
"""

from __future__ import annotations

from dataclasses import replace

from ..alignment import repeats_of
from ..blocks import Blocks
from ..instructions import Instruction, Loops, TileLoad, TilePlace
from ..program import TileProgram


def load_repeated_once(program: TileProgram) -> TileProgram:
    found = {v: repeats_of(a, program.blocks) for v, a in program.nest.loads.items()}
    if set(found.values()) <= {1}:
        return program

    def change(each: Instruction, _: Loops, blocks: Blocks) -> Instruction:
        if not isinstance(each, TileLoad) or each.via or each.rows or each.joined:
            return each
        if each.place is not TilePlace.REGISTERS or each.between is not None:
            return each
        return replace(each, repeats=repeats_of(each.access, blocks))

    return program.deciding(("repeats", tuple(found.values())), change)
