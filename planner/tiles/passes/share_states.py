"""Choose the loops in which neighbouring lanes share a state.

A state that follows an extremum costs an exponential and some ten instructions for each lane and
turn. The elements that a thread loads at once have one state: they are reduced in the thread, and
the state is corrected once for all of them.
"""

from __future__ import annotations

from dataclasses import replace

from ..alignment import vector_width
from ..blocks import Blocks
from ..instructions import Instruction, Loops, Reduce, TileLoop, Welford, loads_of
from ..program import TileProgram

_WARP = 32
"""Threads."""


def share_states(program: TileProgram) -> TileProgram:
    """Loops with a corrected state, along whose axis all threads load whole vectors."""
    loops = [each for each in program.body if isinstance(each, TileLoop) and each.by_lane]
    found = tuple(_shared(program, loop) for loop in loops)
    if all(shared == 1 for shared in found):
        return program
    chosen = {id(loop): shared for loop, shared in zip(loops, found, strict=True)}

    def change(each: Instruction, _: Loops, __: Blocks) -> Instruction:
        if isinstance(each, TileLoop) and id(each) in chosen:
            return replace(each, shared=chosen[id(each)])
        return each

    return program.deciding(found, change)


def _shared(program: TileProgram, loop: TileLoop) -> int:
    """Neighbouring lanes of a loop that share a state: what a thread loads at once."""
    states = [i for i in loop.body if isinstance(i, (Reduce, Welford)) and i.carried]
    corrected = [i for i in states if isinstance(i, Reduce) and i.correction is not None]
    if not corrected or any(isinstance(i, Welford) or i.compensated for i in states):
        return 1
    nest, blocks = program.nest, program.blocks
    found = blocks.sizes[loop.axis]
    for state in states:
        fold = nest.fold(state.value)
        dims = blocks.dims(nest.live[fold.source] | set(nest.reduced(fold)))
        if not dims or dims[-1] != loop.axis or loop.axis not in nest.reduced(fold):
            return 1
        found = min(found, max(1, blocks.elements(dims) // _WARP))
    inside = (each for each in loop.body if not isinstance(each, TileLoop))
    for load in (one for each in inside for one in loads_of(each)):
        if loop.axis in load.access.axes:
            width, axis = vector_width(load.access, blocks)
            found = min(found, width if axis == loop.axis else 1)
    return found
