"""Multiply one row by numbers of a few bits on tensor cores, four lanes by themselves.

Summed in registers, each number takes an instruction to become a float32, one to lose its zero
point and one for the product, and as much again for what moves: 4.9 for a weight of 4 bits. A
tensor core takes the bits of two numbers as two bfloat16 at once, which is an instruction for both,
and a product is an eighth of one. What a lane holds is no part of a matrix: each has columns of its
own, of rows that all have. It becomes one where lanes are both rows and columns:

    D[g, h] = sum over lanes t and numbers i of  bits[lane (g, t), i] * row[lane (h, t), i]

of which the diagonal is wanted, for each quad g of lanes what it would have summed itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ...graph.graph import Ref
from ...graph.op import Op
from ...graph.ops import SUM
from ...memo import by_identity
from ...nests.linear_forms import Role
from ...nests.nest import Nest
from ...values.values import Compute
from ..alignment import lies_by_steps
from ..blocks import Blocks
from ..instructions import (
    BitField,
    Body,
    QuadSum,
    Reduce,
    SelectedLoad,
    TileCompute,
    TileLoad,
    loads_of,
)
from ..program import TileProgram

VECTOR = 16
"""Bytes of a row that a lane loads at once."""

_WARP = 32 * VECTOR
"""Those of a warp."""

MOST_WIDTH = 7
"""Bits that a bfloat16 keeps beside the power of two which stands for their place."""

_COMPUTED = (TileCompute, Reduce)

MOST_VECTORS = 4
"""Those of a row in a lane: the text has instructions for each."""


def sum_in_quads(program: TileProgram, *, num_warps: int) -> TileProgram:
    """Sums of products of one row with bits of bytes, of all places in a byte together."""
    bits = {
        each.value: each.bits
        for each in program.body
        if isinstance(each, TileCompute) and each.bits is not None
    }
    if not bits:
        return program
    finder = _QuadFinder(program, bits, num_warps)
    found = {each.value: each for each in finder.found()}
    if not found:
        return program
    body: Body = tuple(
        found[each.value] if isinstance(each, TileCompute) and each.value in found else each
        for each in program.body
    )
    gone = {part for each in found.values() for part in finder.leaves[each.value]}
    kept = {each.source for each in found.values()}
    kept |= {row for each in found.values() for _, row in each.parts}
    unread = _unread(program.nest, body, gone, kept)
    return program.having(
        tuple(e for e in body if not (isinstance(e, _COMPUTED) and e.value in unread))
    )


def _unread(nest: Nest, body: Body, gone: set[int], kept: set[int]) -> frozenset[int]:
    """What is not read any more where these values are not computed."""
    gone = set(gone)
    given = {each.value for each in body if isinstance(each, _COMPUTED)} - kept
    stored = {output.value for output in nest.outputs}
    readers = _readers(nest)
    for value in reversed(nest.values):
        own = readers.get(value.id, frozenset())
        if value.id in given - stored and own and own <= gone:
            gone.add(value.id)
    return frozenset(gone)


@by_identity(64)
def _readers(nest: Nest) -> Mapping[int, frozenset[int]]:
    found: dict[int, set[int]] = {}
    for value in nest.values:
        for read in value.reads:
            found.setdefault(read, set()).add(value.id)
    return {value: frozenset(by) for value, by in found.items()}


@dataclass(frozen=True, slots=True)
class _Product:
    """Bits, and the row that they are multiplied by."""

    bits: BitField
    row: int


class _QuadFinder:
    def __init__(self, program: TileProgram, bits: Mapping[int, BitField], num_warps: int) -> None:
        self.program, self.nest, self.blocks = program, program.nest, program.blocks
        self.bits, self.num_warps = bits, num_warps
        reduces = [each for each in program.body if isinstance(each, Reduce)]
        self.reduces = {each.value for each in reduces if _is_plain(each)}
        self.computes = {e.value for e in program.body if isinstance(e, TileCompute)}
        self.loads: dict[int, TileLoad | SelectedLoad] = {
            each.value: each for each in program.body if isinstance(each, (TileLoad, SelectedLoad))
        }
        self.leaves: dict[int, frozenset[int]] = {}
        """By the value of a sum what it adds up, and the sums under way."""

    def found(self) -> Iterator[QuadSum]:
        """Those of most places first: what adds up others comes after them."""
        taken: set[int] = set()
        for value in reversed(self.nest.values):
            if value.id in self.computes and value.id not in taken and self._is_sum(value.id):
                products: list[_Product] = []
                if self._collect(value.id, products, taken):
                    one = self._quads(value.id, products)
                    if one is not None:
                        yield one

    def _is_sum(self, value: int) -> bool:
        kind = self.nest.values[value].kind
        if not isinstance(kind, Compute) or kind.op is not Op.ADD:
            return False
        named = dict(kind.operands)
        both = [isinstance(named.get(name), Ref) for name in ("self", "other")]
        return all(both) and named.get("alpha", 1) == 1 and kind.working == "float32"

    def _collect(self, value: int, products: list[_Product], taken: set[int]) -> bool:
        """Of a tree of sums the products at its leaves; False where something else is there."""
        parts: set[int] = set()
        for read in self.nest.values[value].reads:
            if len(_readers(self.nest)[read]) > 1 or self._is_stored(read):
                return False
            parts.add(read)
            if read in self.computes and self._is_sum(read):
                if not self._collect(read, products, taken):
                    return False
                parts |= self.leaves[read]
                continue
            product = self._product(read) if read in self.reduces else None
            if product is None:
                return False
            products.append(product)
        taken |= parts
        self.leaves[value] = frozenset(parts)
        return len(parts) > 1

    def _is_stored(self, value: int) -> bool:
        return any(output.value == value for output in self.nest.outputs)

    def _product(self, value: int) -> _Product | None:
        """A sum of bits times a row, along the tile's last dimension."""
        fold = self.nest.fold(value)
        if fold.monoid != SUM or fold.mean or fold.times is None or fold.operand != "bfloat16":
            return None
        for bits, row in ((fold.source, fold.times), (fold.times, fold.source)):
            field = self._field(bits)
            if field is None:
                continue
            dims = self.blocks.dims(self.nest.live[field.source])
            own = self.blocks.dims(self.nest.live[row])
            last = tuple(self.nest.reduced(fold)) == dims[-1:]
            if last and len(dims) > 1 and own == dims[1:]:
                return _Product(field, row)
        return None

    def _field(self, value: int) -> BitField | None:
        """The bits of which a value is the number: in bfloat16, too, where it is converted."""
        while value not in self.bits:
            kind = self.nest.values[value].kind
            if not isinstance(kind, Compute) or kind.op is not Op.CONVERT:
                return None
            value = self.nest.values[value].reads[0]
        field = self.bits[value]
        return field if field.width <= MOST_WIDTH and field.offset <= 1 << MOST_WIDTH else None

    def _quads(self, value: int, products: list[_Product]) -> QuadSum | None:
        """The sum, where a lane has whole vectors of an even number of rows, the same of each."""
        fields = [product.bits for product in products]
        kinds = {(field.source, field.width, field.offset) for field in fields}
        if len(kinds) != 1 or len({field.shift for field in fields}) != len(fields):
            return None
        ((source, width, offset),) = kinds
        load = self.loads.get(source)
        if load is None or not all(_is_dense(own, self.blocks) for own in loads_of(load)):
            return None
        if isinstance(load, TileLoad) and self.blocks.bounds(load.access):
            return None
        first, *others = self.blocks.dims(self.nest.live[source])
        across = self.blocks.elements(others) // _WARP
        beside = min(across, self.num_warps)
        if not beside or self.nest.axes[first].role is not Role.GRID:
            return None
        rows = self.blocks.sizes[first] * beside / self.num_warps
        vectors = across // beside
        whole = all(self.blocks.sizes[a] == self.nest.axes[a].extent for a in others)
        fits = not self.blocks.elements(others) % (_WARP * beside) and vectors <= MOST_VECTORS
        each = self.blocks.sizes[others[-1]]
        if rows % 2 or not (whole and fits) or self.blocks.is_ragged(first) or each % VECTOR:
            return None
        parts = tuple((p.bits.shift, p.row) for p in products)
        return QuadSum(value, source, parts, width, offset, vectors)


def _is_plain(each: Reduce) -> bool:
    if each.carried or each.correction is not None:
        return False
    return not (each.compensated or each.beyond or each.part or each.joined)


def _is_dense(load: TileLoad, blocks: Blocks) -> bool:
    """Whether the elements of a row lie side by side, each row from a whole vector on."""
    access = load.access
    if load.via or load.rows or access.at:
        return False
    _, *others = blocks.dims(access.axes)
    if not lies_by_steps(access, others, blocks, 1):
        return False
    rest = [t for t in access.offset.terms if t.axis not in others]
    return access.offset.base % VECTOR == 0 and all(t.scale % VECTOR == 0 for t in rest)
