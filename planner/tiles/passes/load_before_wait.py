"""Load or prefetch what no kernel of the stream writes before the wait for the kernel before."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from ...graph.dtypes import itemsize
from ...graph.sizes import varies
from ...nests.linear_forms import Access, Role, Term
from ..instructions import (
    Body,
    FirstBlock,
    Head,
    Instruction,
    Mma,
    OnesMma,
    Prefetch,
    Reduce,
    SelectedLoad,
    TileCompute,
    TileLoad,
    TileLoop,
    Wait,
    loads_of,
)
from ..program import TileProgram

_MOST = 256
"""Bytes that a thread may read before the wait and keep in registers, of the 1,020 that it has.
Where blocks reach beyond the ends of rows, so many of 512 that their tiles take: Gemma-2-2B, whose
rows of 2,304 lie in blocks of 4,096, took 2,063 us a step on an H100 so, 2,126 with 256 of tiles.
Llama-3.2-1B, of full blocks, took 942 us with 256 and 948 with 512."""

_MOST_PACKED = 320
"""Those where the matrices are of single bytes: instructions take as long as the reading then, and
what is not loaded before is waited for. Llama-3.2-1B with weights of 8 bits took 505 us a step on
an H200 so and 509 with 256 bytes; of bfloat16, 694 with 256 and 712 with 320."""

_MOST_BLOCK = 512
"""Those with a first block, whose program does little else."""

_LINE = 128
"""Bytes of a line of the L2 cache."""

_FETCHED, _LARGE = 64 * 1024, 1 << 20
"""Bytes that a program fetches of a tensor, and those of the smallest worth it. The programs of an
H200 together then fetch 8 MB, of the 60 that its L2 cache holds."""


def load_before_wait(
    program: TileProgram, *, unwritten: frozenset[int], num_warps: int
) -> TileProgram:
    """Loads of a program's straight-line work stand before its wait, as far as registers hold them,
    and so does the first block of a loop of which masks leave few; what another first loop loads is
    prefetched there: while the kernel before ends, they are under way. unwritten: the inputs that
    no kernel writes that may still run (see `groups.unwritten`)."""
    persistent = program.grid is not None and program.grid.persistent
    if persistent or not unwritten:
        return program
    room = (_MOST_PACKED if _is_packed(program, unwritten) else _MOST) * 32 * num_warps
    loads = tuple(_chosen(program, program.body, unwritten, room, _bytes_read))
    room = _MOST_BLOCK * 32 * num_warps - sum(_bytes(program, each) for each in loads)
    body = tuple(each for each in program.body if each not in loads)
    first = _first_block(program, body, loads, unwritten, room)
    if first is not None:
        begun = tuple(each.value for each in first.loads)
        body = tuple(
            replace(each, begun=begun)
            if isinstance(each, TileLoop) and each.axis == first.axis
            else each
            for each in body
        )
    waits = any(isinstance(each, Wait) for each in program.head)
    early: Head = (*loads, *([first] if first else _fetched(program, unwritten)))
    if not early or not (waits or first):
        return program
    head: Head = ()
    for each in program.head:
        head += (*early, each) if isinstance(each, Wait) else (each,)
    return replace(program, head=head if waits else (*program.head, *early), body=body)


def _is_packed(program: TileProgram, unwritten: frozenset[int]) -> bool:
    """Whether the largest tile that may be loaded so has elements of one byte."""
    loads = [each for each in program.body if isinstance(each, (TileLoad, SelectedLoad))]
    early = [each for each in loads if {own.input for own in loads_of(each)} <= unwritten]
    largest = max(early, key=lambda each: _bytes(program, each), default=None)
    return largest is not None and itemsize(loads_of(largest)[0].access.type.dtype) == 1


def _bytes(program: TileProgram, each: TileLoad | SelectedLoad) -> int:
    """Those of its tile; a scalar is no tile, and takes a register of every thread."""
    elements = program.elements(each.value)
    if isinstance(each, TileLoad) and each.between is not None:
        elements *= 2
    return elements * itemsize(loads_of(each)[0].access.type.dtype) if elements > 1 else 0


def _bytes_read(program: TileProgram, each: TileLoad | SelectedLoad) -> int:
    """Those within the ends of its axes, at least half of what its tile takes in registers."""
    extents = {a: program.nest.axes[a].extent for a in program.nest.live[each.value]}
    sizes = program.blocks.sizes
    read = math.prod(sizes[a] if varies(n) else min(sizes[a], n) for a, n in extents.items())
    tile = _bytes(program, each)
    return max(tile * read // program.elements(each.value), tile // 2)


def _chosen(
    program: TileProgram,
    body: Body,
    unwritten: frozenset[int],
    room: int,
    nbytes: Callable[[TileProgram, TileLoad | SelectedLoad], int],
) -> Iterator[TileLoad | SelectedLoad]:
    """The loads in their order whose addresses are known at once, while there is room."""
    for each in body:
        if not isinstance(each, (TileLoad, SelectedLoad)):
            continue
        loads = loads_of(each)
        known = (own.input in unwritten and own.rows not in ("copied", "laid") for own in loads)
        if all(known) and not any(own.access.at or own.via for own in loads):
            room -= nbytes(program, each)
            if room >= 0:
                yield each


def _first_block(
    program: TileProgram,
    body: Body,
    early: tuple[TileLoad | SelectedLoad, ...],
    unwritten: frozenset[int],
    room: int,
) -> FirstBlock | None:
    """The first block of a loop up to a position that lies in a tensor: most often there is no
    other, as of the keys that one part of attention reads. Loads of a pipelined loop are begun
    ahead as it is: Qwen3-0.6B with two blocks in each part took 742 us a step so on an H100, 710 us
    without. early: what stands before it."""
    loops = [
        each for each in body if isinstance(each, TileLoop) and program.nest.limits.get(each.axis)
    ]
    if len(loops) != 1 or program.blocks.wide or not _may_begin(program, loops[0]):
        return None
    (loop,) = loops
    if loop.stages > 1 and program.blocks.count(loop.axis) > 1:
        return None
    limits = program.nest.limits.get(loop.axis, ())
    given = {value for limit in limits for value, _ in limit.values}
    if not given or not given <= {each.value for each in early}:
        return None
    if any(limit.scale < 0 for limit in limits):
        return None
    loads = tuple(
        each
        for each in _chosen(program, tuple(_straight(program, loop.body)), unwritten, room, _bytes)
        if isinstance(each, TileLoad) and not each.twice
    )
    return FirstBlock(loop.axis, loads) if loads else None


def _straight(program: TileProgram, body: Body) -> Iterator[Instruction]:
    """The instructions of a body, and those of loops in it that have one block."""
    for each in body:
        if isinstance(each, TileLoop) and program.blocks.count(each.axis) == 1:
            yield from _straight(program, each.body)
        else:
            yield each


def _may_begin(program: TileProgram, loop: TileLoop) -> bool:
    """Whether a block of the loop may be written apart from the others, as its first is number
    0."""
    rows = program.blocks.aligned
    plain = (TileLoad, SelectedLoad, TileCompute, Reduce, Mma, OnesMma)
    return (
        all(isinstance(each, plain) for each in _straight(program, loop.body))
        and not (loop.reverse or loop.by_lane or loop.flatten)
        and loop.blocks is None
        and loop.inner is None
        and (rows is None or rows.axis != loop.axis)
    )


def _fetched(program: TileProgram, unwritten: frozenset[int]) -> Iterator[Prefetch]:
    """Of the first loop, the large tensors that lie along it in rows which one program reads."""
    loop = next((each for each in program.body if isinstance(each, TileLoop)), None)
    if loop is None or loop.reverse or program.nest.limits.get(loop.axis):
        return
    extent = program.nest.axes[loop.axis].extent
    for each in loop.body:
        if not isinstance(each, TileLoad) or each.input not in unwritten:
            continue
        access, size = each.access, itemsize(each.access.type.dtype)
        others = [a for a in program.blocks.dims(access.axes) if a != loop.axis]
        grid = [a for a in program.nest.with_role(Role.GRID) if a not in access.axes]
        own = all(program.blocks.count(axis) == 1 for axis in grid)
        along = any(t.axis == loop.axis and _is_dense(t, access) for t in access.offset.terms)
        whole = not access.guards and not access.at and not program.blocks.bounds(access)
        if own and along and whole and not varies(extent) and access.type.nbytes >= _LARGE:
            rows = program.blocks.elements(others)
            lines = min(extent * size, _FETCHED // rows) // _LINE
            if lines:
                count = 1 << lines.bit_length() - 1
                yield Prefetch(each.input, access, loop.axis, count, _LINE // size)


def _is_dense(term: Term, access: Access) -> bool:
    """Whether neighbours along the term lie side by side."""
    return term.scale == 1 and term.div == 1 and not term.mod and term.axis not in access.along
