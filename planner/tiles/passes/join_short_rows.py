"""A tile's last axis is loaded with the one before it as one row, where it is shorter than what a
warp loads at once, and both lie in memory as one.

Triton gives neighbouring lanes to the axis along which elements lie side by side, and then to the
first of the others, however far apart its elements are. Of weights [rows, groups, 64 bytes] the
lanes of a warp would go to eight rows, and those of a row with an element in every second place to
16 lines of the cache.
"""

from __future__ import annotations

from dataclasses import replace

from ...graph.dtypes import itemsize
from ...nests.linear_forms import Access, Role, Term
from ..blocks import Blocks
from ..instructions import Instruction, Loops, SelectedLoad, TileLoad, TilePlace, loads_of
from ..program import TileProgram, rewritten

WARP_BYTES = 512
"""What a warp loads at once: 16 bytes for each of 32 lanes."""


def join_short_rows(program: TileProgram) -> TileProgram:
    """Only axes that lie in the tile whole."""
    held = program.nest.with_role(Role.HELD)
    if len(held) < 2:
        return program

    def change(each: Instruction, _: Loops, blocks: Blocks) -> Instruction:
        if not isinstance(each, (TileLoad, SelectedLoad)):
            return each
        found = {joined_axes(own, blocks) for own in loads_of(each)}
        (joined,) = found if len(found) == 1 else (None,)
        if joined is None or not {*joined} <= {*held}:
            return each
        if isinstance(each, TileLoad) and blocks.bounds(each.access):
            return each
        if isinstance(each, SelectedLoad) and program.nest.forms[each.value].axes & {*joined}:
            return each
        return replace(each, joined=joined)

    return rewritten(program, change)


def joined_axes(load: TileLoad, blocks: Blocks) -> tuple[int, int] | None:
    """The last two axes of a tile, if they are one in memory and the last is short."""
    access = load.access
    dims = blocks.dims(access.axes)
    if load.place is not TilePlace.REGISTERS or load.via or load.rows or access.at or len(dims) < 2:
        return None
    outer, inner = dims[-2:]
    whole = all(blocks.sizes[axis] == blocks.nest.axes[axis].extent for axis in (outer, inner))
    far, near = (_only(access, axis) for axis in (outer, inner))
    if not whole or far is None or near is None or near.scale <= 0:
        return None
    row = blocks.sizes[inner] * near.scale
    is_short = row * itemsize(access.type.dtype) < WARP_BYTES
    return (outer, inner) if is_short and far.scale == row else None


def _only(access: Access, axis: int) -> Term | None:
    """The term of an axis, if there is one and takes its index as it is."""
    terms = [term for term in access.offset.terms if term.axis == axis]
    plain = len(terms) == 1 and terms[0].div == 1 and not terms[0].mod
    return terms[0] if plain else None
