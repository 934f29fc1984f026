"""Register pressure of a nest under given blocks, estimated before any compiler runs."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from ..graph.dtypes import itemsize
from ..memo import by_identity
from ..nests.nest import Nest
from ..tiles.descriptors import LONGEST
from ..tiles.instructions import (
    NO_VALUE,
    ONES,
    REDUCTIONS,
    EpilogueSubtiles,
    Instruction,
    Mma,
    MmaUnit,
    OnesMma,
    Reduce,
    SelectedLoad,
    TileLoop,
    TileScan,
    TileStore,
    Welford,
)
from ..tiles.passes.join_reductions import ancestors_of
from ..tiles.program import TileProgram, by_body, walk
from ..values.values import Choice, Compute, Fold, Load
from . import chains, live_tiles, shared_memory, stencils
from .access_classes import classes
from .meeting import meets_in_turns
from .tile_cache import once

MOST = 255
_NARROW = 4  # Bytes of an element: a thread loads 16 bytes at once.

FEATURES = (
    "constant",
    "alive",  # values that earlier work left for this stretch or a later one
    "kept",  # values of this stretch that a later one reads
    "accumulators",  # of a loop that runs more than once
    "streamed",  # loads that a fold consumes at once, no more than STREAMED
    "streamed_in_loop",
    "in_flight",  # loads of a stretch that stores: all are under way together
    "widest",  # the widest computed value, for intermediate results
    "sfu",  # the widest value of the special function unit
    "division",  # the widest division or library function
    "operands",  # the widest operand of one of those that is read once more after it
    "stored",
    "looping",  # 1 in a loop of more than two iterations
    "addresses",  # of loads and stores
    "persistent",  # 1 where a program walks over several tiles
)
# By scripts/fit_registers.py, first of 1,423 kernels that Triton 3.6 compiled in tunes of 34 graphs
# on H200s and 292 drawn at random, then, from there, of 284 drawn of code generation 19, compiled
# by Triton 3.7: 80% of those are within 15% or 8 registers (75% with the weights before).
WEIGHTS = (
    13.9, 0.68, 0.37, 1.15, 0.44, 0.34, 0.56, 0.0, 0.17, 0.76, 0.59, 0.53, 1.53, 0.97, 5.42
)  # fmt: skip
STREAMED = 32  # Words from which the compiler loads no more before it folds what is there.
_LOADLESS = 4.6  # fewer where nothing is loaded
_OF_ONE = 8  # of a kernel of one element
# Where threads meet in every turn of a loop. Rounded from 37 kernels of six functions compiled for
# sm_90: 31 of them are within 15% or 8 registers, 9 with the loop as one stretch.
_MEETING, _MEETING_IN_TURN = 1.1, 9.0
FULL, NEAR, BELOW = 32, 40, 0.86
"""With 32 registers an SM holds all its warps: the compiler takes up to that for more loads under
way, and where a little more is wanted it makes do."""


@once
def pressure(
    program: TileProgram,
    num_warps: int,
    ahead: bool = False,
    persistent: bool = False,
    described: bool = False,
) -> tuple[int, int]:
    """(registers, spill bytes) per thread, as the compiler would report them. ahead: loops load
    ahead for mmas; persistent: programs walk over several tiles; described: operands of mmas are
    copied by descriptors."""
    limit, nest = most(num_warps), program.nest
    if program.mmas:
        several = len(program.mmas) > 1 and not all(mma.few for mma in program.mmas.values())
        reduced = [value for value in program.reductions if nest.fold(value).times is None]
        reduces = bool(reduced)
        if several and any(program.mmas.keys() & ancestors_of(nest)[v] for v in reduced):
            wanted = chains.registers(program, num_warps, ahead)
            wanted += 0.0 if ahead or described else chains.passing(program, num_warps)
        elif several or reduces:
            wanted = live_tiles.registers(program, num_warps, persistent)
        else:
            wanted = _with_mma(program, 32 * num_warps)
            wanted = _by_warps(program, num_warps, ahead, wanted)
        wanted = max(wanted, live_tiles.of_neighbours(program, num_warps))
        if several or reduces:
            of_fmas = _of_fmas(program, 32 * num_warps)
            wanted = max(wanted, min(of_fmas, limit + _FMAS_SPILL) if several else of_fmas)
        return int(min(limit, wanted)), int(max(0.0, wanted - limit) * 4)
    if nest.largest_tile(program.blocks.sizes) == 1:
        return _OF_ONE, 0
    counter = _RegisterCounter.of(program, 32 * num_warps, persistent)
    many = stencils.registers(program, counter.words, counter.elements)
    if many is not None:
        return int(min(limit, many)), int(max(0.0, many - limit) * 4)
    stretches = features(program, num_warps, persistent)
    wanted = max(sum(w * f for w, f in zip(WEIGHTS, each, strict=True)) for each in stretches)
    wanted -= _LOADLESS * (not nest.loads)
    spilled = int(max(0.0, wanted - limit) * 4)
    if meets_in_turns(program):
        wanted = _MEETING * wanted + _MEETING_IN_TURN
    wanted = settled(max(wanted, free(stretches, num_warps)))
    return int(min(limit, max(16, wanted))), spilled


def most(num_warps: int) -> int:
    """Registers that a thread can have."""
    return min(MOST, 65536 // (32 * num_warps))


def settled(wanted: float) -> float:
    """What the compiler makes of so many registers."""
    if wanted < FULL:
        return FULL - BELOW * (FULL - wanted)
    return FULL if wanted < NEAR else wanted


# Least absolute error over 811 kernels with matrix products that Triton 3.6 compiled for H200s: 71%
# of them within 15% or 8 registers; the workloads left out in turn, 68%.
_BASE, _HELD, _INSIDE = 25.3, 0.68, 0.42
# The compiler loads all that an epilogue needs before it begins, and what is computed of loads
# alone waits there for the results. Rounded from 168 kernels of eight epilogues compiled for sm_90
# by Triton 3.7, tiles of 64 x 128 to 256 x 128 whole and in two parts: of the 23 that spill 16 are
# foreseen, without these none.
_BESIDE_LOADED, _BESIDE_COMPUTED = 1.0, 0.6


def _with_mma(program: TileProgram, threads: int) -> float:
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
    first = {i.value: place for place, (i, _) in enumerate(steps)}
    last = {r: place for place, (i, _) in enumerate(steps) for r in nest.values[i.value].reads}
    last.update((output.value, len(steps)) for output in nest.outputs)
    beside = _beside_results(program)
    waiting = 0.0
    ends: dict[int, list[tuple[float, float]]] = {}
    loaded = inside = most_held = most_inside = 0.0
    for place, (item, loops) in enumerate(steps):
        carried = {c for loop in loops for c in loop.carries}
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
        results = {d for d in sizes if first[d] <= place <= last.get(d, -1)}
        products = sum(sizes[d] for d in results | carried & sizes.keys()) / threads
        most_held = max(most_held, products + loaded)
        most_inside = max(most_inside, products + inside)
        for load, own in ends.pop(place, ()):
            loaded, inside = loaded - load, inside - own
    return _BASE + _HELD * most_held + _INSIDE * most_inside + waiting


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


def _by_warps(program: TileProgram, num_warps: int, ahead: bool, wanted: float) -> float:
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
# however large its tiles. Without `_of_fmas` 51 to 126 registers were expected of kernels that take
# 128 to 255 and spill.
_FMAS_SPILL = 64


def _of_fmas(program: TileProgram, threads: int) -> float:
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


def free(stretches: Collection[tuple[float, ...]], num_warps: int) -> int:
    """Registers that the compiler takes to keep more loads under way because they cost no
    occupancy: an SM holds 64 warps of 32 registers, but at most 32 blocks."""
    looping, streamed = FEATURES.index("looping"), FEATURES.index("streamed")
    if any(each[looping] or each[streamed] >= STREAMED for each in stretches):
        return 62 if num_warps == 1 else 32
    return 0


@dataclass(slots=True)
class _Stretch:
    """Straight-line work between two points where all threads meet. carries: what it adds to, of
    its loop; states: what its loop carries; axis: that of its loop; gathers: it is the reduction
    of accumulators after their loop; shared: see `TileLoop`."""

    values: list[int]
    carries: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    axis: int | None = None
    gathers: bool = False
    shared: int = 1
    states: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class _Needs:
    """The values that a stretch spends registers on, whatever the tiles are; see FEATURES."""

    axis: int | None
    alive: tuple[int, ...]
    kept: tuple[int, ...]
    sources: tuple[int, ...]
    loads: tuple[int, ...]
    streams: bool
    computed: tuple[int, ...]
    sfu: tuple[int, ...]
    slow: tuple[int, ...]
    again: tuple[int, ...]
    outputs: tuple[int, ...]
    accesses: int
    shared: int


def features(
    program: TileProgram, num_warps: int, persistent: bool = False
) -> list[tuple[float, ...]]:
    """What registers are spent on in every stretch of a program: FEATURES, where not said otherwise
    in 32-bit words per thread."""
    counter = _RegisterCounter.of(program, 32 * num_warps, persistent)
    return [counter.features(each) for each in _needs(program)]


@by_body
def _needs(program: TileProgram) -> list[_Needs]:
    nest, stretches = program.nest, _stretches(program)
    read = [_read_from_before(nest, each) for each in stretches]
    defined: set[int] = set()
    found = []
    for number, each in enumerate(stretches):
        later = set().union(*read[number + 1 :])
        alive = {v for v in defined - set(each.values) if v in later or v in read[number]}
        found.append(_needed(program, each, alive, later))
        defined |= set(each.values)
    return found


def _needed(program: TileProgram, stretch: _Stretch, alive: set[int], later: set[int]) -> _Needs:
    nest, own, selected = program.nest, stretch.values, _selected(program)
    kinds = [(v, nest.values[v].kind) for v in own]
    folds = bool(stretch.carries) or any(isinstance(kind, Fold) for _, kind in kinds)
    costs = {v: kind.cost for v, kind in kinds if isinstance(kind, Compute)}
    slow = tuple(v for v, cost in costs.items() if cost in ("div", "libdevice"))
    last = {r: v for v in sorted(own) for r in nest.values[v].reads}
    return _Needs(
        axis=stretch.axis,
        alive=tuple(alive),
        kept=tuple(v for v in own if v in later),
        sources=tuple(s for c in stretch.states for s in _states(program, c)),
        loads=tuple(
            selected.get(v, v)
            for v, kind in kinds
            if (isinstance(kind, Load) or v in selected) and v not in later
        ),
        streams=folds and not stretch.outputs,
        computed=tuple(costs),
        sfu=tuple(v for v, cost in costs.items() if cost == "sfu"),
        slow=slow,
        again=tuple(r for v in slow for r in nest.values[v].reads if last[r] > v),
        outputs=stretch.outputs,
        accesses=sum(v in nest.loads or v in selected for v in own) + len(stretch.outputs),
        shared=stretch.shared,
    )


@by_body
def _selected(program: TileProgram) -> dict[int, int]:
    """For every choice that is one load, a piece: its tile takes as many registers."""
    steps = (each for each, _ in program.walk())
    return {each.value: each.pieces[0].value for each in steps if isinstance(each, SelectedLoad)}


def _read_from_before(nest: Nest, stretch: _Stretch) -> set[int]:
    if stretch.gathers:
        return set()
    found = {r for v in (*stretch.values, *stretch.carries) for r in nest.values[v].reads}
    found |= {nest.outputs[o].value for o in stretch.outputs}
    return found - set(stretch.values)


def _states(program: TileProgram, carried: int) -> tuple[int, ...]:
    """What a loop keeps for a reduction, by values of its size: squares about a mean under way have
    the first element beside them and the sum of the distances from there (`codegen/welford.py`)."""
    reads = program.nest.values[carried].reads
    return reads + (reads[0],) * (2 * isinstance(program.reductions[carried], Welford))


def _stretches(program: TileProgram) -> list[_Stretch]:
    """The body cut where all threads meet: at every reduction and at both ends of every loop."""
    found = [_Stretch([])]
    for each in program.body:
        match each:
            case TileLoop(carries=carries):
                found += _of_loop(each)
                found.append(_Stretch(list(carries), gathers=True))
            case TileStore(output=output):
                found[-1].outputs += (output,)
            case _:
                found[-1].values += _computed([each])
                if isinstance(each, (*REDUCTIONS, TileScan)):
                    found.append(_Stretch([]))
    return [each for each in found if each.values or each.outputs]


def _of_loop(loop: TileLoop) -> list[_Stretch]:
    """A turn of a loop, cut where threads meet at a sum along rows that the turn holds."""
    pieces: list[list[Instruction]] = [[]]
    for each, _ in walk(loop.body):
        pieces[-1].append(each)
        if isinstance(each, Reduce) and not each.carried:
            pieces.append([])
    return [
        _Stretch(
            _computed(inside),
            loop.carries if inside is pieces[-1] else (),
            tuple(i.output for i in inside if isinstance(i, TileStore)),
            loop.axis,
            shared=loop.shared,
            states=loop.carries,
        )
        for inside in pieces
    ]


def _computed(instructions: Iterable[Instruction]) -> list[int]:
    """The values that are complete where they stand."""
    values = (i for i in instructions if not isinstance(i, NO_VALUE))
    return [i.value for i in values if not (isinstance(i, REDUCTIONS) and i.carried)]


@by_identity(64)
def _alike(nest: Nest) -> list[int]:
    """For every value the number of those that take as many words as it, whatever the tiles."""
    known: dict[object, int] = {}
    loads = classes(nest)
    found = []
    for value, axes in zip(nest.values, nest.live, strict=True):
        access = nest.loads.get(value.id)
        alike = value.dtype if access is None else loads[id(access)]
        found.append(known.setdefault((axes, alike), len(known)))
    return found


@dataclass(frozen=True, slots=True)
class _RegisterCounter:
    program: TileProgram
    elements: Sequence[float]
    persistent: bool
    known: dict[int, float] = field(default_factory=dict)

    @staticmethod
    def of(program: TileProgram, threads: int, persistent: bool) -> _RegisterCounter:
        """elements: of each value in every thread. Neighbouring threads lie along the last axis of
        the largest tile: of a row or a column of it a thread has as much as it has of the tile."""
        nest, blocks = program.nest, program.blocks.sizes
        sizes = {axes: math.prod(blocks[a] for a in axes) for axes in dict.fromkeys(nest.live)}
        largest = max(sizes, key=sizes.__getitem__)
        inner = max((a for a in largest if blocks[a] > 1), default=-1)
        each, block = max(1.0, sizes[largest] / threads), blocks[inner] if inner >= 0 else 1
        along = max(min(each, block, 16 / _NARROW), block / threads)
        across, found = each / along, {}
        for axes, whole in sizes.items():
            if inner in axes:
                held = along * min(across, whole / block)
            else:
                held = min(across, whole)
            found[axes] = max(1.0, whole / threads, min(held, whole)) if whole > 1 else 0.0
        return _RegisterCounter(program, [found[axes] for axes in nest.live], persistent)

    def words(self, value: int) -> float:
        """32-bit words of a value in every thread."""
        number = _alike(self.program.nest)[value]
        if number not in self.known:
            self.known[number] = self._words(value)
        return self.known[number]

    def _words(self, value: int) -> float:
        """A loaded 16-bit value stays packed in pairs where neighbours are loaded together."""
        kind = self.program.nest.values[value].kind
        size = itemsize(
            kind.dtype if isinstance(kind, Load) else self.program.nest.values[value].dtype
        )
        return self.elements[value] * max(0.5 if self.is_packed(value) else 1.0, size / 4)

    def is_packed(self, value: int) -> bool:
        access = self.program.nest.loads.get(value)
        return access is None or any(
            term.scale == 1 and self.program.blocks.sizes[term.axis] > 1
            for term in access.offset.terms
        )

    def features(self, each: _Needs) -> tuple[float, ...]:
        trips = 1 if each.axis is None else self.program.blocks.count(each.axis)
        loaded = sum(map(self.words, each.loads))
        streamed = loaded if each.streams else 0.0
        looped = trips > 1
        return (
            1.0,
            sum(map(self.words, each.alive)),
            sum(map(self.words, each.kept)),
            sum(self.elements[s] for s in each.sources) / each.shared if looped else 0.0,
            0.0 if looped else min(streamed, STREAMED),
            streamed if looped else 0.0,
            loaded - streamed,
            self._widest(each.computed),
            self._widest(each.sfu),
            self._widest(each.slow),
            self._widest(each.again),
            sum(map(self._stored, each.outputs)),
            float(trips > 2),
            float(each.accesses),
            float(self.persistent),
        )

    def _widest(self, values: Sequence[int]) -> float:
        return max((self.elements[v] for v in values), default=0.0)

    def _stored(self, output: int) -> float:
        out = self.program.nest.outputs[output]
        return self.elements[out.value] * max(0.5, itemsize(out.type.dtype) / 4)
