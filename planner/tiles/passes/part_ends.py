"""Part the ends of held rows from their tiles, where the length varies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...graph.graph import Ref
from ...graph.op import Op
from ...graph.ops import MAX, MIN, PROD, SUM
from ...graph.sizes import varies
from ...nests.linear_forms import Role
from ...nests.nest import Nest
from ...values.values import Compute
from ..blocks import WORD, AlignedRows
from ..instructions import (
    Body,
    EndLanes,
    EndLoads,
    Instruction,
    Reduce,
    RowEnds,
    TileCompute,
    TileLoad,
    TilePlace,
    TileStore,
)
from ..program import TileProgram

_OF_PARTS = (SUM, PROD, MAX, MIN)
_ZERO_OF_ZEROS = frozenset((Op.CONVERT, Op.MUL, Op.ADD, Op.SUB))


def part_ends(program: TileProgram) -> TileProgram:
    """Of an aligned row some lanes of the first and of the last vector lie outside. Where the
    length varies, any vector may be the last: the compiler compares each element with both ends,
    for each sum. Here tiles have whole vectors in the row alone, of which one number is compared,
    and what is left at both ends is computed beside by a few lanes, step by step. A softmax of
    8,192 columns at most by 8 warps is 560 instructions so, in place of 832, and by 4 warps 984 of
    96 registers in place of 1,552 of 153. Nothing is parted where a kernel writes into what it
    reads."""
    rows, nest = program.blocks.aligned, program.nest
    if rows is None or any(access.at for access in nest.stores.values()):
        return program
    axis = nest.axes[rows.axis]
    if axis.role is not Role.HELD or not varies(axis.extent):
        return program
    return program.remembering(("parted", rows), lambda: _parted(program, rows))


def _parted(program: TileProgram, rows: AlignedRows) -> Body:
    """The body itself where something along the row is no load, computation or reduction."""
    nest, axis = program.nest, rows.axis
    lanes = EndLanes(axis, max(WORD, rows.vector), "both")
    lowest = _lowest(nest, program.body)
    zeros = set[int]()
    found, loads, stores = list[Instruction](), list[TileLoad](), list[TileStore]()
    steps = list[TileLoad | TileCompute | Reduce | TileStore]()
    for each in program.body:
        match each:
            case TileStore() if each.rows == "aligned":
                stores.append(each)
                found.append(replace(each, ends="both"))
            case TileStore() if axis not in nest.live[nest.outputs[each.output].value]:
                found.append(each)
            case Reduce() if axis in nest.reduced(nest.fold(each.value)):
                if not _is_of_parts(nest, each):
                    return program.body
                each = _bare(nest, each, zeros, lowest)
                found.append(RowEnds(lanes, (*steps, replace(each, part="ends")), apart=True))
                found.append(replace(each, part="rest"))
                steps.clear()
            case TileLoad() if axis in nest.live[each.value]:
                if not _is_of_rows(each):
                    return program.body
                each = replace(each, lowest=each.value in lowest)
                zeros |= set() if each.lowest else {each.value}
                loads.append(replace(each, in_pairs=False))
                steps.append(loads[-1])
                found.append(replace(each, ends="both"))
            case TileCompute() if axis in nest.live[each.value]:
                zeros |= {each.value} if _is_zero(nest, each.value, zeros) else set()
                steps.append(each)
                found.append(each)
            case TileLoad() | TileCompute():
                found.append(each)
            case _:
                return program.body
    return (EndLoads(lanes, tuple(loads)), *found, RowEnds(lanes, (*steps, *stores), apart=True))


def _is_of_parts(nest: Nest, each: Reduce) -> bool:
    """Whether the results of parts of a row give that of the row."""
    folds = [nest.fold(value) for value in (each.value, *each.joined)]
    return not each.carried and all(
        len(nest.reduced(fold)) == 1 and fold.monoid in _OF_PARTS for fold in folds
    )


def _is_of_rows(load: TileLoad) -> bool:
    """Whether any lanes can load it, and the lanes alone say where it lies."""
    is_plain = load.place is TilePlace.REGISTERS and load.via is None and load.joined is None
    is_free = not load.access.at and not load.access.guards
    return is_plain and is_free and load.rows in ("aligned", "apart")


def _lowest(nest: Nest, body: Sequence[Instruction]) -> set[int]:
    """The loads that are -inf where they read nothing, for that is what a maximum fills its tile
    with; and what is converted from them to the values that are filled."""
    found = set[int]()
    loads = {each.value: each for each in body if isinstance(each, TileLoad)}
    for each in body:
        if isinstance(each, Reduce) and each.beyond == "filled":
            chain = _converted(nest, nest.fold(each.value).source)
            if chain[-1] in loads and loads[chain[-1]].rows == "aligned":
                found.update(chain)
    return found


def _converted(nest: Nest, value: int) -> list[int]:
    """The value, and what it is converted from."""
    found = [value]
    while True:
        match nest.values[found[-1]].kind:
            case Compute(op=Op.CONVERT, operands=(("self", Ref(node=source)),)):
                found.append(source)
            case _:
                return found


def _is_zero(nest: Nest, value: int, zeros: set[int]) -> bool:
    """Whether it is 0 where its operands are."""
    kind = nest.values[value].kind
    return (
        isinstance(kind, Compute)
        and kind.op in _ZERO_OF_ZEROS
        and all(isinstance(o, Ref) and o.node in zeros for _, o in kind.operands)
    )


def _bare(nest: Nest, each: Reduce, zeros: set[int], lowest: set[int]) -> Reduce:
    """Without a mask, where all that it would mask is neutral."""
    folds = [nest.fold(value) for value in (each.value, *each.joined)]
    is_sum = all(fold.monoid == SUM and fold.source in zeros for fold in folds)
    is_sum &= all(fold.times is None or fold.times in zeros for fold in folds)
    if is_sum or (each.beyond == "filled" and folds[0].source in lowest):
        return replace(each, beyond="neutral")
    return each
