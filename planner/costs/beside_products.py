"""Bytes that programs with matrix products move besides their operands, by where they stand."""

from __future__ import annotations

from ..graph.dtypes import itemsize
from ..tiles.instructions import Mma, TileLoad, TileStore
from ..tiles.program import TileProgram
from .tile_cache import once
from .traffic import turns


@once
def read_behind(program: TileProgram) -> float:
    """Bytes that one program loads outside of its loops, operands left out."""
    loads = program.nest.loads
    found = [
        loads[each.value]
        for each, loops in program.walk()
        if isinstance(each, TileLoad) and not loops and each.value not in program.operands
    ]
    return sum(program.blocks.elements(a.axes) * itemsize(a.type.dtype) for a in found)


@once
def moved_between(program: TileProgram) -> float:
    """Bytes that one program loads and stores within a loop around those of its products."""
    loads, blocks = program.nest.loads, program.blocks
    around = [len(loops) for each, loops in program.evaluations() if isinstance(each, Mma)]
    moved, depth = 0.0, max(around, default=0)
    for each, loops in program.walk():
        if not 0 < len(loops) < depth:
            continue
        if isinstance(each, TileLoad) and each.value not in program.operands:
            access = loads[each.value]
        elif isinstance(each, TileStore):
            access = each.access
        else:
            continue
        moved += blocks.elements(access.axes) * itemsize(access.type.dtype) * turns(loops, blocks)
    return moved
