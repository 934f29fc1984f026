"""Copies by tensor descriptors, whose rows take as long as lines of the cache do."""

from __future__ import annotations

from ..graph.dtypes import itemsize
from ..nests.linear_forms import Access
from ..tiles.blocks import Blocks
from ..tiles.descriptors import described
from ..tiles.instructions import TileStore, loads_of
from ..tiles.passes.choose_access import describes_store
from ..tiles.program import TileProgram
from .tile_cache import once
from .traffic import turns

_LINE = 128  # Bytes.


@once
def short_rows(program: TileProgram) -> float:
    """The rows that one program copies by descriptors of tensors whose rows are below 128 bytes,
    each as the part of 128 bytes that it lacks."""
    found, blocks = 0.0, program.blocks
    for each, loops in program.walk():
        accesses = [load.access for load in loads_of(each) if load.value in program.operands]
        if isinstance(each, TileStore) and describes_store(program, each, blocks):
            accesses.append(each.access)
        found += sum(_short(access, blocks) for access in accesses) * turns(loops, blocks)
    return found


def _short(access: Access, blocks: Blocks) -> float:
    """Of the tile of an access."""
    found = described(blocks, access, blocks.dims(access.axes))
    if found is None:
        return 0.0
    row = found.descriptor.shape[1] * itemsize(access.type.dtype)
    return found.descriptor.block[0] * max(0.0, 1.0 - row / _LINE)
