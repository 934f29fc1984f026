"""Accesses that a tensor descriptor can make: blocks of two dimensions, copied in bulk."""

from __future__ import annotations

from dataclasses import dataclass

from ..graph.dtypes import itemsize
from ..graph.sizes import divisor_of
from ..nests.linear_forms import Access, Term
from .blocks import Blocks, TileDims

_ALIGNED = 16  # bytes
LONGEST = 256  # elements of a block along one dimension


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A tensor descriptor over a buffer, for bulk copies of blocks: its sizes, its strides (in
    elements, the last is 1) and the block that one access moves. It begins `offset` elements into
    the buffer. The offset and the strides but the last are multiples of 16 bytes, and so is the
    buffer's address. In kernel text: `d.load([i, j])` (zeros outside) and `d.store([i, j], v)`."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    block: tuple[int, ...]
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Described:
    """An access by descriptor: the tile axes of its rows and columns, and what else goes into the
    coordinates: terms over axes that are scalars, scaled to rows and to columns."""

    descriptor: Descriptor
    rows: int
    columns: int
    row_terms: tuple[Term, ...]
    column_terms: tuple[Term, ...]

    @property
    def is_turned(self) -> bool:
        """Whether the block's rows are a later axis than its columns: a tile's dimensions go in
        the order of the axes."""
        return self.rows > self.columns


def described(blocks: Blocks, access: Access, dims: TileDims) -> Described | None:
    """The descriptor for an access of these dimensions; None where there is none."""
    terms = access.offset.terms
    plain = {t.axis: t for t in terms if t.axis in dims and t.div == 1 and not t.mod}
    if access.guards or access.at or len(dims) != 2 or sum(t.axis in dims for t in terms) != 2:
        return None
    if access.type.dtype == "bool":
        return None  # Triton counts a truth value as one bit.
    inner = [t for t in plain.values() if t.scale == 1]
    if set(plain) != set(dims) or len(inner) != 1:
        return None
    (column,) = inner
    (row,) = (t for t in plain.values() if t is not column)
    size, stride = itemsize(access.type.dtype), row.scale
    if stride <= 1 or any(divisor_of(n) * size % _ALIGNED for n in (stride, access.offset.base)):
        return None
    block = (blocks.sizes[row.axis], blocks.sizes[column.axis])
    if max(block) > LONGEST or block[1] * size < _ALIGNED or size > 4:
        return None
    others = [t for t in terms if t.axis not in dims]
    rows = [Term(t.axis, t.div, t.mod, t.scale // stride) for t in others if t.scale % stride == 0]
    columns = [t for t in others if t.scale % stride]
    shape = (_extent(blocks, row, rows), _extent(blocks, column, columns))
    ragged = (blocks.is_ragged(row.axis) and rows) or (blocks.is_ragged(column.axis) and columns)
    # Past the end of one batch lies the next, not zeros.
    if ragged or any(t.scale < 0 for t in others) or shape[1] > stride:
        return None
    descriptor = Descriptor(shape, (stride, 1), block, access.offset.base)
    return Described(descriptor, row.axis, column.axis, tuple(rows), tuple(columns))


def _extent(blocks: Blocks, own: Term, others: list[Term]) -> int:
    """Rows or columns of the whole tensor, as the coordinates count them."""
    last = blocks.nest.axes[own.axis].extent - 1
    for term in others:
        whole = -(-blocks.nest.axes[term.axis].extent // term.div)
        last += ((term.mod or whole) - 1) * term.scale
    return last + 1
