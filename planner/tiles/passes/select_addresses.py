"""Read the pieces of a choice by one load, whose address says which tensor it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...nests.linear_forms import Access, Affine
from ...nests.nest import Nest
from ...values.values import Choice, Load, Value
from ..blocks import conditions
from ..instructions import Body, SelectedLoad, TileCompute, TileLoad, TileLoop
from ..program import TileProgram


def select_addresses(program: TileProgram) -> TileProgram:
    """Where tensors are put together along an axis that none of them is dense along, as weights
    that multiply the same rows, every element is read once, from the tensor that has it. A load for
    each of them, masked where others have the elements, would hold registers for each."""
    if program.mmas:
        return program
    found = {value.id: pieces for value, pieces in _selected(program.nest)}
    if not found:
        return program
    return program.remembering("selected", lambda: _body(program.body, found))


def _selected(nest: Nest) -> Iterator[tuple[Value, tuple[int, ...]]]:
    """The choices whose pieces are loads that nothing else reads, with those."""
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
            yield value, pieces


def _told_by_index(nest: Nest, value: Value) -> bool:
    """Whether the index of a choice alone says which elements a load of a piece may read, and a
    whole vector of each is in one piece."""
    assert isinstance(value.kind, Choice)
    index, pieces = nest.forms[value.id], value.kind.pieces
    first, last = pieces[0][1], pieces[-1][2]
    whole = Affine(index.terms, index.base - first), last - first
    if any(conditions(whole, nest.axes)):
        return False  # What reads the choice leaves out where it has no piece.
    for piece, low, high in pieces:
        access = nest.loads[piece]
        implied = all(_implied(guard, index, low, high) for guard in access.guards)
        if access.at or not implied or index.axes & _dense(access):
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


def _body(body: Body, found: dict[int, tuple[int, ...]]) -> Body:
    """The body with one load for each choice, where the first of its pieces was loaded."""
    loads = {each.value: each for each in body if isinstance(each, TileLoad) and not each.rows}
    here = {each.value for each in body if isinstance(each, TileCompute)}
    own = {c: pieces for c, pieces in found.items() if c in here and loads.keys() >= {*pieces}}
    firsts = {pieces[0]: choice for choice, pieces in own.items()}
    gone = {v for choice, pieces in own.items() for v in (choice, *pieces)}
    new: Body = ()
    for each in body:
        if isinstance(each, TileLoop):
            new += (replace(each, body=_body(each.body, found)),)
        elif isinstance(each, TileLoad) and each.value in firsts:
            choice = firsts[each.value]
            new += (SelectedLoad(choice, tuple(loads[piece] for piece in own[choice])),)
        elif not (isinstance(each, (TileLoad, TileCompute)) and each.value in gone):
            new += (each,)
    return new
