"""Load or prefetch what no kernel of the stream writes before the wait for the kernel before."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...graph.dtypes import itemsize
from ...graph.sizes import varies
from ...nests.linear_forms import Access, Role, Term
from ..instructions import Head, Prefetch, SelectedLoad, TileLoad, TileLoop, Wait, loads_of
from ..program import TileProgram

_MOST = 256
"""Bytes of a thread that may lie in registers through the wait, of the 1,020 that it has."""

_LINE = 128
"""Bytes of a line of the L2 cache."""

_FETCHED, _LARGE = 64 * 1024, 1 << 20
"""Bytes that a program fetches of a tensor, and those of the smallest worth it. The programs of an
H200 together then fetch 8 MB, of the 60 that its L2 cache holds."""


def load_before_wait(
    program: TileProgram, *, unwritten: frozenset[int], num_warps: int
) -> TileProgram:
    """Loads of a program's straight-line work stand before its wait, as far as registers hold them;
    what its first loop loads is prefetched there: while the kernel before ends, they are under way.
    unwritten: the inputs that no kernel writes that may still run (see `groups.unwritten`)."""
    persistent = program.grid is not None and program.grid.persistent
    if persistent or not unwritten or not any(isinstance(each, Wait) for each in program.head):
        return program
    loads = tuple(_chosen(program, unwritten, _MOST * 32 * num_warps))
    early: Head = (*loads, *_fetched(program, unwritten))
    if not early:
        return program
    body = tuple(each for each in program.body if each not in loads)
    head: Head = ()
    for each in program.head:
        head += (*early, each) if isinstance(each, Wait) else (each,)
    return replace(program, head=head, body=body)


def _chosen(
    program: TileProgram, unwritten: frozenset[int], room: int
) -> Iterator[TileLoad | SelectedLoad]:
    """The loads in their order whose addresses are known at once, while there is room."""
    for each in program.body:
        if not isinstance(each, (TileLoad, SelectedLoad)):
            continue
        loads = loads_of(each)
        known = (own.input in unwritten and own.rows not in ("copied", "laid") for own in loads)
        if all(known) and not any(own.access.at for own in loads):
            room -= program.elements(each.value) * itemsize(loads[0].access.type.dtype)
            if room >= 0:
                yield each


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
