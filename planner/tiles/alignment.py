"""The widths of a tile's accesses: a thread moves 16 bytes at once where they are aligned to
16 bytes, and where the mask is the same for all of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ..graph.dtypes import itemsize
from ..graph.graph import contiguous
from ..graph.sizes import Size, divisor_of, varies
from ..memo import by_identity
from ..nests.linear_forms import Access, Affine, Role, Term
from ..nests.nest import Nest
from ..nests.tiling import REPEATS
from .blocks import AlignedRows, Blocks

VECTOR_BYTES = 16
NARROW_BYTES = 8
"""Accesses of fewer bytes at once leave some of the memory's bandwidth unused."""

WARP = 32
"""Threads."""

_MANY_ROWS, _MANY_BYTES, _WIDEST = 1024, 1 << 26, 2
"""Rows, and bytes of all of them at two for an element, beside which copies of one row cost
little: a launch of 3 us, where an H100 takes 20 us to read so much."""


def vector(access: Access) -> int:
    """Elements of 16 bytes."""
    return max(1, VECTOR_BYTES // itemsize(access.type.dtype))


def row_term(access: Access, axis: int) -> Term | None:
    """The term of an axis whose elements lie side by side; None where they do not."""
    own = [t for t in access.offset.terms if t.axis == axis]
    if len(own) != 1 or (own[0].scale, own[0].div, own[0].mod) != (1, 1, 0):
        return None
    return None if axis in access.along else own[0]


def row_start(access: Access, axis: int) -> Affine:
    """Where the row along an axis begins."""
    offset = access.offset
    return Affine(tuple(t for t in offset.terms if t.axis != axis), offset.base)


def row_end(access: Access) -> int:
    """The end of the last row: no element lies there or beyond."""
    kind = access.type
    if kind.stride == contiguous(kind.shape):  # Of a product is known what divides it.
        return access.offset.base + kind.numel
    sides = zip(kind.shape, kind.stride, strict=True)
    return access.offset.base + sum((n - 1) * s for n, s in sides) + 1


def vector_width(access: Access, blocks: Blocks) -> tuple[int, int | None]:
    """Elements that one instruction of a thread moves at most, by where they lie and by the mask;
    and the axis along which they lie side by side, None where none do."""
    terms = access.offset.terms
    inner = next((t for t in terms if is_dense(t, access) and blocks.sizes[t.axis] > 1), None)
    if inner is None and (times := repeats_of(access, blocks)) > 1:
        width, axis = vector_width(*_once(access, blocks, times))
        return width * times, axis
    if inner is None:
        return 1, None
    rows = blocks.aligned
    if rows is not None and rows.axis == inner.axis:
        is_wide = is_aligned(access, rows, blocks) or is_copied(access, rows.axis, blocks)
        return vector(access) if is_wide else 1, inner.axis
    start = Affine(tuple(t for t in terms if t is not inner), access.offset.base)
    ends = [inner.mod or blocks.nest.axes[inner.axis].extent]
    ends += [t.div for t in start.terms if t.axis == inner.axis]
    for form, limit in access.guards:
        if any(t.axis == inner.axis for t in form.terms):
            ends += [form.base, limit]
    return min(_common(access, start, ends), blocks.sizes[inner.axis]), inner.axis


def _once(access: Access, blocks: Blocks, times: int) -> tuple[Access, Blocks]:
    """An access without the neighbours that have the same element, and the blocks for it."""
    axis = blocks.dims(access.axes)[-1]

    def narrow(form: Affine) -> Affine:
        own = (replace(t, div=1) if t.axis == axis else t for t in form.terms)
        return Affine(tuple(own), form.base)

    guards = tuple((narrow(form), limit) for form, limit in access.guards)
    once = replace(access, offset=narrow(access.offset), guards=guards)
    return once, blocks.having(axis, blocks.sizes[axis] // times)


def repeats_of(access: Access, blocks: Blocks) -> int:
    """Neighbours along a tile's last axis that have the same element, which a thread can load once
    for them: 1 where all are elements of their own, or others than whole runs are alike."""
    dims = blocks.dims(access.axes)
    if not dims or access.at or all(o.part is None for o in blocks.nest.outputs):
        return 1
    forms = (access.offset, *(form for form, _ in access.guards))
    terms = {(t.div, t.mod) for form in forms for t in form.terms if t.axis == dims[-1]}
    times, mod = terms.pop() if len(terms) == 1 else (1, 0)
    whole = not mod and times in REPEATS and blocks.sizes[dims[-1]] % times == 0
    return times if whole else 1


def is_dense(term: Term, access: Access) -> bool:
    """Whether neighbours along the term lie side by side; where an index varies along the whole
    axis they lie anywhere."""
    return term.scale == 1 and term.div == 1 and (term.mod > 0 or term.axis not in access.along)


def lies_by_steps(access: Access, axes: Sequence[int], blocks: Blocks, step: int) -> bool:
    """Whether the elements of a tile along these axes, the last one fastest, lie at equal steps."""
    for axis in reversed(axes):
        terms = [term for term in access.offset.terms if term.axis == axis]
        if [(term.scale, term.div, term.mod) for term in terms] != [(step, 1, 0)]:
            return False
        step *= blocks.sizes[axis]
    return True


def stand_apart(nest: Nest, axis: int) -> bool:
    """Whether the ends of rows that begin at a vector's start stand apart from a loop along them:
    something that is read or written lies in such rows, whose length is known, and no mask leaves
    blocks out."""
    accesses = (*nest.loads.values(), *nest.stores.values())
    if nest.contractions or varies(nest.axes[axis].extent) or nest.limits.get(axis):
        return False
    return any(is_dense(t, a) for a in accesses for t in a.offset.terms if t.axis == axis)


def is_aligned(access: Access, rows: AlignedRows, blocks: Blocks) -> bool:
    """Whether the rows of an access begin as far from a vector's start as those of the kernel."""
    start = row_start(access, rows.axis)
    is_alike = _residue(start, rows.vector) == _residue(rows.start, rows.vector)
    return is_alike and _is_of_rows(access, rows.axis, blocks)


def is_apart(access: Access, axis: int, blocks: Blocks) -> bool:
    """Whether rows of a kernel of aligned rows begin elsewhere, as those of a weight: neighbouring
    threads read neighbouring elements of them."""
    rows = blocks.aligned
    return (
        rows is not None
        and rows.axis == axis
        and row_term(access, axis) is not None
        and blocks.dims(access.axes) == (axis,)
        and not is_aligned(access, rows, blocks)
    )


def is_copied(access: Access, axis: int, blocks: Blocks) -> bool:
    """Whether a row that all programs read is worth copies for every start that their rows have:
    beside what many programs walk, a launch and what it writes are little."""
    nest, rows = blocks.nest, blocks.aligned
    if rows is None or nest.axes[axis].role is Role.GRID or access.guards or access.at:
        return False
    start, extent = row_start(access, axis), nest.axes[axis].extent
    if start.terms or varies(start.base) or varies(extent) or not is_apart(access, axis, blocks):
        return False
    programs = math.prod(map(blocks.count, nest.with_role(Role.GRID)))
    return programs >= _MANY_ROWS and programs * extent * _WIDEST >= _MANY_BYTES


def copied_stride(extent: int, vector: int) -> int:
    """Elements from one copy of a row to the next: all copies begin at a vector's start and hold
    first 0, 1, 2, ... elements before the row; as much room as whole vectors take is behind it."""
    return -(-(extent + vector - 1) // vector) * vector


def aligned_rows(blocks: Blocks) -> AlignedRows | None:
    """The rows that are read and written as whole vectors, which a kernel without them would access
    by fewer bytes; None where most is accessed well, or cannot be."""
    found: dict[AlignedRows, int] = {}
    for axis, along in _with_odd_rows(blocks.nest):
        if blocks.sizes[axis] == 1:
            continue
        for access in along:
            if not _begins_anywhere(access, axis, blocks):
                continue
            most = max(vector(a) for a in along if _begins_anywhere(a, axis, blocks))
            if blocks.sizes[axis] < most:
                continue  # It is no whole vector, and the first could lie before the row.
            rows = AlignedRows(axis, most, row_start(access, axis))
            if rows not in found and _has_room(blocks, rows):
                own = sum(_weight(a, blocks) for a in along if is_aligned(a, rows, blocks))
                others = sum(_weight(a, blocks) for a in along) - own
                found |= {rows: own - others} if own > others else {}
    return max(found, key=lambda rows: found[rows], default=None)


@by_identity(64)
def _with_odd_rows(nest: Nest) -> tuple[tuple[int, tuple[Access, ...]], ...]:
    """The axes along which some rows may begin anywhere, whatever the blocks are, and all that is
    accessed along each in rows."""
    if nest.contractions:
        return ()
    accesses, found = [*nest.loads.values(), *nest.stores.values()], []
    for axis in (a for role in (Role.HELD, Role.LOOP, Role.GRID) for a in nest.with_role(role)):
        extent = nest.axes[axis].extent
        if nest.limits.get(axis):
            continue
        along = tuple(a for a in accesses if row_term(a, axis) is not None)
        if any(_is_narrow(a, axis, [extent]) for a in along):
            found.append((axis, along))
    return tuple(found)


def _is_narrow(access: Access, axis: int, ends: Iterable[int]) -> bool:
    common = _common(access, row_start(access, axis), ends)
    return common * itemsize(access.type.dtype) < NARROW_BYTES


def _is_of_rows(access: Access, axis: int, blocks: Blocks) -> bool:
    """Whether each program accesses one row."""
    start = row_start(access, axis)
    if row_term(access, axis) is None or access.guards or access.at:
        return False
    roles = {blocks.nest.axes[t.axis].role for t in start.terms}
    scales = [start.base, *(t.scale for t in start.terms)]
    return min(scales) >= 0 and not roles - {Role.GRID} and blocks.dims(access.axes) == (axis,)


def _begins_anywhere(access: Access, axis: int, blocks: Blocks) -> bool:
    """Whether an access is narrow by where its rows begin and end."""
    if not _is_of_rows(access, axis, blocks):
        return False
    extent = blocks.nest.axes[axis].extent
    ends = [extent] * (extent % blocks.sizes[axis] != 0)
    return _is_narrow(access, axis, ends)


def _has_room(blocks: Blocks, rows: AlignedRows) -> bool:
    """Whether a tile that holds whole rows has room for what lies before them; of the blocks of a
    grid, whether a warp has vectors to move, of more than one row."""
    axis, size = blocks.nest.axes[rows.axis], blocks.sizes[rows.axis]
    if axis.role is Role.GRID:
        return size >= WARP * rows.vector and bool(rows.start.terms)
    return axis.role is Role.LOOP or size >= axis.extent + _most_before(rows, axis.extent)


def _most_before(rows: AlignedRows, extent: int) -> int:
    """Elements before a row in its first vector, at most: none where a varying length is such that
    all rows begin at a vector's start, though the kernel does not know it."""
    if not varies(extent):
        return rows.vector - 1
    numbers = (rows.start.base, *(t.scale for t in rows.start.terms))
    return rows.vector - math.gcd(rows.vector, *map(int, numbers))


def _weight(access: Access, blocks: Blocks) -> int:
    """Bytes, those that are stored half as much again: what is loaded elsewhere may be apart."""
    extents = (blocks.nest.axes[axis].extent for axis in access.axes)
    is_stored = any(access is each for each in blocks.nest.stores.values())
    return math.prod(extents) * itemsize(access.type.dtype) * (3 if is_stored else 2)


def _residue(start: Affine, vector: int) -> object:
    """What decides how far a start lies from that of a vector."""
    scales = [(t.axis, t.div, t.mod, _remainder(t.scale, vector)) for t in start.terms]
    return sorted(each for each in scales if each[-1] != (0,)), _remainder(start.base, vector)


def _remainder(number: int, vector: int) -> tuple[int, ...]:
    """What a number is beside multiples of a vector: the same at all sizes of a bucket, so that
    these have one kernel."""
    if isinstance(number, Size):
        return (0,) if number.divisor % vector == 0 else (int(number), *number.probes)
    return (number % vector,)


def _common(access: Access, start: Affine, ends: Iterable[int]) -> int:
    numbers = [*(t.scale for t in start.terms), start.base, *ends]
    return math.gcd(vector(access), *(divisor_of(n) for n in numbers))
