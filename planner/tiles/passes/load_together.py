"""Load what a program of one block reads at once, as soon as the kernel before it has ended."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...graph.dtypes import itemsize
from ...nests.linear_forms import Role
from ..instructions import (
    REDUCTIONS,
    Body,
    EpilogueSubtiles,
    FirstBlock,
    LoadsTogether,
    TileLoad,
    TileLoop,
    TileRepeat,
    Wait,
    loads_of,
)
from ..program import TileProgram

_MOST = 512
"""Bytes of a thread that loads may hold in registers then, of the 1,020 that it has."""

_FEW = 32
"""Those of a tile of a program's own that is no matrix."""


def load_together(
    program: TileProgram, *, unwritten: frozenset[int], num_warps: int
) -> TileProgram:
    """Loads stand behind the wait, before the threads of a program first meet, where every loop is
    one block. Each behind a reduction or a change of a layout, no compiler moves them over the
    barrier there: the attention of Qwen3-0.6B to a cache waited for the memory seven times, for the
    halves of queries and keys, rotary numbers and values, and took 8.0 us on an H100 where it takes
    4.9 so. Where no first block stands before the wait, the matrices of a product stay behind: they
    are many programs' work, and registers that hold two of them at once are fewer programs. A
    kernel without a sum has no such barrier, and stays as it is."""
    begun = any(isinstance(each, FirstBlock) for each in program.head)
    waits = begun or any(isinstance(each, Wait) for each in program.head)
    meets = any(isinstance(each, REDUCTIONS) for each, _ in program.walk())
    persistent = program.grid is not None and program.grid.persistent
    if not (waits and meets and unwritten) or persistent:
        return program
    if not _is_one_block(program, program.body):
        return program
    early = [load for each in program.head for load in loads_of(each)]
    before = {load.value for load in early}
    room = _MOST * 32 * num_warps - sum(_bytes(program, load) for load in early)
    most = room if begun else _FEW * 32 * num_warps
    loads = tuple(_chosen(program, before, room, most))
    return (
        replace(program, head=(*program.head, LoadsTogether(loads))) if len(loads) > 1 else program
    )


def _is_one_block(program: TileProgram, body: Body) -> bool:
    """Whether each instruction has one tile, whatever loop it stands in."""
    for each in body:
        if isinstance(each, (EpilogueSubtiles, TileRepeat)):
            return False
        if isinstance(each, TileLoop):
            limited = bool(program.nest.limits.get(each.axis)) and not each.begun
            if limited or each.blocks is not None or each.inner is not None:
                return False
            if program.blocks.count(each.axis) > 1 or not _is_one_block(program, each.body):
                return False
    return True


def _bytes(program: TileProgram, each: TileLoad) -> int:
    tiles = 1 if each.between is None else 2
    return tiles * program.elements(each.value) * itemsize(each.access.type.dtype)


def _chosen(program: TileProgram, before: set[int], room: int, most: int) -> Iterator[TileLoad]:
    """The loads in their order whose addresses are known at once, each once, while there is
    room. most: bytes of a tile that other programs do not read."""
    known = set(before)
    grid = {a for a in program.nest.with_role(Role.GRID) if program.blocks.count(a) > 1}
    for each, _ in program.walk():
        if not isinstance(each, TileLoad) or each.value in known:
            continue
        known.add(each.value)
        placed = each.access.at or each.via or each.chosen is not None
        if placed or each.twice or each.rows or each.moved:
            continue
        size = _bytes(program, each)
        if size > most and not grid.isdisjoint(each.access.axes):
            continue
        room -= size
        if room >= 0:
            yield each
