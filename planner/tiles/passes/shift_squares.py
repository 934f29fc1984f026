"""Choose the squared distances that a loop sums from the mean of its first block."""

from __future__ import annotations

from dataclasses import replace

from ..blocks import Blocks
from ..instructions import Instruction, Loops, Welford
from ..program import TileProgram, rewritten

MOST_TURNS = 32
"""Turns of a loop up to which that mean is near enough: rounding costs 5 bits at worst."""


def shift_squares(program: TileProgram) -> TileProgram:
    """Those along aligned rows. Lanes before the start of a row have seen one element less than the
    others: from a mean under way each lane would divide by a number of its own in every turn."""
    rows = program.blocks.aligned
    if rows is None or program.blocks.count(rows.axis) > MOST_TURNS:
        return program

    def change(each: Instruction, loops: Loops, _: Blocks) -> Instruction:
        if isinstance(each, Welford) and each.carried and loops[-1].axis == rows.axis:
            return replace(each, shifted=True)
        return each

    return rewritten(program, change)
