"""Split the epilogue: compute what follows the matrix products for a part of a tile's columns.

An accumulator of 128 x 256 with an activation behind it does not fit the registers twice. In parts,
only one part's intermediate results are alive beside it, and a descriptor's store stages one part
in shared memory.
"""

from __future__ import annotations

from dataclasses import replace

from ...errors import Refused
from ...nests.nest import Nest
from ..blocks import LEAST_MMA
from ..instructions import (
    NO_VALUE,
    Body,
    EndLoads,
    EpilogueSubtiles,
    Instruction,
    Mma,
    OnesMma,
    Reduce,
    RowEnds,
    TileLoop,
    TileRepeat,
    TileScan,
    TileStore,
    Welford,
)
from ..program import TileProgram


def split_epilogue(program: TileProgram, *, subtiles: int) -> TileProgram:
    """The instructions behind the last reduction over columns in so many parts of equal width.
    Raises Refused where the parts would be too narrow, or nothing is left to cut."""
    if subtiles == 1 or not program.mmas:
        return program
    nest, number = program.nest, subtiles
    axis = list(program.mmas.values())[-1].columns
    ends = [i for i, each in enumerate(program.body) if _ends(nest, each, axis)]
    before, items = program.body[: ends[-1] + 1], program.body[ends[-1] + 1 :]
    if program.blocks.sizes[axis] < number * LEAST_MMA:
        name, block = nest.axes[axis].name, program.blocks.sizes[axis]
        raise Refused("subtiles", f"{name} has blocks of {block}, too few for {number} parts")
    own = {item.value for item in items if not isinstance(item, NO_VALUE)}
    read = {r for item in items for r in _reads(nest, item)} - own
    values = tuple(sorted(v for v in read if axis in nest.live[v]))
    if not values:
        raise Refused("subtiles", f"the epilogue has no {nest.axes[axis].name}")
    again: Body = tuple(item for item in items if axis in _axes(nest, item))
    bodies = (items, *[again] * (number - 1))
    parts = EpilogueSubtiles(axis, values, bodies, program.blocks.part(axis, number))
    return replace(program, body=(*before, parts))


def refuse_without_mma(program: TileProgram, subtiles: int) -> None:
    """A kernel without an mma has no epilogue: that parts are asked for is refused where it is
    the only one, or the first of several. Raises Refused."""
    if subtiles > 1 and not program.mmas:
        raise Refused("subtiles", "no product of matrices comes before the epilogue")


def _ends(nest: Nest, each: Instruction, axis: int) -> bool:
    """Whether a reduction needs all columns; one that goes down them is done in every part."""
    if isinstance(each, Reduce):
        return axis not in nest.live[each.value]
    return isinstance(each, (TileLoop, Mma, OnesMma, TileScan, Welford))


def _reads(nest: Nest, item: Instruction) -> tuple[int, ...]:
    match item:
        case TileStore(output=output):
            return (nest.outputs[output].value,)
        case TileLoop() | TileRepeat() | EndLoads() | RowEnds() | EpilogueSubtiles():
            return ()
    return nest.values[item.value].reads


def _axes(nest: Nest, item: Instruction) -> frozenset[int]:
    match item:
        case TileStore(output=output, access=access):
            return access.axes | nest.live[nest.outputs[output].value]
        case TileLoop() | TileRepeat() | EndLoads() | RowEnds() | EpilogueSubtiles():
            return frozenset()
    return nest.live[item.value]
