"""Loops in every turn of which threads meet: over rows that a turn holds, and sums along."""

from __future__ import annotations

from ..graph.dtypes import itemsize
from ..tiles.instructions import Reduce, TileLoop
from ..tiles.program import TileProgram, by_body
from .tile_cache import once
from .traffic import readings, widths

# A load that is begun turns ahead is a copy to shared memory, of at least 4 bytes of a thread.
LEAST_COPY = 4


@by_body
def meets_in_turns(program: TileProgram) -> bool:
    """Whether threads meet in every turn of a loop, at sums along rows that the turn holds: they
    wait for memory each time, unless loads of the next turns are under way."""
    return meetings_in_turn(program) > 0


@by_body
def meetings_in_turn(program: TileProgram) -> int:
    """How often they do."""
    loops = (each for each in program.body if isinstance(each, TileLoop))
    inner = [each for loop in loops for each in loop.body]
    return 0 if program.mmas else sum(isinstance(e, Reduce) and not e.carried for e in inner)


@once
def waits_in_turn(program: TileProgram, begun: bool) -> int:
    """How often a turn waits for memory, where threads meet in it: for its loads, unless they were
    begun in turns before, and again for rows by an index that was loaded. Those that are too narrow
    for copies ahead are not begun."""
    if not meets_in_turns(program):
        return 0
    by_index = [
        width * itemsize(each.access.type.dtype) < LEAST_COPY
        for each, (width, _) in zip(readings(program), widths(program), strict=True)
        if each.input is not None and each.loops and each.access.at
    ]
    return int(any(by_index)) if begun else 1 + bool(by_index)
