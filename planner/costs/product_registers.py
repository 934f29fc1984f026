"""Registers of a kernel with matrix products: their results, and what waits beside them."""

from __future__ import annotations

import math

from ..graph.dtypes import itemsize
from ..nests.nest import Nest
from ..tiles.descriptors import LONGEST
from ..tiles.instructions import ONES, EpilogueSubtiles, Mma, MmaUnit, OnesMma
from ..tiles.program import TileProgram, by_body
from ..values.values import Choice, Compute, Load
from . import shared_memory

# Least absolute error over 811 kernels with matrix products that Triton 3.6 compiled for H200s: 71%
# of them within 15% or 8 registers; the workloads left out in turn, 68%.
_BASE, _HELD, _INSIDE = 25.3, 0.68, 0.42
# The compiler loads all that an epilogue needs before it begins, and what is computed of loads
# alone waits there for the results. Rounded from 168 kernels of eight epilogues compiled for sm_90
# by Triton 3.7, tiles of 64 x 128 to 256 x 128 whole and in two parts: of the 23 that spill 16 are
# foreseen, without these none.
_BESIDE_LOADED, _BESIDE_COMPUTED = 1.0, 0.6


def of_results(program: TileProgram, threads: int) -> float:
    """With matrix products: their results stay in registers from the first turn of their loop to
    their last use, loaded operands in shared memory. Besides them count the other loads under way,
    and in a loop what is computed there and read again."""
    nest, operands, steps = program.nest, program.operands, program.evaluations()
    sizes = {
        value: program.tile(value) * (ONES if isinstance(each, OnesMma) else each.slices)
        for value, each in program.reductions.items()
        if isinstance(each, (Mma, OnesMma))
    }
    epilogue = program.body[-1]
    parts = len(epilogue.bodies) if isinstance(epilogue, EpilogueSubtiles) else 1
    behind = set(map(id, epilogue.bodies[0])) if isinstance(epilogue, EpilogueSubtiles) else set()
    last, held = _last_reads(program), _results_held(program)
    of_held = {results: sum(map(sizes.__getitem__, results)) / threads for results in set(held)}
    beside = _beside_results(program)
    waiting = 0.0
    ends: dict[int, list[tuple[float, float]]] = {}
    loaded = inside = most_held = most_inside = 0.0
    for place, (item, loops) in enumerate(steps):
        kind, words = nest.values[item.value].kind, program.tile(item.value) / threads
        until, load, own = last.get(item.value, -1), 0.0, 0.0
        if item.value in beside:
            share = 1 / parts if id(item) in behind else 1.0
            waiting += beside[item.value] * words * share
        elif isinstance(kind, Load) and item.value not in operands and until >= place:
            load = words * max(0.5, itemsize(kind.dtype) / 4) / (parts if id(item) in behind else 1)
        elif isinstance(kind, Compute) and loops and until > place:
            own = words
        loaded, inside = loaded + load, inside + own
        ends.setdefault(until, []).append((load, own))
        products = of_held[held[place]]
        most_held = max(most_held, products + loaded)
        most_inside = max(most_inside, products + inside)
        for load, own in ends.pop(place, ()):
            loaded, inside = loaded - load, inside - own
    return _BASE + _HELD * most_held + _INSIDE * most_inside + waiting


@by_body
def _last_reads(program: TileProgram) -> dict[int, int]:
    """Of each value the last step that reads it."""
    nest, steps = program.nest, program.evaluations()
    last = {r: place for place, (i, _) in enumerate(steps) for r in nest.values[i.value].reads}
    last.update((output.value, len(steps)) for output in nest.outputs)
    return last


@by_body
def _results_held(program: TileProgram) -> list[frozenset[int]]:
    """At each step the results of products that stay in registers."""
    last, steps = _last_reads(program), program.evaluations()
    multiplied = {v for v, i in program.reductions.items() if isinstance(i, (Mma, OnesMma))}
    first = {i.value: place for place, (i, _) in enumerate(steps) if i.value in multiplied}
    found = []
    for place, (_, loops) in enumerate(steps):
        results = {v for v, begin in first.items() if begin <= place <= last.get(v, -1)}
        carried = {c for loop in loops for c in loop.carries}
        found.append(frozenset(results | carried & multiplied))
    return found


@by_body
def _beside_results(program: TileProgram) -> dict[int, float]:
    """What waits for the results of products behind their loop, by value: registers of a word of
    it. Loads that are read with a result, and what is computed of loads alone and is read with one
    or stored."""
    nest, behind = program.nest, {i.value for i, loops in program.evaluations() if not loops}
    of_results = set(program.mmas)
    for value in nest.values:
        if not of_results.isdisjoint(value.reads):
            of_results.add(value.id)
    met = {r for value in nest.values if value.id in of_results for r in value.reads}
    met |= {output.value for output in nest.outputs}
    found = {}
    for own in (met & behind) - of_results - set(program.operands):
        kind = nest.values[own].kind
        if isinstance(kind, Load):
            found[own] = _BESIDE_LOADED * max(0.5, itemsize(kind.dtype) / 4)
        elif isinstance(kind, (Compute, Choice)) and nest.values[own].dtype != "bool":
            found[own] = _BESIDE_COMPUTED
    return found


_PLAIN = 0.62
"""Of the operands, what is in registers at once where neither is computed."""

# Rounded from 75 kernels of 31 groups, with a loop, that Triton 3.6 compiled for H200s: 68 of them
# are within 15% or 8 registers, 29 without these.
_LEFT, _COLUMN, _COLUMNS = 0.9, 0.72, 15.0
# Of the left operand where the loop loads ahead: 89% of 174 kernels of 50 groups, 76% without.
_COMPUTED_LEFT = 0.6
# More where a group of warps multiplies with no loop: 79% of 90 kernels of 39 groups, 56% without.
_AT_ONCE = 8.0

# Of the rows and columns of float32 that a thread multiplies: nine kernels of one group, of which
# those that spill 160 to 10,000 bytes are told from the others.
_OWN = 0.5


def by_warps(program: TileProgram, num_warps: int, ahead: bool, wanted: float) -> float:
    """Registers of a product, `wanted` and little more if a warpgroup multiplies. Else each warp
    brings its rows and columns into registers. In a loop, where nothing is loaded ahead, that is
    all of the left operand, else columns of the right one, for the steps to come, and the left
    operand where it does not come as it is needed (`_staying`). Without a loop it is all of both
    where something is computed first, or where they are too long for bulk copies. With a whole row
    of 512 in one tile the compiler spills thousands of bytes."""
    nest = program.nest
    # Of several, as of two matrices by the same rows, each in turn has its operands there.
    mma, looped = next((i, own) for i, own in program.evaluations() if isinstance(i, Mma))
    m, n, k = (program.blocks.sizes[axis] for axis in (mma.m, mma.n, mma.k))
    num_warps, k = num_warps // mma.slices, k // mma.slices
    if mma.unit is MmaUnit.FMA:
        return max(wanted, _by_threads(m * n / (32 * num_warps), k))
    if mma.unit is MmaUnit.WARPGROUP:
        whole = 0.0 if looped else m * k / (32 * num_warps) * _is_costly(nest, mma.left)
        return wanted + _AT_ONCE * (not looped) + whole
    rows, columns = shared_memory.of_warp(m, n, num_warps)
    word = itemsize(nest.fold(mma.value).operand) / 128
    if looped and not ahead:
        return wanted + _LEFT * rows * k * word
    if looped:
        written, _ = shared_memory.of_warp(*((n, m) if mma.is_turned else (m, n)), num_warps)
        left = _staying(nest, mma) * written * k * word
        return wanted + left + max(0.0, _COLUMN * columns - _COLUMNS)
    computed = mma.source not in nest.loads or mma.times not in nest.loads
    if not computed and k <= LONGEST:
        return wanted
    operands = (rows + columns) * k * word * (1.0 if computed else _PLAIN)
    return max(wanted, operands + max(m * n / (32 * num_warps), 16))


# Words that are spilled at most of several products without tensor cores: of 24 kernels of
# attention and of two layers in float32, compiled for sm_90, none spills more than 520 bytes,
# however large its tiles. Without `of_fmas` 51 to 126 registers were expected of kernels that take
# 128 to 255 and spill.
FMAS_SPILL = 64


def of_fmas(program: TileProgram, threads: int) -> float:
    """Registers of several products without tensor cores: those of the hungriest."""
    sizes = program.blocks.sizes
    fmas = (mma for mma in program.mmas.values() if mma.unit is MmaUnit.FMA)
    each = (_by_threads(sizes[i.m] * sizes[i.n] / threads, sizes[i.k]) for i in fmas)
    return max(each, default=0.0)


def _is_costly(nest: Nest, value: int) -> bool:
    """Whether a value takes more than multiplying and adding: its tile is worked on as a whole."""
    left, seen = [value], {value}
    while left:
        read = nest.values[left.pop()]
        if isinstance(read.kind, Compute) and read.kind.cost in ("sfu", "div", "libdevice"):
            return True
        if isinstance(read.kind, (Compute, Choice)):
            new = set(read.reads) - seen
            seen |= new
            left += new
    return False


def _staying(nest: Nest, mma: Mma) -> float:
    """How much of the left operand of a warp's product is in registers at once, in a loop that
    loads ahead."""
    if mma.left not in nest.loads:
        return _COMPUTED_LEFT
    inner = any(t.axis == mma.k and t.scale == 1 for t in nest.loads[mma.left].offset.terms)
    return _LEFT if inner == mma.is_turned else 0.0


def _by_threads(results: float, k: int) -> float:
    """Registers where each thread computes so many results, near a square, without tensor cores."""
    rows = 2.0 ** math.ceil(math.log2(max(1.0, results)) / 2)
    return _BASE + results + _OWN * (rows + results / rows) * k
