"""Begin the loads of a product without an mma before the threads of its program first meet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import takewhile

from ...graph.dtypes import itemsize
from ...nests.linear_forms import Role
from ..instructions import (
    REDUCTIONS,
    EpilogueSubtiles,
    SelectedLoad,
    TileLoad,
    TileLoop,
    TilePlace,
    loads_of,
)
from ..program import TileProgram

_MOST = 256
"""Bytes of a thread that loads may hold in registers while its program reduces something else, of
the 1,020 that it has; what is loaded before the wait counts as well."""


def load_before_meeting(program: TileProgram, *, num_warps: int) -> TileProgram:
    """In straight-line work, tiles that no other program reads are loaded before the first
    reduction, where what stands before the product reduces its rows. No compiler moves a load over
    the barrier of a reduction: the product's matrix would be asked for when the norm of its row is
    there, one latency after the other."""
    persistent = program.grid is not None and program.grid.persistent
    if persistent or program.mmas or not program.nest.contractions:
        return program
    straight = [
        *takewhile(lambda each: not isinstance(each, (TileLoop, EpilogueSubtiles)), program.body)
    ]
    first = next((i for i, each in enumerate(straight) if isinstance(each, REDUCTIONS)), None)
    if first is None:
        return program
    early = sum(
        _bytes(program, each) for each in program.head if isinstance(each, (TileLoad, SelectedLoad))
    )
    after = [each for each in straight[first:] if isinstance(each, (TileLoad, SelectedLoad))]
    moved = [*_chosen(program, after, _MOST * 32 * num_warps - early)]
    if not moved:
        return program
    rest = tuple(each for each in program.body[first:] if each not in moved)
    return replace(program, body=(*program.body[:first], *moved, *rest))


def _chosen(
    program: TileProgram, loads: list[TileLoad | SelectedLoad], room: int
) -> Iterator[TileLoad | SelectedLoad]:
    """Those of a program alone whose addresses are known at once, while there is room."""
    blocks = program.blocks
    grid = {a for a in program.nest.with_role(Role.GRID) if blocks.count(a) > 1}
    for each in loads:
        own = loads_of(each)
        plain = all(
            i.via is None and i.place is TilePlace.REGISTERS and not i.access.at for i in own
        )
        if plain and all(grid <= i.access.axes for i in own):
            room -= _bytes(program, each)
            if room >= 0:
                yield each


def _bytes(program: TileProgram, load: TileLoad | SelectedLoad) -> int:
    return program.elements(load.value) * itemsize(loads_of(load)[0].access.type.dtype)
