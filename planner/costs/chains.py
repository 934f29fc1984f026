"""Registers of kernels of several matrix products, each of which waits for the one before."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ..codegen.access import Dot, Tiles
from ..graph.dtypes import itemsize
from ..nests.nest import Nest
from ..nests.placement import Loop, Store
from ..values.values import Choice, Compute, Fold, Load
from .staging import of_warp

# Rounded from robust least squares over 310 kernels compiled for sm_90: 83% of those of attention
# are within 15% or 8 registers, 65% of the others, with workloads left out 80% and 60%.
_BASE, _COMPUTED, _STANDING, _PIECES = 27.0, 1.1, 0.85, 1.5
# What is computed for a product outside of loops is all there at once, with the addresses of what
# it is computed from, in each group of warps that works on its rows. Rounded from 174 kernels that
# Triton 3.6 compiled for H200s: 64% of those of attention are within 15% or 8 registers, 69% of the
# others (52% with rows counted once, and operands by what a tile of them has), and none is expected
# to spill hopelessly that does not.
_BEFORE = 1.5
# Where nothing but products is summed. Of 153 kernels of 24 groups that Triton 3.6
# compiled for H200s 78% are within 15% or 8 registers, with groups left out 75%; 59% by the above.
_BASE_UNREDUCED, _UNREDUCED = 22.0, 1.36


def registers(nest: Nest, tiles: Tiles, num_warps: int, ahead: bool, limit: int) -> float:
    """What is alive at once, in 32-bit words a thread: results of products, from the first turn of
    their loop to their last use, loads, and what loops compute. What is computed takes the place of
    what is read for the last time. limit: what a thread can have; up to that the compiler is free
    with them."""
    steps = [(i.value, loops) for i, loops in nest.walk() if not isinstance(i, (Store, Loop))]
    dots = {c: dot for c in nest.contractions if (dot := tiles.dot(c)) is not None}
    depth = {v: len(loops) for v, loops in steps}
    counter = _Counter(nest, tiles, num_warps, depth, dots, _before(nest, dots, depth))
    last = {r: place for place, (v, _) in enumerate(steps) for r in nest.values[v].reads}
    last.update((output.value, len(steps)) for output in nest.outputs)
    ends: dict[int, float] = defaultdict(float)
    begun: set[int] = set()
    alive = most = 0.0
    for place, (own, loops) in enumerate(steps):
        alive -= ends.pop(place, 0.0)
        for value in (*(c for loop in loops for c in loop.carries if c in dots), own):
            if value not in begun:
                begun.add(value)
                words = counter.words(value)
                alive += words
                ends[max(last.get(value, -1), place + 1)] += words
        most = max(most, alive + counter.standing(own))
    whole = most + counter.left(ahead) + _PIECES * counter.pieces()
    if any(isinstance(value.kind, Fold) and value.kind.times is None for value in nest.values):
        return _BASE + whole
    return max(_BASE + whole, min(limit, _BASE_UNREDUCED + _UNREDUCED * whole))


def _before(nest: Nest, dots: Mapping[int, Dot], depth: Mapping[int, int]) -> set[int]:
    """What is computed outside of loops for the products that stand there."""
    found: set[int] = set()
    left = [r for c in dots if not depth[c] for r in nest.values[c].reads]
    while left:
        value = left.pop()
        computed = isinstance(nest.values[value].kind, (Compute, Choice))
        if computed and value not in found:
            found.add(value)
            left.extend(nest.values[value].reads)
    return found


@dataclass(frozen=True, slots=True)
class _Counter:
    """depth: loops around each value; before: what is computed outside of loops for a product."""

    nest: Nest
    tiles: Tiles
    num_warps: int
    depth: Mapping[int, int]
    dots: Mapping[int, Dot]
    before: Collection[int]

    def each(self, value: int) -> float:
        return self.tiles.tile(value) / (32 * self.num_warps)

    def words(self, value: int) -> float:
        nest, kind = self.nest, self.nest.values[value].kind
        if value in self.dots:
            return self.each(value) * self._repeated(value)
        if isinstance(kind, Load):
            readers = [c for c in self.dots if value in nest.values[c].reads]
            # Operands lie in shared memory.
            return 0.0 if readers else self.each(value) * max(0.5, itemsize(kind.dtype) / 4)
        if not isinstance(kind, (Compute, Choice)) or nest.values[value].dtype == "bool":
            return 0.0
        if value in self.before:
            return _BEFORE * self.each(value) * self._shared(value)
        return _COMPUTED * self.each(value) if self.depth[value] else 0.0

    def _shared(self, value: int) -> float:
        """How many groups of warps hold the same rows of a computed left operand."""
        for product, dot in self.dots.items():
            rows = self.tiles.blocks[dot.m]
            is_left = dot.m in self.nest.live[value] and not self.depth[product]
            if is_left and self._grouped(product):
                return max(1.0, 16.0 * self.num_warps / rows)
        return 1.0

    def standing(self, product: int) -> float:
        """Of a product outside of loops, the rows and columns that a warp without a group loads."""
        if product not in self.dots or self.depth[product] or self._grouped(product):
            return 0.0
        dot, fold = self.dots[product], self.nest.fold(product)
        m, n, k = (self.tiles.blocks[axis] for axis in (dot.m, dot.n, dot.k))
        assert fold.times is not None
        values = self.nest.values
        sides = zip((fold.source, fold.times), of_warp(m, n, self.num_warps), strict=True)
        loaded = sum(size for v, size in sides if isinstance(values[v].kind, Load))
        return _STANDING * loaded * k * itemsize(fold.operand) / 128

    def left(self, ahead: bool) -> float:
        """Computed left operands, which stay in registers while the next product runs beside them:
        with loads ahead, with several tiles of rows a warp, or without groups."""
        most = 0.0
        for product, dot in self.dots.items():
            fold = self.nest.fold(product)
            several = self.tiles.blocks[dot.m] > 16 * self.num_warps
            beside = ahead or several or not self._grouped(product)
            computed = not isinstance(self.nest.values[fold.source].kind, Load)
            if beside and computed and self.depth[product]:
                most = max(most, self.each(fold.source) * itemsize(fold.operand) / 4)
        return most

    def pieces(self) -> float:
        """The parts of operands that a warp without a group loads at once."""
        sizes = (
            min(self.tiles.blocks[dot.m], 64) + self.tiles.blocks[dot.n]
            for product, dot in self.dots.items()
            if not self._grouped(product)
        )
        return max(sizes, default=0) * 16 / (64 * self.num_warps)

    def _grouped(self, product: int) -> bool:
        return self.tiles.by_group(self.dots[product], self.num_warps)

    def _repeated(self, product: int) -> float:
        """How many warps hold the same part of a result (see `matrix`)."""
        m, n = (self.tiles.blocks[a] for a in (self.dots[product].m, self.dots[product].n))
        if not self._grouped(product):
            return max(1.0, 128.0 * self.num_warps / (m * n))
        return max(1.0, 16.0 * self.num_warps / m) if self._feeds(product) else 1.0

    def _feeds(self, product: int) -> bool:
        """Whether another product of the same loop is computed from this one."""
        same = [c for c in self.dots if c != product and self.depth[c] == self.depth[product]]
        left, seen = [r for c in same for r in self.nest.values[c].reads], set[int]()
        while left:
            value = left.pop()
            if value == product:
                return True
            if value not in seen and not isinstance(self.nest.values[value].kind, Load):
                seen.add(value)
                left.extend(self.nest.values[value].reads)
        return False
