"""Loops that fold nothing take several blocks at once: they have no state to keep, and a load that
comes after a store in the text waits for it."""

from __future__ import annotations

from dataclasses import replace

from ..blocks import Blocks
from ..instructions import Body, Instruction, TileLoop
from ..program import TileProgram


def widen_storing_loops(program: TileProgram, *, widen: int) -> TileProgram:
    """So many blocks in every turn of a loop that carries nothing."""
    if widen == 1 or not any(isinstance(each, TileLoop) for each in program.body):
        return program
    return replace(program, body=_widened(program.body, program.blocks, widen))


def _widened(body: Body, blocks: Blocks, number: int) -> Body:
    return tuple(_loop(each, blocks, number) for each in body)


def _loop(each: Instruction, blocks: Blocks, number: int) -> Instruction:
    if not isinstance(each, TileLoop):
        return each
    if each.carries:
        return replace(each, body=_widened(each.body, blocks, number))
    wide = blocks.widened(each.axis, number)
    return replace(each, body=_widened(each.body, wide, number), blocks=wide)
