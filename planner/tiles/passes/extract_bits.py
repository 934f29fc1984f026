"""Convert numbers of a few bits to float32 straight from their byte.

Written plainly, each weight of 4 bits is masked or shifted out of its byte, moved by a zero point,
and converted: six instructions or more, for a GPU computes with 32 bits. In place of them the bits
go to the end of a float32's mantissa by one instruction, as part of a large number which the next
one subtracts, the zero point with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from ...graph.dtypes import BOUNDS
from ...graph.graph import Ref
from ...graph.op import Op
from ...memo import by_identity
from ...nests.nest import Nest
from ...values import values
from ..blocks import Blocks
from ..instructions import (
    BitField,
    Body,
    EpilogueSubtiles,
    Instruction,
    Loops,
    TileCompute,
    TileLoop,
)
from ..program import TileProgram, rewritten

MOST_OFFSET = 255
"""The largest zero point."""

_BITS = 8
"""Of a byte."""


def extract_bits(program: TileProgram) -> TileProgram:
    """Conversions read the byte, and what nobody reads any more is left out."""
    fields = _fields(program.nest)
    live = program.nest.live
    fields = {v: f for v, f in fields.items() if program.blocks.fills_words(live[v])}
    if not fields:
        return program

    def change(each: Instruction, _: Loops, __: Blocks) -> Instruction:
        if isinstance(each, TileCompute) and each.value in fields:
            return replace(each, bits=fields[each.value])
        return each

    changed = rewritten(program, change)
    return changed.having(_without(changed.body, _unread(program.nest, fields)))


@dataclass(frozen=True, slots=True)
class _Whole:
    """((source >> shift) & mask) - offset."""

    source: int
    shift: int
    mask: int
    offset: int = 0


@by_identity(64)
def _fields(nest: Nest) -> dict[int, BitField]:
    """By the conversions to float32 what they convert."""
    found: dict[int, BitField] = {}
    for value in nest.values:
        kind = value.kind
        if not isinstance(kind, values.Compute) or kind.op is not Op.CONVERT:
            continue
        if value.dtype != "float32" or kind.result not in BOUNDS:
            continue
        whole = _whole(nest, value.reads[0])
        if whole is None or whole.source == value.reads[0] or whole.mask & (whole.mask + 1):
            continue
        width = whole.mask.bit_length()
        if width and 0 <= whole.offset <= MOST_OFFSET:
            found[value.id] = BitField(whole.source, whole.shift, width, whole.offset)
    return found


def _whole(nest: Nest, number: int) -> _Whole | None:
    """An integer as a part of a byte less a number, where no step wraps around."""
    value = nest.values[number]
    own = _Whole(number, 0, 255) if value.dtype == "uint8" else None
    if not isinstance(value.kind, values.Compute) or value.dtype not in BOUNDS:
        return own
    named = dict(value.kind.operands)
    below, other = named.get("self"), named.get("other", 0)
    whole = _whole(nest, below.node) if isinstance(below, Ref) else None
    if whole is None or type(other) is not int or named.get("alpha", 1) != 1:
        return own
    match value.kind.op:
        case Op.CONVERT | Op.RECAST:
            pass
        case Op.BITWISE_AND if not whole.offset and other >= 0:
            whole = replace(whole, mask=whole.mask & other)
        case Op.RIGHT_SHIFT if not whole.offset and 0 <= other < _BITS:
            whole = replace(whole, shift=whole.shift + other, mask=whole.mask >> other)
        case Op.SUB:
            whole = replace(whole, offset=whole.offset + other)
        case _:
            return own
    low, high = BOUNDS[value.dtype]
    return whole if low <= -whole.offset and whole.mask - whole.offset <= high else own


def _unread(nest: Nest, fields: Mapping[int, BitField]) -> frozenset[int]:
    """What was read on the way to the conversions, and by nobody else."""
    readers: dict[int, set[int]] = {}
    for value in nest.values:
        for read in value.reads:
            readers.setdefault(read, set()).add(value.id)
    kept = {output.value for output in nest.outputs} | {f.source for f in fields.values()}
    gone: set[int] = set()
    for value in reversed(nest.values):
        own = readers.get(value.id)
        if not own or not own <= fields.keys() | gone or value.id in kept:
            continue
        if isinstance(value.kind, values.Compute) and _whole(nest, value.id) is not None:
            gone.add(value.id)
    return frozenset(gone)


def _without(body: Body, gone: frozenset[int]) -> Body:
    return tuple(_kept(body, gone))


def _kept(body: Body, gone: frozenset[int]) -> Iterator[Instruction]:
    for each in body:
        if isinstance(each, TileLoop):
            yield replace(each, body=_without(each.body, gone))
        elif isinstance(each, EpilogueSubtiles):
            yield replace(each, bodies=tuple(_without(part, gone) for part in each.bodies))
        elif not (isinstance(each, TileCompute) and each.value in gone):
            yield each
