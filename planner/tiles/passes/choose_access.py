"""Choose the accesses that are bulk copies by a tensor descriptor; the others go by pointers."""

from __future__ import annotations

from dataclasses import replace

from ..blocks import Blocks
from ..descriptors import Described, described
from ..instructions import Instruction, Loops, TileLoad, TilePlace, TileStore
from ..program import TileProgram, rewritten


def choose_access(program: TileProgram, *, access: str) -> TileProgram:
    """By descriptor: operands that stay in shared memory, and outputs of which every program writes
    a block of its own."""
    if access != "descriptor":
        return program

    def change(each: Instruction, _: Loops, blocks: Blocks) -> Instruction:
        if isinstance(each, TileLoad) and each.place is TilePlace.SHARED:
            return replace(each, via=described(blocks, each.access, blocks.dims(each.access.axes)))
        if isinstance(each, TileStore):
            return replace(each, via=describes_store(program, each, blocks))
        return each

    return rewritten(program, change)


def describes_store(program: TileProgram, store: TileStore, blocks: Blocks) -> Described | None:
    """The descriptor that can write the tile of an output; None where pointers have to."""
    live = program.nest.live[program.nest.outputs[store.output].value]
    dims = blocks.dims(live | store.access.axes)
    whole = set(dims) <= store.access.axes and not blocks.repeated(store.access)
    if not whole or blocks.dims(live) != dims:
        return None
    return described(blocks, store.access, dims)


def has_described_access(program: TileProgram) -> bool:
    """Whether descriptors can make some access of the kernel: an operand that is loaded for an mma,
    or a store."""
    blocks, nest = program.blocks, program.nest
    loads = [access for value, access in nest.loads.items() if value in program.operands]
    return any(
        described(blocks, access, blocks.dims(access.axes))
        for access in (*loads, *nest.stores.values())
    )
