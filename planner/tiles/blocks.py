"""The block sizes of a nest's axes, and what follows from them for shapes, counts and bounds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from ..errors import Refused
from ..graph.sizes import varies
from ..nests.linear_forms import Access, Affine, Role, TileAxis
from ..nests.mask_bounds import Limit
from ..nests.nest import Nest
from .index_width import needs_int64

LEAST_MMA = 16
"""The least size of each side of an mma,"""

LEAST_COLUMNS = 8
"""and of its columns, where its operands have 16 bits."""

TileDims = tuple[int, ...]
"""The tile axes that are dimensions of a value, in order."""


WORD = 4
"""Bytes of a register."""


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << max(0, n - 1).bit_length()


Sizes = tuple[tuple[str, int], ...]
"""Block sizes by the names of the axes, as a config has them."""


def block_size(axis: TileAxis, named: Mapping[str, int]) -> int:
    """Elements of an axis in one tile: all of a held axis, else the named size, never more than
    cover it, or than an mma needs. Along an axis that varies it does not follow the size at hand,
    so that one kernel is for many: a held one has at least the named size. Raises Refused when the
    axis is not among those named."""
    if axis.role is Role.HELD:
        least = named.get(axis.name, 1) if varies(axis.extent) else 1
        return max(power_of_two(axis.extent), least)
    if axis.name not in named:
        raise Refused("config", f"no block size for axis {axis.name}")
    return named[axis.name] if varies(axis.extent) else min(named[axis.name], largest_block(axis))


def largest_block(axis: TileAxis) -> int:
    """The largest block of a grid axis or of a loop: what covers it. A few rows are padded to
    those of an mma."""
    most = power_of_two(axis.extent)
    return max(most, LEAST_MMA) if axis.role is Role.GRID and axis.extent > 1 else most


@dataclass(frozen=True, slots=True)
class Bound:
    """One condition that an access must check: the index is below the extent of a ragged tile axis
    (`axis`), or the index of a guard (`form`) is not negative, or below `limit`."""

    axis: int | None = None
    form: Affine | None = None
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class AlignedRows:
    """Rows that begin anywhere, of which a tile holds whole vectors of 16 bytes: its blocks along
    the rows' axis are counted from the last start of a vector before each row, so that the first
    lanes of the first block lie before the row."""

    axis: int
    vector: int
    """Elements; those of the smallest dtype among the tensors that are accessed so."""
    start: Affine
    """Where the row of a program begins in them, but for a multiple of a vector."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """The block size of every tile axis of a nest.

    An axis with block 1 is a scalar and no dimension of any tile; a value has one dimension for
    each other axis on which it depends, in the order of the axes, and is a scalar without one.
    """

    nest: Nest
    sizes: tuple[int, ...]
    """Elements of each axis in one tile."""
    steps: tuple[int, ...]
    """Elements from one block to the next; more than its size where an epilogue is in parts."""
    wide: bool
    """Whether some offset or index of the nest does not fit 32 bits."""
    aligned: AlignedRows | None = None
    """The rows that are accessed as whole vectors though they begin anywhere."""
    inner: int | None = None
    """Of a block in the middle of a row, the axis along which all its lanes lie in the row."""

    @staticmethod
    def of(nest: Nest, named: Sizes) -> Blocks:
        """Raises Refused when they name no block for an axis."""
        known = dict(named)
        sizes = tuple(block_size(axis, known) for axis in nest.axes)
        return Blocks(nest, sizes, sizes, needs_int64(nest))

    def part(self, axis: int, parts: int) -> Blocks:
        """The blocks of one of several parts along an axis."""
        return self.having(axis, self.sizes[axis] // parts)

    def having(self, axis: int, size: int) -> Blocks:
        """Those with a tile of another size along an axis."""
        sizes = tuple(size if a == axis else b for a, b in enumerate(self.sizes))
        return replace(self, sizes=sizes)

    def widened(self, axis: int, number: int) -> Blocks:
        """Several blocks along an axis as one, no more than cover it."""
        size = min(self.sizes[axis] * number, power_of_two(self.nest.axes[axis].extent))
        sizes = tuple(size if a == axis else b for a, b in enumerate(self.sizes))
        return replace(self, sizes=sizes, steps=sizes)

    def dims(self, axes: Iterable[int]) -> TileDims:
        """The axes among these that are dimensions of a tile."""
        sizes = self.sizes
        return tuple(sorted([a for a in set(axes) if sizes[a] > 1]))

    def fills_words(self, axes: Iterable[int]) -> bool:
        """Whether a tile of bytes over these axes is of whole words, as instructions that take four
        bytes at once ask for."""
        return self.elements(axes) % WORD == 0

    def elements(self, axes: Iterable[int]) -> int:
        """Elements of a tile over these axes, padding included."""
        return math.prod(map(self.sizes.__getitem__, axes))

    def count(self, axis: int) -> int:
        """Blocks along an axis."""
        extent = self.nest.axes[axis].extent
        if self.aligned is not None and self.aligned.axis == axis:
            extent += self.aligned.vector - 1
        return -(-extent // self.steps[axis])

    def _is_aligned(self, axis: int) -> bool:
        return self.aligned is not None and self.aligned.axis == axis

    def turns(self, axis: int) -> float:
        """Blocks along a looped axis that masks leave on average."""
        found = self.nest.limits.get(axis, ())
        if not found:
            return self.count(axis)
        plain = [limit for limit in found if not limit.values]
        extents = tuple(self.nest.axes[t.axis].extent for limit in plain for t in limit.rest.terms)
        return _blocks_left(tuple(found), extents, self.sizes[axis], self.count(axis))

    def is_ragged(self, axis: int) -> bool:
        """Whether tiles may reach past an end; along an axis that varies they may."""
        if self.inner == axis:
            return False
        if self._is_aligned(axis):
            return True
        extent, step = self.nest.axes[axis].extent, self.steps[axis]
        return step > 1 if varies(extent) else extent % step != 0

    def bounds(self, access: Access) -> list[Bound]:
        """The conditions under which the access is in bounds; none when it always is."""
        found = [Bound(axis=a) for a in sorted(access.axes) if self.is_ragged(a)]
        for form, limit in access.guards:
            below, beyond = conditions((form, limit), self.nest.axes)
            found += [Bound(form=form)] * below + [Bound(form=form, limit=limit)] * beyond
        return found

    def repeated(self, access: Access) -> list[int]:
        """The grid axes that a store lacks: the programs along them all hold the same."""
        grid = self.nest.with_role(Role.GRID)
        return [a for a in grid if a not in access.axes and self.count(a) > 1]


def conditions(guard: tuple[Affine, int], axes: Sequence[TileAxis]) -> tuple[bool, bool]:
    """Whether the index of a guard may lie below 0 somewhere on the axes, and beyond its limit."""
    form, limit = guard
    ends = [form.base, form.base]
    for term in form.terms:
        whole = -(-axes[term.axis].extent // term.div)
        span = term.scale * ((term.mod or whole) - 1)
        ends[span > 0] += span
    return ends[0] < 0, ends[1] >= limit


@lru_cache(maxsize=4096)
def _blocks_left(
    limits: tuple[Limit, ...], extents: tuple[int, ...], block: int, count: int
) -> float:
    """Blocks that the limits leave on average; extents: of the axes of their terms, in order."""
    total = 0
    for eighth in range(8):
        first, last, others = 0, count, iter(extents)
        for limit in limits:
            if limit.values:
                continue
            rest = limit.rest.base
            for term, other in zip(limit.rest.terms, others, strict=False):
                rest += term.scale * (other * (2 * eighth + 1) // 16 if other > 1 else 0)
            if limit.scale > 0:
                last = min(last, max(0, -rest) // block + 1)
            else:
                first = max(first, max(0, rest) // block)
        total += max(0, last - first)
    # Of what a position in a tensor says nothing is known: a cache is filled half on average.
    return total / 8 * 0.5 ** any(limit.values for limit in limits)
