"""Choose the sums that carry what their additions lose (compensated summation)."""

from __future__ import annotations

from dataclasses import replace

from ...graph.ops import SUM
from ...graph.sizes import nominal
from ..blocks import Blocks
from ..instructions import Instruction, Loops, Reduce
from ..program import TileProgram, rewritten

MANY_TURNS = 128
"""Turns of a loop from which on a sum carries what it loses."""


def compensate_long_sums(program: TileProgram) -> TileProgram:
    """Sums in float32 of so many turns that their rounding errors, one after the other, would be
    far above eager's, who adds in more places at once."""
    nest = program.nest

    def change(each: Instruction, loops: Loops, blocks: Blocks) -> Instruction:
        if not isinstance(each, Reduce) or not each.carried or each.correction is not None:
            return each
        if each.followed:  # By a shift: it counts, and what it counts with is exact.
            return each
        is_sum = nest.fold(each.value).monoid == SUM and nest.values[each.value].dtype == "float32"
        is_long = is_sum and nominal(blocks.count(loops[-1].axis)) > MANY_TURNS
        return replace(each, compensated=True) if is_long else each

    return rewritten(program, change)
