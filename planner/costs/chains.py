"""Registers of kernels of several matrix products with reductions between them: attention."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ..graph.dtypes import itemsize
from ..tiles.instructions import Mma, TileLoad
from ..tiles.program import TileProgram
from ..values import values
from ..values.values import Choice, Compute
from .shared_memory import of_warp
from .tile_cache import once

# Rounded from robust least squares over 310 kernels compiled for sm_90: 83% of those of attention
# are within 15% or 8 registers, 65% of the others, with workloads left out 80% and 60%.
_BASE, _COMPUTED, _STANDING, _PIECES = 27.0, 1.1, 0.85, 1.5
# What is computed for a product outside of loops is all there at once, with the addresses of what
# it is computed from, in each group of warps that works on its rows. Rounded from 174 kernels that
# Triton 3.6 compiled for H200s: 64% of those of attention are within 15% or 8 registers, 69% of the
# others (52% with rows counted once, and operands by what a tile of them has), and none is expected
# to spill hopelessly that does not.
_BEFORE = 1.5


def registers(program: TileProgram, num_warps: int, ahead: bool) -> float:
    """What is alive at once, in 32-bit words a thread: results of products, from the first turn of
    their loop to their last use, loads, and what loops compute. What is computed takes the place of
    what is read for the last time."""
    nest, mmas = program.nest, program.mmas
    steps = [(each.value, loops) for each, loops in program.evaluations()]
    depth = {v: len(loops) for v, loops in steps}
    last = {r: place for place, (v, _) in enumerate(steps) for r in nest.values[v].reads}
    last.update((output.value, len(steps)) for output in nest.outputs)
    waiting = _waiting(program, steps, last)
    counter = _ChainCounter(program, num_warps, depth, _before(program, depth), waiting)
    ends: dict[int, float] = defaultdict(float)
    begun: set[int] = set()
    alive = most = 0.0
    for place, (own, loops) in enumerate(steps):
        alive -= ends.pop(place, 0.0)
        for value in (*(c for loop in loops for c in loop.carries if c in mmas), own):
            if value not in begun:
                begun.add(value)
                words = counter.words(value)
                alive += words
                ends[max(last.get(value, -1), place + 1)] += words
        most = max(most, alive + counter.standing(own))
    return _BASE + most + counter.left(ahead) + _PIECES * counter.pieces()


def passing(program: TileProgram, num_warps: int) -> float:
    """Words of the largest operand that a loop loads by pointers and not ahead: it passes the
    registers on its way to shared memory. Of 18 kernels of attention that Triton 3.7 compiled for
    sm_90 the estimate is 4 registers off in the median, 34 without."""
    loaded = [
        program.elements(each.value) * itemsize(each.access.type.dtype)
        for each, loops in program.walk()
        if loops and isinstance(each, TileLoad) and each.value in program.operands
    ]
    return max(loaded, default=0) / (4 * 32 * num_warps)


def _before(program: TileProgram, depth: Mapping[int, int]) -> set[int]:
    """What is computed outside of loops for the products that stand there."""
    nest, found = program.nest, set[int]()
    left = [r for c in program.mmas if not depth[c] for r in nest.values[c].reads]
    while left:
        value = left.pop()
        computed = isinstance(nest.values[value].kind, (Compute, Choice))
        if computed and value not in found:
            found.add(value)
            left.extend(nest.values[value].reads)
    return found


def _waiting(
    program: TileProgram, steps: Sequence[tuple[int, object]], last: Mapping[int, int]
) -> set[int]:
    """What is computed from one product and is read only after the next one has been multiplied."""
    found, computed = set[int](), list[int]()
    begun = False
    for place, (value, _) in enumerate(steps):
        if value in program.mmas:
            begun = True
            found.update(v for v in computed if last.get(v, -1) > place)
        elif begun:
            computed.append(value)
    return found


@dataclass(frozen=True, slots=True)
class _ChainCounter:
    """depth: loops around each value; before: what is computed outside of loops for a product;
    waiting: what is computed from a product and kept while the next is multiplied."""

    program: TileProgram
    num_warps: int
    depth: Mapping[int, int]
    before: Collection[int]
    waiting: Collection[int]

    @property
    def mmas(self) -> Mapping[int, Mma]:
        return self.program.mmas

    def each(self, value: int) -> float:
        return self.program.tile(value) / (32 * self.num_warps)

    def words(self, value: int) -> float:
        nest, kind = self.program.nest, self.program.nest.values[value].kind
        if value in self.mmas:
            times = repeated(self.program, self.num_warps, self.depth, value)
            return self.each(value) * times
        if isinstance(kind, values.Load):
            # Operands lie in shared memory.
            is_operand = value in self.program.operands
            return 0.0 if is_operand else self.each(value) * max(0.5, itemsize(kind.dtype) / 4)
        if not isinstance(kind, (Compute, Choice)) or nest.values[value].dtype == "bool":
            return 0.0
        if value in self.before:
            return _BEFORE * self.each(value) * self._shared(value)
        if self.depth[value]:
            return _COMPUTED * self.each(value)
        return self.each(value) if value in self.waiting else 0.0

    def _shared(self, value: int) -> float:
        """How many groups of warps hold the same rows of a computed left operand."""
        for product, mma in self.mmas.items():
            is_left = mma.m in self.program.nest.live[value] and not self.depth[product]
            if is_left and mma.suits_warpgroup:
                return max(1.0, 16.0 * self.num_warps / self.program.blocks.sizes[mma.m])
        return 1.0

    def standing(self, product: int) -> float:
        """Of a product outside of loops, the rows and columns that a warp without a group loads."""
        mma = self.mmas.get(product)
        if mma is None or self.depth[product] or mma.suits_warpgroup:
            return 0.0
        nest, sizes = self.program.nest, self.program.blocks.sizes
        of_each = of_warp(sizes[mma.m], sizes[mma.n], self.num_warps)
        sides = zip((mma.source, mma.times), of_each, strict=True)
        loaded = sum(size for v, size in sides if v in nest.loads)
        return _STANDING * loaded * sizes[mma.k] * itemsize(nest.fold(product).operand) / 128

    def left(self, ahead: bool) -> float:
        """Computed left operands, which stay in registers while the next product runs beside them:
        with loads ahead, with several tiles of rows a warp, or without groups."""
        most, nest = 0.0, self.program.nest
        for product, mma in self.mmas.items():
            several = self.program.blocks.sizes[mma.m] > 16 * self.num_warps
            beside = ahead or several or not mma.suits_warpgroup
            if beside and mma.source not in nest.loads and self.depth[product]:
                size = itemsize(nest.fold(product).operand)
                most = max(most, self.each(mma.source) * size / 4)
        return most

    def pieces(self) -> float:
        """The parts of operands that a warp without a group loads at once."""
        sizes = self.program.blocks.sizes
        alone = (mma for mma in self.mmas.values() if not mma.suits_warpgroup)
        most = max((min(sizes[mma.m], 64) + sizes[mma.n] for mma in alone), default=0)
        return most * 16 / (64 * self.num_warps)


def repeated(program: TileProgram, num_warps: int, depth: Mapping[int, int], product: int) -> float:
    """How many warps hold the same part of a result (see `matrix`). depth: loops around each
    value."""
    mma, sizes = program.mmas[product], program.blocks.sizes
    m, n = sizes[mma.m], sizes[mma.n]
    if not mma.suits_warpgroup:
        return max(1.0, 128.0 * num_warps / (m * n))
    return max(1.0, 16.0 * num_warps / m) if _feeds(program, depth, product) else 1.0


def _feeds(program: TileProgram, depth: Mapping[int, int], product: int) -> bool:
    """Whether another product of the same loop is computed from this one."""
    nest = program.nest
    same = [c for c in program.mmas if c != product and depth[c] == depth[product]]
    left, seen = [r for c in same for r in nest.values[c].reads], set[int]()
    while left:
        value = left.pop()
        if value == product:
            return True
        if value not in seen and value not in nest.loads:
            seen.add(value)
            left.extend(nest.values[value].reads)
    return False


@once
def feed_each_other(program: TileProgram) -> bool:
    """Whether a product is made of another's result. Those of the same rows by several matrices are
    summed side by side, as one product by the columns of all."""
    fed: set[int] = set()
    for value, each in enumerate(program.nest.values):
        if any(read in fed or read in program.mmas for read in each.reads):
            fed.add(value)
    return not fed.isdisjoint(program.mmas)
