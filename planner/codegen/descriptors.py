"""Which accesses a tensor descriptor can make: blocks of two dimensions, copied in bulk."""

from __future__ import annotations

from dataclasses import dataclass

from ..graph.dtypes import itemsize
from ..graph.sizes import divisor_of
from ..nests.linear_forms import Access, Term
from .access import Dims, Tiles
from .source import Descriptor

_ALIGNED = 16  # bytes
LONGEST = 256  # elements of a block along one dimension


@dataclass(frozen=True, slots=True)
class Described:
    """An access by descriptor: the tile axes of its rows and columns, and what else goes into the
    coordinates: terms over axes that are scalars, scaled to rows and to columns."""

    descriptor: Descriptor
    rows: int
    columns: int
    row_terms: tuple[Term, ...]
    column_terms: tuple[Term, ...]


def described(tiles: Tiles, access: Access, dims: Dims) -> Described | None:
    """How a descriptor makes an access of these dimensions; None where it cannot."""
    terms = access.offset.terms
    plain = {t.axis: t for t in terms if t.axis in dims and t.div == 1 and not t.mod}
    if access.guards or access.at or len(dims) != 2 or sum(t.axis in dims for t in terms) != 2:
        return None
    inner = [t for t in plain.values() if t.scale == 1]
    if set(plain) != set(dims) or len(inner) != 1:
        return None
    (column,) = inner
    (row,) = (t for t in plain.values() if t is not column)
    size, stride = itemsize(access.type.dtype), row.scale
    if stride <= 1 or any(divisor_of(n) * size % _ALIGNED for n in (stride, access.offset.base)):
        return None
    block = (tiles.blocks[row.axis], tiles.blocks[column.axis])
    if max(block) > LONGEST or block[1] * size < _ALIGNED or size > 4:
        return None
    others = [t for t in terms if t.axis not in dims]
    rows = [Term(t.axis, t.div, t.mod, t.scale // stride) for t in others if t.scale % stride == 0]
    columns = [t for t in others if t.scale % stride]
    shape = (_extent(tiles, row, rows), _extent(tiles, column, columns))
    ragged = (tiles.is_ragged(row.axis) and rows) or (tiles.is_ragged(column.axis) and columns)
    # Past the end of one batch lies the next, not zeros.
    if ragged or any(t.scale < 0 for t in others) or shape[1] > stride:
        return None
    descriptor = Descriptor(shape, (stride, 1), block, access.offset.base)
    return Described(descriptor, row.axis, column.axis, tuple(rows), tuple(columns))


def are_of_use(tiles: Tiles) -> bool:
    """Whether descriptors can make some access of the kernel: an operand that is loaded for a
    matrix product, or a store."""
    nest = tiles.nest
    operands = {r for c in nest.contractions if tiles.dot(c) for r in nest.values[c].reads}
    loads = [access for value, access in nest.loads.items() if value in operands]
    return any(
        described(tiles, access, tiles.dims(access.axes))
        for access in (*loads, *nest.stores.values())
    )


def coordinates(tiles: Tiles, found: Described, starts: dict[int, str]) -> str:
    """The block's first row and column, as 32-bit integers."""
    texts = []
    for axis, terms in ((found.rows, found.row_terms), (found.columns, found.column_terms)):
        parts = [starts[axis]] if starts[axis] != "0" or not terms else []
        parts += [tiles.term(term, ()) for term in terms]
        text = " + ".join(parts)
        texts.append(f"tl.cast({text}, tl.int32)" if tiles.wide else text)
    return f"[{', '.join(texts)}]"


def _extent(tiles: Tiles, own: Term, others: list[Term]) -> int:
    """Rows or columns of the whole tensor, as the coordinates count them."""
    last = tiles.nest.axes[own.axis].extent - 1
    for term in others:
        whole = -(-tiles.nest.axes[term.axis].extent // term.div)
        last += ((term.mod or whole) - 1) * term.scale
    return last + 1
