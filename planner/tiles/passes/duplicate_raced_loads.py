"""Load some tiles of a pipelined loop twice: once for mmas, once for other readers."""

from __future__ import annotations

from dataclasses import replace

from ..blocks import Blocks
from ..instructions import Instruction, Loops, MmaUnit, TileLoad, TilePlace
from ..program import TileProgram


def duplicate_raced_loads(program: TileProgram) -> TileProgram:
    """In a pipelined loop, others than the mmas that a warpgroup is at need a tile of their own:
    in that of the mmas the next would be written too early (see `machine_code.pipeline_races`)."""
    mmas = [mma for mma in program.mmas.values() if mma.unit is MmaUnit.WARPGROUP]
    raced = {v for mma in mmas for v in (mma.source, mma.times)}
    if not raced:
        return program

    def change(each: Instruction, loops: Loops, _: Blocks) -> Instruction:
        if (
            not isinstance(each, TileLoad)
            or each.place is not TilePlace.BOTH
            or each.value not in raced
        ):
            return each
        is_ahead = bool(loops) and loops[-1].stages > 1
        return replace(each, twice=True) if is_ahead else each

    return program.deciding("raced", change)
