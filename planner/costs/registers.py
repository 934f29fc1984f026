"""Register pressure of a nest under given blocks, estimated before any compiler runs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ..graph.dtypes import itemsize
from ..memo import by_identity
from ..nests.nest import Nest
from ..tiles.instructions import (
    NO_VALUE,
    REDUCTIONS,
    Instruction,
    Reduce,
    SelectedLoad,
    TileLoop,
    TileScan,
    TileStore,
    Welford,
)
from ..tiles.passes.join_reductions import ancestors_of
from ..tiles.program import TileProgram, by_body, walk
from ..values.values import Compute, Fold, Load
from . import chains, live_tiles, product_registers, stencils
from .access_classes import classes
from .meeting import meets_in_turns
from .tile_cache import once

Axes = frozenset[int]

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
        wanted = _with_products(program, num_warps, ahead, persistent, described)
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


def _with_products(
    program: TileProgram, num_warps: int, ahead: bool, persistent: bool, described: bool
) -> float:
    """Registers that a thread with matrix products wants; the rest as in `pressure`."""
    nest, threads = program.nest, 32 * num_warps
    several = len(program.mmas) > 1 and not all(mma.few for mma in program.mmas.values())
    reduced = [value for value in program.reductions if nest.fold(value).times is None]
    if several and any(program.mmas.keys() & ancestors_of(nest)[v] for v in reduced):
        wanted = chains.registers(program, num_warps, ahead)
        wanted += 0.0 if ahead or described else chains.passing(program, num_warps)
    elif several or reduced:
        wanted = live_tiles.registers(program, num_warps, persistent)
    else:
        results = product_registers.of_results(program, threads)
        wanted = product_registers.by_warps(program, num_warps, ahead, results)
    wanted = max(wanted, live_tiles.of_neighbours(program, num_warps))
    if not (several or reduced):
        return wanted
    of_fmas = product_registers.of_fmas(program, threads)
    if several:
        of_fmas = min(of_fmas, most(num_warps) + product_registers.FMAS_SPILL)
    return max(wanted, of_fmas)


def most(num_warps: int) -> int:
    """Registers that a thread can have."""
    return min(MOST, 65536 // (32 * num_warps))


def settled(wanted: float) -> float:
    """What the compiler makes of so many registers."""
    if wanted < FULL:
        return FULL - BELOW * (FULL - wanted)
    return FULL if wanted < NEAR else wanted


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
    """What a stretch spends registers on, whatever the tiles are; see FEATURES. alive, kept, loads:
    how many values of each kind; computed, sfu, slow, again: the axes of values."""

    axis: int | None
    alive: Counter[int]
    kept: Counter[int]
    sources: tuple[int, ...]
    loads: Counter[int]
    streams: bool
    computed: frozenset[Axes]
    sfu: frozenset[Axes]
    slow: frozenset[Axes]
    again: frozenset[Axes]
    stored: Counter[tuple[Axes, float]]
    """Axes, and words of an element."""
    accesses: int
    shared: int

    def covers(self, other: _Needs) -> bool:
        """Whether it takes as many registers as another stretch or more, whatever the tiles are."""
        alike = [(e.axis, e.streams, e.shared, e.sources) for e in (self, other)]
        return (
            alike[0] == alike[1]
            and self.accesses >= other.accesses
            and self.alive >= other.alive
            and self.kept >= other.kept
            and self.loads >= other.loads
            and self.stored >= other.stored
            and self.computed >= other.computed
            and self.sfu >= other.sfu
            and self.slow >= other.slow
            and self.again >= other.again
        )


def features(
    program: TileProgram, num_warps: int, persistent: bool = False
) -> list[tuple[float, ...]]:
    """What registers are spent on in the stretches of a program, but for those of which a neighbour
    spends as much on everything: FEATURES, where not said otherwise in 32-bit words per thread."""
    counter = _RegisterCounter.of(program, 32 * num_warps, persistent)
    return [counter.features(each) for each in _needs(program)]


@by_body
def _needs(program: TileProgram) -> list[_Needs]:
    """Of the stretches of a program; not of one that a neighbour covers: of many sums one after the
    other few have most alive."""
    nest, stretches = program.nest, _stretches(program)
    read = [_read_from_before(nest, each) for each in stretches]
    defined: set[int] = set()
    found: list[_Needs] = []
    for each, reads, later in zip(stretches, read, _later(read), strict=True):
        alive = defined.difference(each.values) & (later | reads)
        needs = _needed(program, each, alive, later)
        while found and needs.covers(found[-1]):
            del found[-1]
        if not (found and found[-1].covers(needs)):
            found.append(needs)
        defined |= set(each.values)
    return found


def _later(read: Sequence[set[int]]) -> list[set[int]]:
    """Of each stretch, what those after it read."""
    found = [set[int]()]
    for each in reversed(read[1:]):
        found.append(found[-1] | each)
    return found[::-1]


def _needed(program: TileProgram, stretch: _Stretch, alive: set[int], later: set[int]) -> _Needs:
    nest, own, selected = program.nest, stretch.values, _selected(program)
    kinds = [(v, nest.values[v].kind) for v in own]
    folds = bool(stretch.carries) or any(isinstance(kind, Fold) for _, kind in kinds)
    costs = {v: kind.cost for v, kind in kinds if isinstance(kind, Compute)}
    slow = tuple(v for v, cost in costs.items() if cost in ("div", "libdevice"))
    last = {r: v for v in sorted(own) for r in nest.values[v].reads}
    kind_of, _ = _kinds(nest)
    again = [r for v in slow for r in nest.values[v].reads if last[r] > v]
    return _Needs(
        axis=stretch.axis,
        alive=Counter(kind_of[v] for v in alive),
        kept=Counter(kind_of[v] for v in own if v in later),
        sources=tuple(s for c in stretch.states for s in _states(program, c)),
        loads=Counter(
            kind_of[selected.get(v, v)]
            for v, kind in kinds
            if (isinstance(kind, Load) or v in selected) and v not in later
        ),
        streams=folds and not stretch.outputs,
        computed=frozenset(nest.live[v] for v in costs),
        sfu=frozenset(nest.live[v] for v, cost in costs.items() if cost == "sfu"),
        slow=frozenset(nest.live[v] for v in slow),
        again=frozenset(nest.live[v] for v in again),
        stored=Counter(_stored(nest, output) for output in stretch.outputs),
        accesses=sum(v in nest.loads or v in selected for v in own) + len(stretch.outputs),
        shared=stretch.shared,
    )


def _stored(nest: Nest, output: int) -> tuple[Axes, float]:
    """Axes of what is stored, and words of an element."""
    out = nest.outputs[output]
    return nest.live[out.value], max(0.5, itemsize(out.type.dtype) / 4)


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
def _kinds(nest: Nest) -> tuple[list[int], list[int]]:
    """For every value the number of its kind, of those that take as many words whatever the tiles;
    and of every kind a value."""
    known: dict[object, int] = {}
    loads = classes(nest)
    numbers: list[int] = []
    values: list[int] = []
    for value, axes in zip(nest.values, nest.live, strict=True):
        access = nest.loads.get(value.id)
        alike = value.dtype if access is None else loads[id(access)]
        numbers.append(known.setdefault((axes, alike), len(known)))
        if len(values) < len(known):
            values.append(value.id)
    return numbers, values


@dataclass(frozen=True, slots=True)
class _RegisterCounter:
    program: TileProgram
    elements: Sequence[float]
    of_axes: Mapping[Axes, float]
    persistent: bool
    words_by_kind: list[float] = field(default_factory=list)
    """Filled when it is first asked for."""

    @staticmethod
    def of(program: TileProgram, threads: int, persistent: bool) -> _RegisterCounter:
        """elements: of each value in every thread; of_axes: of one over these axes. Neighbouring
        threads lie along the last axis of the largest tile: of a row or a column of it a thread
        has as much as it has of the tile."""
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
        return _RegisterCounter(program, [found[axes] for axes in nest.live], found, persistent)

    def words(self, value: int) -> float:
        """32-bit words of a value in every thread."""
        return self._by_kind()[_kinds(self.program.nest)[0][value]]

    def _by_kind(self) -> list[float]:
        """The same of each kind of value."""
        if not self.words_by_kind:
            self.words_by_kind.extend(map(self._words, _kinds(self.program.nest)[1]))
        return self.words_by_kind

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
        loaded = self._words_of(each.loads)
        streamed = loaded if each.streams else 0.0
        looped = trips > 1
        return (
            1.0,
            self._words_of(each.alive),
            self._words_of(each.kept),
            sum(self.elements[s] for s in each.sources) / each.shared if looped else 0.0,
            0.0 if looped else min(streamed, STREAMED),
            streamed if looped else 0.0,
            loaded - streamed,
            self._widest(each.computed),
            self._widest(each.sfu),
            self._widest(each.slow),
            self._widest(each.again),
            sum(self.of_axes[axes] * words * n for (axes, words), n in each.stored.items()),
            float(trips > 2),
            float(each.accesses),
            float(self.persistent),
        )

    def _words_of(self, kinds: Counter[int]) -> float:
        words = self._by_kind()
        return sum(words[kind] * count for kind, count in kinds.items())

    def _widest(self, values: frozenset[Axes]) -> float:
        return max(map(self.of_axes.__getitem__, values), default=0.0)
