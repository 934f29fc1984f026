"""Keep a loaded tile in shared memory if only mmas read it."""

from __future__ import annotations

from dataclasses import replace

from ...values.values import Fold
from ..blocks import Blocks
from ..instructions import Instruction, Loops, Mma, OnesMma, TileLoad, TilePlace
from ..program import TileProgram


def keep_operands_shared(program: TileProgram) -> TileProgram:
    """The place of every load that an mma reads: shared memory where all its readers are mmas of
    its own dtype, or sums by ones; else registers too."""
    operands = program.operands
    if operands.isdisjoint(program.nest.loads):
        return program

    def change(each: Instruction, _: Loops, __: Blocks) -> Instruction:
        if not isinstance(each, TileLoad) or each.value not in operands:
            return each
        only = _is_operand_only(program, each)
        return replace(each, place=TilePlace.SHARED if only else TilePlace.BOTH)

    return program.deciding("operands", change)


def _is_operand_only(program: TileProgram, load: TileLoad) -> bool:
    """Whether nothing but mmas reads a loaded value, each in the dtype that it has in memory."""
    nest, dtype = program.nest, load.access.type.dtype
    if any(out.value == load.value for out in nest.outputs):
        return False
    for value in nest.values:
        if load.value in value.reads:
            reader = program.reductions.get(value.id)
            if isinstance(reader, OnesMma):
                continue
            kind = value.kind
            same = isinstance(kind, Fold) and kind.operand == dtype
            if not (same and isinstance(reader, Mma)):
                return False
    return True
