"""Read the pieces of a choice by one load, whose address says which tensor it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Literal

from ...graph.sizes import varies
from ...memo import by_identity
from ...nests.linear_forms import Access, Affine
from ...nests.nest import Nest
from ...values.values import Choice, Load, Value
from ..alignment import vector_width
from ..blocks import Blocks, conditions
from ..instructions import Body, SelectedLoad, TileCompute, TileLoad, TileLoop, TilePlace
from ..program import TileProgram

Way = Literal["tile", "element"]
"""The piece is found for a whole tile, or for each of its elements."""

Pieces = Mapping[int, tuple[int, ...]]
"""By choice the loads of its pieces."""


def select_addresses(program: TileProgram) -> TileProgram:
    """Where tensors are put together, as weights that multiply the same rows or the channels of
    images, every element is read once, from the tensor that has it. A load for each of them, masked
    where others have the elements, would hold registers for each, and be an instruction for each
    though most read nothing. Not where one load would be narrower than some of these, nor in
    programs with mmas, whose loads are counted one by one."""
    found = {} if program.mmas else _selected(program.nest)
    if not found:
        return program
    told = tuple(_ways(program.nest, blocks, found) for blocks in _blocks_of(program))
    return program.remembering(
        ("selected", told), lambda: _body(program, program.body, found, program.blocks)
    )


def _blocks_of(program: TileProgram) -> Iterator[Blocks]:
    """Those of the program, and those of its loops that have their own."""
    yield program.blocks
    left = list(program.body)
    while left:
        each = left.pop()
        if isinstance(each, TileLoop):
            left += each.body
            if each.blocks is not None:
                yield each.blocks


def _ways(nest: Nest, blocks: Blocks, found: Pieces) -> tuple[Way | None, ...]:
    return tuple(_way(nest, blocks, choice, pieces) for choice, pieces in found.items())


def _way(nest: Nest, blocks: Blocks, value: int, pieces: tuple[int, ...]) -> Way | None:
    """How the address of each element is found: None where one load would be narrower than some of
    the pieces' own, for along the axis that they are dense along a vector is not in one piece."""
    index = nest.forms[value]
    accesses = [nest.loads[piece] for piece in pieces]
    if not any(index.axes & _dense(access) for access in accesses):
        return "element"
    if len({vector_width(access, blocks) for access in accesses}) > 1:
        return None
    kind = nest.values[value].kind
    assert isinstance(kind, Choice)
    terms = {tuple((t.axis, t.div, t.mod) for t in access.offset.terms) for access in accesses}
    only = index.terms[0] if len(index.terms) == 1 else None
    if only is None or (only.scale, only.div, only.mod) != (1, 1, 0) or len(terms) > 1:
        return "element"
    size = blocks.sizes[only.axis]
    ends = [low - index.base for _, low, _ in kind.pieces[1:]]
    whole = all(not varies(end) and end % size == 0 for end in ends)
    return "tile" if whole and blocks.count(only.axis) > 1 else "element"


@by_identity(64)
def _selected(nest: Nest) -> Pieces:
    """The choices whose pieces are loads that nothing else reads, with those."""
    found = {}
    read = [r for value in nest.values for r in value.reads]
    read += [output.value for output in nest.outputs]
    for value in nest.values:
        if not isinstance(value.kind, Choice):
            continue
        pieces = tuple(piece for piece, _, _ in value.kind.pieces)
        loads = [nest.values[p].kind for p in pieces if isinstance(nest.values[p].kind, Load)]
        apart = len(loads) == len(pieces) == len(set(pieces)) > 1
        alone = apart and all(read.count(p) == 1 for p in pieces)
        alike = {load.dtype for load in loads if isinstance(load, Load)}
        kept = {nest.values[p].dtype for p in pieces}
        if alone and len(alike) == 1 and kept == {value.dtype} and _told_by_index(nest, value):
            found[value.id] = pieces
    return found


def _told_by_index(nest: Nest, value: Value) -> bool:
    """Whether the index of a choice alone says which elements a load of a piece may read."""
    assert isinstance(value.kind, Choice)
    index, pieces = nest.forms[value.id], value.kind.pieces
    first, last = pieces[0][1], pieces[-1][2]
    whole = Affine(index.terms, index.base - first), last - first
    if any(conditions(whole, nest.axes)):
        return False  # What reads the choice leaves out where it has no piece.
    for piece, low, high in pieces:
        access = nest.loads[piece]
        implied = all(_implied(guard, index, low, high) for guard in access.guards)
        if access.at or not implied:
            return False
    return True


def _implied(guard: tuple[Affine, int], index: Affine, low: int, high: int) -> bool:
    """Whether a guard holds wherever low <= index < high."""
    form, limit = guard
    moved = form.base - index.base
    return form.terms == index.terms and low + moved >= 0 and high + moved <= limit


def _dense(access: Access) -> set[int]:
    """The axes along which neighbours lie side by side."""
    return {term.axis for term in access.offset.terms if term.scale == 1}


def _is_plain(load: TileLoad) -> bool:
    return load.place is TilePlace.REGISTERS and load.via is None and not load.rows


def _body(program: TileProgram, body: Body, found: Pieces, blocks: Blocks) -> Body:
    """The body with one load for each choice, where the first of its pieces was loaded."""
    way = dict(zip(found, _ways(program.nest, blocks, found), strict=True))
    loads = {each.value: each for each in body if isinstance(each, TileLoad) and _is_plain(each)}
    here = {each.value for each in body if isinstance(each, TileCompute)}
    own = {c: p for c, p in found.items() if way[c] and c in here and loads.keys() >= {*p}}
    firsts = {pieces[0]: choice for choice, pieces in own.items()}
    gone = {v for choice, pieces in own.items() for v in (choice, *pieces)}
    new: Body = ()
    for each in body:
        if isinstance(each, TileLoop):
            inner = _body(program, each.body, found, each.blocks or blocks)
            new += (replace(each, body=inner),)
        elif isinstance(each, TileLoad) and each.value in firsts:
            choice = firsts[each.value]
            pieces = tuple(loads[piece] for piece in own[choice])
            new += (SelectedLoad(choice, pieces, by_tile=way[choice] == "tile"),)
        elif not (isinstance(each, (TileLoad, TileCompute)) and each.value in gone):
            new += (each,)
    return new
