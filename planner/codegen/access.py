"""Index expressions, masks and shapes of a nest under given block sizes, as Triton text."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from ..config import Config
from ..errors import Refused
from ..graph.dtypes import itemsize
from ..graph.graph import TensorType
from ..graph.ops import SUM
from ..graph.sizes import varies
from ..memo import by_identity
from ..nests.linear_forms import Access, Affine, Role, Term, TileAxis
from ..nests.mask_bounds import Limit
from ..nests.nest import Nest
from ..nests.placement import Carry, Step
from ..values.values import Fold, Load, Value
from .numbers import Numbers

INT32_LIMIT = 2**31 - 1
MOST_LANES = 2**20
"""Elements of a tile; Triton takes no more."""


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << max(0, n - 1).bit_length()


def block_size(axis: TileAxis, config: Config) -> int:
    """Elements of an axis in one tile: all of a held axis, else the config's, never more than
    cover it. Raises Refused when the config names no block for the axis."""
    if axis.role is Role.HELD:
        return power_of_two(axis.extent)
    try:
        return min(config.block(axis.name), power_of_two(axis.extent))
    except KeyError:
        raise Refused("config", f"no block size for axis {axis.name}") from None


LEAST_DOT = 16
"""The least size of each side of a matrix product of tiles."""


ONES = LEAST_DOT
"""Columns of ones with which rows are multiplied to sum them."""


GROUP = 4
"""Warps that multiply together: Hopper's tensor cores take tiles of 64 rows from four."""


@dataclass(frozen=True, slots=True)
class Dot:
    """The tile axes of a matrix product [m, k] x [k, n]."""

    m: int
    n: int
    k: int


Dims = tuple[int, ...]
"""The tile axes that are dimensions of a value, in order."""


@lru_cache(maxsize=4096)
def _blocks_left(
    limits: tuple[Limit, ...], extents: tuple[int, ...], block: int, count: int
) -> float:
    """Blocks that the limits leave on average; extents: of the axes of their terms, in order."""
    total = 0
    for eighth in range(8):
        first, last, others = 0, count, iter(extents)
        for limit in limits:
            rest = limit.rest.base
            for term, other in zip(limit.rest.terms, others, strict=False):
                rest += term.scale * (other * (2 * eighth + 1) // 16 if other > 1 else 0)
            if limit.scale > 0:
                last = min(last, max(0, -rest) // block + 1)
            else:
                first = max(first, max(0, rest) // block)
        total += max(0, last - first)
    return total / 8


@dataclass(frozen=True, slots=True)
class Tiles:
    """Blocks of a nest's axes and what follows from them.

    An axis with block 1 is a scalar and no dimension of any tile; a value has one dimension for
    each other axis on which it depends, in the order of the axes, and is a scalar without one.
    steps: from one block to the next; more than the block in a part of an epilogue. numbers: the
    arguments that stand in text for sizes that vary.
    """

    nest: Nest
    blocks: tuple[int, ...]
    steps: tuple[int, ...]
    wide: bool
    numbers: Numbers = field(default_factory=Numbers, compare=False)

    @staticmethod
    def of(nest: Nest, config: Config) -> Tiles:
        blocks = tuple(block_size(axis, config) for axis in nest.axes)
        return Tiles(nest, blocks, blocks, _is_wide(nest))

    def part(self, axis: int, parts: int) -> Tiles:
        """The tiles of one of several parts along an axis."""
        blocks = tuple(b // parts if a == axis else b for a, b in enumerate(self.blocks))
        return replace(self, blocks=blocks)

    def widened(self, axis: int, number: int) -> Tiles:
        """The tiles of several blocks along an axis at once, no more than cover it."""
        size = min(self.blocks[axis] * number, power_of_two(self.nest.axes[axis].extent))
        blocks = tuple(size if a == axis else b for a, b in enumerate(self.blocks))
        return replace(self, blocks=blocks, steps=blocks)

    def dims(self, axes: Iterable[int]) -> Dims:
        """The axes among these that are dimensions of a tile."""
        return tuple(sorted(a for a in set(axes) if self.blocks[a] > 1))

    def shape(self, dims: Dims) -> str:
        return "[" + ", ".join(str(self.blocks[d]) for d in dims) + "]"

    def count(self, axis: int) -> int:
        """Blocks along an axis."""
        return -(-self.nest.axes[axis].extent // self.steps[axis])

    def turns(self, axis: int) -> float:
        """Blocks along a looped axis that masks leave on average."""
        found = self.nest.limits.get(axis, ())
        if not found:
            return self.count(axis)
        extents = tuple(self.nest.axes[t.axis].extent for limit in found for t in limit.rest.terms)
        return _blocks_left(tuple(found), extents, self.blocks[axis], self.count(axis))

    def is_ragged(self, axis: int) -> bool:
        """Whether tiles may reach past the end; along an axis that varies they may."""
        extent, step = self.nest.axes[axis].extent, self.steps[axis]
        return step > 1 if varies(extent) else extent % step != 0

    @staticmethod
    def spread(text: str, own: Dims, dims: Dims) -> str:
        """A value of dimensions `own` placed among `dims`; a scalar needs no place."""
        if not own or own == dims:
            return text
        return f"{text}[{', '.join(':' if d in own else 'None' for d in dims)}]"

    def index(self, axis: int, dims: Dims, suffix: str = "") -> str:
        """The index along an axis (or, with suffix "_in", whether it is inside)."""
        return self.spread(self.nest.axes[axis].name + suffix, self.dims((axis,)), dims)

    def affine(self, form: Affine, dims: Dims) -> str:
        parts = [self.term(term, dims) for term in form.terms]
        if form.base or not parts:
            parts.append(self.numbers.text(form.base))
        return " + ".join(parts)

    def term(self, term: Term, dims: Dims) -> str:
        text, number = self.index(term.axis, dims), self.numbers.text
        if term.div > 1:
            text = f"{text} // {number(term.div)}"
        if term.mod:
            mod = number(term.mod)
            text = f"({text}) % {mod}" if term.div > 1 else f"{text} % {mod}"
        if term.scale != 1:
            joined, scale = term.div > 1 or term.mod, number(term.scale)
            text = f"({text}) * {scale}" if joined else f"{text} * {scale}"
        return text

    def pointer(self, buffer: str, access: Access, dims: Dims, places: Sequence[str] = ()) -> str:
        """An address; places: the terms of its offset that values give."""
        text = self.affine(access.offset, dims)
        if places:
            text = " + ".join([*places, *([text] if text != "0" else [])])
        return buffer if text == "0" else f"{buffer} + ({text})"

    def masks(self, access: Access, dims: Dims) -> list[str]:
        """Conditions under which the access is in bounds; none when it always is."""
        ragged = (a for a in sorted(access.axes) if self.is_ragged(a))
        found = [self.index(a, dims, "_in") for a in ragged]
        for index, limit in access.guards:
            text = self.affine(index, dims)
            below, beyond = conditions((index, limit), self.nest.axes)
            end = self.numbers.text(limit) if beyond else ""
            found += [f"({text} >= 0)"] * below + [f"({text} < {end})"] * beyond
        return found

    def dot(self, fold: int) -> Dot | None:
        """How a contraction is a matrix product of tiles; None where it is a sum of products."""
        known = _dots(self)
        if fold not in known:
            known[fold] = self._dot(fold)
        return known[fold]

    def _dot(self, fold: int) -> Dot | None:
        kind = self.nest.fold(fold)
        if kind.times is None or kind.operand not in ("float16", "bfloat16", "float32"):
            return None
        left, right = (set(self.dims(self.nest.live[v])) for v in (kind.source, kind.times))
        k = set(self.dims(self.nest.reduced(kind)))
        m, n = left - right, right - left
        sizes = [math.prod(self.blocks[a] for a in axes) for axes in (m, n, k)]
        if left & right != k or [len(m), len(n), len(k)] != [1, 1, 1] or min(sizes) < LEAST_DOT:
            return None
        return Dot(m.pop(), n.pop(), k.pop())

    def is_by_ones(self, fold: int) -> bool:
        """Whether a sum is a product with ones, beside the matrix product that takes in the same
        16-bit tiles and sums them along the same axis: they need not pass the registers then. Only
        of sums that are results, of 16 bits: tensor cores add less exactly than float32 does. Both
        products are of groups of warps, or neither is: they read the same tile (see
        `runtime.races`)."""
        return fold in _by_ones(self)

    def by_group(self, dot: Dot, num_warps: int) -> bool:
        """Whether groups of four warps multiply a tile at once, straight from shared memory; else
        each warp brings its part of the operands into registers first."""
        # Of a tile, dimensions go in the order of the axes.
        return num_warps % GROUP == 0 and self._has_rows(min(dot.m, dot.n))

    def _has_rows(self, axis: int) -> bool:
        """Whether a group of warps can multiply rows along an axis."""
        return self.blocks[axis] % (16 * GROUP) == 0

    def sums_alike(self, fold: int, dot: Dot) -> bool:
        """Whether the rows that a sum leaves suit a group of warps as those of a product do."""
        left = self.dims(self.nest.live[fold])
        return all(self._has_rows(a) == self._has_rows(min(dot.m, dot.n)) for a in left)

    def is_operand_only(self, load: int) -> bool:
        """Whether a loaded value is only ever an operand of products in its own dtype, summed by
        ones at most."""
        kind = self.nest.values[load].kind
        assert isinstance(kind, Load)
        if any(out.value == load for out in self.nest.outputs):
            return False
        for value in self.nest.values:
            if load in value.reads and not self.is_by_ones(value.id):
                fold, product = value.kind, value.id in self.nest.contractions
                same = isinstance(fold, Fold) and fold.operand == kind.dtype
                if not (same and product and self.dot(value.id) is not None):
                    return False
        return True

    def is_loaded_twice(self, load: int, num_warps: int) -> bool:
        """Whether, in a loop that loads ahead, others than the products that a group of warps is at
        need a tile of their own: in that of the products the next would be written too early (see
        `runtime.races`)."""
        products = [c for c in self.nest.contractions if load in self.nest.values[c].reads]
        groups = any(self._is_by_group(product, num_warps) for product in products)
        return groups and not self.is_operand_only(load)

    def _is_by_group(self, product: int, num_warps: int) -> bool:
        """Whether tensor cores compute it for a group of warps, be it written turned or not."""
        dot, fold = self.dot(product), self.nest.fold(product)
        if dot is None or (fold.operand == "float32" and fold.precision == "ieee"):
            return False
        return self.by_group(dot, num_warps)

    def tile(self, value: int) -> int:
        """Elements of the largest tile that evaluating a value takes."""
        axes = set(self.nest.live[value])
        kind = self.nest.values[value].kind
        if isinstance(kind, Fold) and kind.times is not None and self.dot(value) is None:
            axes |= self.nest.live[kind.source] | self.nest.live[kind.times]
        return math.prod(self.blocks[a] for a in axes)

    def largest_tile(self) -> int:
        """Elements of the largest tile in registers: loaded operands of matrix products lie in
        shared memory."""
        if not self.nest.contractions:
            return self.nest.largest_tile(self.blocks)
        dots = [c for c in self.nest.contractions if self.dot(c) is not None]
        staged = {r for c in dots for r in self.nest.values[c].reads if r in self.nest.loads}
        return max((self.tile(v.id) for v in self.nest.values if v.id not in staged), default=1)


def conditions(guard: tuple[Affine, int], axes: Sequence[TileAxis]) -> tuple[bool, bool]:
    """Whether the index of a guard may lie below 0 somewhere on the axes, and beyond its limit."""
    form, limit = guard
    ends = [form.base, form.base]
    for term in form.terms:
        whole = -(-axes[term.axis].extent // term.div)
        span = term.scale * ((term.mod or whole) - 1)
        ends[span > 0] += span
    return ends[0] < 0, ends[1] >= limit


@by_identity(256)
def _is_wide(nest: Nest) -> bool:
    """Whether some offset or index of the nest does not fit 32 bits."""
    accesses = [*nest.loads.values(), *nest.stores.values()]
    if any(_span(access.type) > INT32_LIMIT for access in accesses):
        return True
    # What is broadcast may have many elements though no tensor has: the last block of an axis
    # reaches past its end.
    return any(axis.extent > INT32_LIMIT - MOST_LANES for axis in nest.axes)


@by_identity(64)
def _by_ones(tiles: Tiles) -> frozenset[int]:
    """See `Tiles.is_by_ones`."""
    nest = tiles.nest
    products = [c for c in nest.contractions if tiles.dot(c) is not None]
    if len(products) != 1:
        return frozenset()
    (product,) = products
    dot, places, operand = tiles.dot(product), _places(nest), nest.fold(product).operand
    assert dot is not None
    found = {
        value.id
        for value in nest.values
        if _is_plain_sum(nest, value)
        and value.reads[0] in nest.values[product].reads
        and tiles.dims(nest.reduced(nest.fold(value.id))) == (dot.k,)
        and places[value.id] == places[product]
        and tiles.sums_alike(value.id, dot)
    }
    shown = {out.value for out in nest.outputs}
    for load in nest.values[product].reads:
        kind = nest.values[load].kind
        readers = {v.id for v in nest.values if load in v.reads}
        as_it_is = isinstance(kind, Load) and kind.dtype == operand != "float32"
        if not as_it_is or load in shown or readers - found - {product}:
            found -= readers  # The tile passes the registers anyway, or would be rounded.
    return frozenset(found)


def _is_plain_sum(nest: Nest, value: Value) -> bool:
    """Whether a value is a sum in float32 that nothing reads, stored in 16 bits."""
    kind = value.kind
    if not isinstance(kind, Fold) or kind.monoid != SUM or value.dtype != "float32":
        return False
    if kind.times is not None or kind.about is not None or value.id in nest.corrections:
        return False
    stored = [itemsize(out.type.dtype) for out in nest.outputs if out.value == value.id]
    return set(stored) == {2} and not any(value.id in other.reads for other in nest.values)


def _places(nest: Nest) -> dict[int, list[tuple[int, ...]]]:
    """The loops around each place where a value is computed."""
    found: dict[int, list[tuple[int, ...]]] = defaultdict(list)
    for item, loops in nest.walk():
        if isinstance(item, (Step, Carry)):
            found[item.value].append(tuple(id(loop) for loop in loops))
    return found


@by_identity(64)
def _dots(tiles: Tiles) -> dict[int, Dot | None]:
    """What `Tiles.dot` has found."""
    return {}


def _span(tensor: TensorType) -> int:
    return sum((n - 1) * abs(s) for n, s in zip(tensor.shape, tensor.stride, strict=True) if n > 1)
