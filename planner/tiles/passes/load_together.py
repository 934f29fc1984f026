"""Load what a program of one block reads at once, as soon as the kernel before it has ended."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...graph.dtypes import itemsize
from ..instructions import (
    Body,
    EpilogueSubtiles,
    FirstBlock,
    LoadsTogether,
    TileLoad,
    TileLoop,
    TileRepeat,
    loads_of,
)
from ..program import TileProgram

_MOST = 512
"""Bytes of a thread that loads may hold in registers then, of the 1,020 that it has."""


def load_together(
    program: TileProgram, *, unwritten: frozenset[int], num_warps: int
) -> TileProgram:
    """Of a kernel whose first block stands before the wait, all other loads stand behind the wait,
    before its threads first meet, where every loop is one block. Each behind a reduction or a
    change of a layout, no compiler moves them over the barrier there: the attention of Qwen3-0.6B
    to a cache waited for the memory seven times, for the halves of queries and keys, rotary
    numbers and values, and took 8.0 us on an H100 where it takes 4.9 so."""
    begun = any(isinstance(each, FirstBlock) for each in program.head)
    if not begun or not unwritten or not _is_one_block(program, program.body):
        return program
    before = {load.value for each in program.head for load in loads_of(each)}
    room = _MOST * 32 * num_warps - sum(_bytes(program, value) for value in before)
    loads = tuple(_chosen(program, before, room))
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


def _bytes(program: TileProgram, value: int) -> int:
    return program.elements(value) * itemsize(program.nest.loads[value].type.dtype)


def _chosen(program: TileProgram, before: set[int], room: int) -> Iterator[TileLoad]:
    """The loads in their order whose addresses are known at once, each once, while there is
    room."""
    known = set(before)
    for each, _ in program.walk():
        if not isinstance(each, TileLoad) or each.value in known:
            continue
        known.add(each.value)
        if each.access.at or each.via or each.twice or each.rows or each.moved:
            continue
        room -= _bytes(program, each.value)
        if room >= 0:
            yield each
