"""Choose the sums that carry what their additions lose (compensated summation)."""

from __future__ import annotations

from dataclasses import replace

from ...graph.ops import SUM
from ...graph.sizes import nominal
from ...nests.nest import Nest
from ..blocks import Blocks
from ..instructions import Instruction, Loops, Reduce
from ..program import TileProgram, rewritten

MANY_TURNS = 128
"""Turns of a loop from which on a sum carries what it loses."""


def compensate_long_sums(program: TileProgram) -> TileProgram:
    """Sums in float32 of so many turns that their rounding errors, one after the other, would be
    far above eager's, who adds in more places at once."""

    def change(each: Instruction, loops: Loops, blocks: Blocks) -> Instruction:
        if not isinstance(each, Reduce) or not loops:
            return each
        turns = nominal(blocks.count(loops[-1].axis))
        return replace(each, compensated=True) if is_long(program.nest, each, turns) else each

    return rewritten(program, change)


def is_long(nest: Nest, each: Reduce, turns: int) -> bool:
    """Whether a sum in a loop of so many turns is one of these."""
    if not each.carried or each.correction is not None:
        return False
    if each.followed:  # By a shift: it counts, and what it counts with is exact.
        return False
    is_sum = nest.fold(each.value).monoid == SUM and nest.values[each.value].dtype == "float32"
    return is_sum and turns > MANY_TURNS
