"""The arithmetic of a kernel under a config: operations by the unit of an SM that does them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from ..graph.dtypes import NARROW
from ..graph.op import Accuracy, Op
from ..graph.sizes import nominal, varies
from ..nests.linear_forms import Access, Role
from ..tiles.alignment import is_apart, is_copied, vector_width
from ..tiles.instructions import (
    Loops,
    Mma,
    OnesMma,
    Reduce,
    SelectedLoad,
    TileCompute,
    TileLoop,
    TileReduction,
    TileScan,
    TileStore,
    Welford,
    loads_of,
)
from ..tiles.passes.assign_programs import tiles_in_all
from ..tiles.program import TileProgram, by_body
from ..values import values
from .access_classes import classes
from .lanes import widest
from .stencils import repeated_loads
from .tile_cache import once
from .traffic import turns

_PROLOGUE = 40.0  # Issue slots of a thread before its first load, and its share of a launch.
_EXACT_EXP = 7.0  # Issue slots of an exponential to the last place, besides its own.
_ENDS = 140.0  # Of a thread, at the ends of an aligned row: elements one by one, and masks (SASS).
# Of a load in a loop over a filter's rows, whose loads have one address in a turn (SASS for sm_90).
_IN_REPEAT = 5.0
_APART = 5.0  # Of an element of a row that begins elsewhere: a load, and its mask (SASS for sm_90).
# Of a lane of a row whose length varies: its masks, and what the compiler cannot leave out where
# there is no row. Of 28 kernels of softmax and layer norm with tiles 2 to 32 times as long as the
# rows on an H100 the model said 45% of what was measured, and says 95%.
_MASKED = 7.0
_ANYWHERE = 20.0  # The same where rows begin anywhere and are walked.
# Where these are held, and their ends are apart: of 24 kernels on an H200, with tiles up to 8 times
# as long as the rows, the model says 103% of what was measured (80 to 123%).
_HELD_ANYWHERE = 2.0
_LANES_OF_A_ROW = 4  # A product's results lie with each row on so many lanes of a warp.
_WARP_STEPS = 5.0  # Exchanges by which the lanes of a warp learn what comes before them.
_LANES_OF_A_COLUMN = 8  # And with each column.
# Issue slots of a step in which lanes of a warp exchange what they have and combine it: a shuffle
# is done at a quarter of the fma rate. Beyond a warp a step goes through shared memory. Of some
# 560 kernels of 14 functions of short or odd rows and of columns on an H200 the mean regret of the
# model's choice falls from 27% to 13%, and the mean rank correlation rises from 0.40 to 0.65: with
# exchanges at this price, and those of a loop's lanes counted once; with `traffic._NARROW` as it is
# now; and with loops of Welford's sums as such that wait for each turn.
_EXCHANGE, _ACROSS_WARPS = 5.0, 2.0


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Operations by unit: issue slots of the fma pipes (addresses and exchanges too), results of
    the special function unit, divisions, and functions of a library."""

    slots: float = 0.0
    sfu: float = 0.0
    div: float = 0.0
    libdevice: float = 0.0

    def plus(self, other: Arithmetic, times: float) -> Arithmetic:
        return Arithmetic(
            self.slots + other.slots * times,
            self.sfu + other.sfu * times,
            self.div + other.div * times,
            self.libdevice + other.libdevice * times,
        )


@once
def arithmetic_of(program: TileProgram, num_warps: int) -> Arithmetic:
    """Of all programs, what is computed, moved and reduced, addresses and masks included."""
    items, blocks, programs = _sorted_out(program), program.blocks, tiles_in_all(program)
    slots = sfu = div = libdevice = 0.0
    held, alive = _alive(program, num_warps)
    for some in items.plain:
        elements = blocks.elements(some.axes) * _lanes_alike(program, some.axes, num_warps)
        elements *= alive if held in some.axes else 1.0
        times, each = elements * turns(some.loops, blocks) * programs, some.each
        slots += each.slots * times
        sfu += each.sfu * times
        div += each.div * times
        libdevice += each.libdevice * times
    unrolled = any(output.part is not None for output in program.nest.outputs)
    for moved in items.moved:
        own = moved.count * _access_slots(moved.access, program, num_warps, moved.repeated)
        own *= alive if held in moved.access.axes else 1.0
        if unrolled and moved.access.type.dtype in NARROW:
            # There are few operations to a number, and to widen it is one of them.
            own += moved.count * blocks.elements(moved.access.axes)
        slots += own * (turns(moved.loops, blocks) * programs)
    found = Arithmetic(slots, sfu, div, libdevice)
    for reduced, loops, count in items.reductions:
        loop = loops[-1] if loops else None
        more = _of_reduction(program, reduced, loop)
        found = found.plus(more, count * turns(loops, blocks) * programs)
        # What every lane adds to by itself is put together once, behind the loop.
        by_lane = loop is not None and loop.by_lane and reduced.carried
        once_for = loops[:-1] if by_lane else loops
        own = _exchange_slots(program, num_warps, reduced)
        found = found.plus(Arithmetic(own), count * turns(once_for, blocks) * programs)
    for scan, loops in items.scans:
        own = _scan_slots(program, scan)
        found = found.plus(Arithmetic(own), turns(loops, blocks) * programs)
    found = found.plus(Arithmetic(_masked_slots(program)), programs)
    ends = _ENDS * _ended_rows(program)
    return found.plus(Arithmetic(_PROLOGUE + ends), programs * 32 * num_warps)


def _alive(program: TileProgram, num_warps: int) -> tuple[int, float]:
    """The held axis along which a tile lies, and the part of its lanes for which there is code:
    lanes that lie past the end whatever the program is are left out by the compiler, in pieces of
    what all threads move at once. -1 where there is no such axis: of a size that varies the
    compiler does not know where the end is."""
    blocks, (width, axis) = program.blocks, widest(program)
    if axis is None or program.nest.axes[axis].role is not Role.HELD:
        return -1, 1.0
    if varies(program.nest.axes[axis].extent):
        return -1, 1.0
    if blocks.elements(range(len(blocks.sizes))) != blocks.sizes[axis] or not blocks.is_ragged(
        axis
    ):
        return -1, 1.0
    before = blocks.aligned.vector - 1 if blocks.aligned else 0
    piece = 32 * num_warps * width
    pieces = math.ceil((nominal(program.nest.axes[axis].extent) + before) / piece)
    return axis, min(1.0, pieces * piece / blocks.sizes[axis])


@once
def _masked_slots(program: TileProgram) -> float:
    """Issue slots of one program for lanes that may lie beyond a row of which the length varies:
    of all lanes of a held row, of a looped one those of one turn."""
    nest, blocks = program.nest, program.blocks
    if program.mmas:
        return 0.0
    accesses = (*nest.loads.values(), *nest.stores.values())
    found = 0.0
    for axis, kind in enumerate(nest.axes):
        if kind.role is Role.GRID or not varies(kind.extent) or not blocks.is_ragged(axis):
            continue
        tiles = [blocks.elements(each.axes) for each in accesses if axis in each.axes]
        anywhere = blocks.aligned is not None and blocks.aligned.axis == axis
        slots = _HELD_ANYWHERE if kind.role is Role.HELD else _ANYWHERE
        found += max(tiles, default=0) * (slots if anywhere else _MASKED)
    return found


def _ended_rows(program: TileProgram) -> int:
    """Whether a program holds an aligned row, and so both its ends; loops have theirs apart, and of
    blocks along a grid few have one."""
    rows = program.blocks.aligned
    return int(rows is not None and program.nest.axes[rows.axis].role is Role.HELD)


@once
def prologue_of(program: TileProgram) -> Arithmetic:
    """Of all programs, what is computed of operands of products in a loop."""
    computed, found = _computed(program, program.operands), Arithmetic()
    for each, loops in program.walk():
        if loops and isinstance(each, TileCompute) and each.value in computed:
            times = program.elements(each.value) * turns(loops, program.blocks)
            found = found.plus(_of_element(program.nest.values[each.value].kind), times)
    return Arithmetic().plus(found, tiles_in_all(program))


def _computed(program: TileProgram, operands: frozenset[int]) -> set[int]:
    """The values of which operands are computed, back to what is loaded or reduced."""
    found, left = set[int](), [*operands]
    while left:
        this = program.nest.values[left.pop()]
        if this.id not in found and isinstance(this.kind, (values.Compute, values.Choice)):
            found.add(this.id)
            left.extend(this.reads)
    return found


def _lanes_alike(program: TileProgram, axes: frozenset[int], num_warps: int) -> float:
    """How many threads compute the same value over these axes. Beside a product a lane of a warp
    has two of 16 rows and a fourth of their columns, and computes for itself what is needed of
    each column. The SASS of kernels for sm_90 shows it. An operand's tile is computed once, on its
    way to shared memory."""
    rows = {each.m for each in program.mmas.values()}
    columns = {axis for each in program.mmas.values() for axis in (each.n, each.k)}
    if axes & rows or not axes & columns:
        return 1.0
    if any({each.n, each.k} <= axes for each in program.mmas.values()):
        return 1.0
    high = min(program.blocks.sizes[axis] for axis in rows)
    return max(1.0, min(_LANES_OF_A_COLUMN * num_warps, high / 2))


_FIELD = Arithmetic(2.0)
"""Of bits of a byte: they are put into a float32, from which a number is subtracted."""


@dataclass(slots=True)
class _Elements:
    """What is done with each element of the values over some tile axes, in the same loops."""

    axes: frozenset[int]
    loops: Loops
    each: Arithmetic = Arithmetic()


@dataclass(slots=True)
class _AlikeAccesses:
    """Loads or stores that are alike, in the same loops."""

    access: Access
    loops: Loops
    repeated: bool
    """By a `TileRepeat`."""
    count: int = 0


class _Items(NamedTuple):
    """The work that goes by elements alone; the loads and stores; the reductions, of those that are
    alike one and their number."""

    plain: tuple[_Elements, ...]
    moved: tuple[_AlikeAccesses, ...]
    reductions: tuple[tuple[TileReduction, Loops, int], ...]
    scans: tuple[tuple[TileScan, Loops], ...]


@by_body
def _sorted_out(program: TileProgram) -> _Items:
    # All instructions of a loop have the same tuple of loops around them.
    nest = program.nest
    plain: dict[tuple[frozenset[int], int], _Elements] = {}
    moved: dict[tuple[int, int], _AlikeAccesses] = {}
    reductions: dict[object, list[tuple[TileReduction, Loops]]] = {}
    scans: list[tuple[TileScan, Loops]] = []
    number, repeats = classes(nest), repeated_loads(program)
    for each, loops in program.walk():
        accesses = [each] if isinstance(each, TileStore) else loads_of(each)
        for access in (own.access for own in accesses):
            alike = _AlikeAccesses(access, loops, access.offset.terms in repeats)
            known = moved.setdefault((number[id(access)], id(loops)), alike)
            known.count += 1
        match each:
            case TileCompute(value=value) | SelectedLoad(value=value):
                axes = nest.live[value]
                found = plain.setdefault((axes, id(loops)), _Elements(axes, loops))
                is_field = isinstance(each, TileCompute) and each.bits is not None
                of_each = _FIELD if is_field else _of_element(nest.values[value].kind)
                found.each = found.each.plus(of_each, 1.0)
            case Mma() | OnesMma() | Reduce() | Welford():
                reductions.setdefault(_kind(program, each, loops), []).append((each, loops))
            case TileScan():
                scans.append((each, loops))
    kinds = tuple((*some[0], len(some)) for some in reductions.values())
    return _Items(tuple(plain.values()), tuple(moved.values()), kinds, tuple(scans))


def _kind(program: TileProgram, each: TileReduction, loops: Loops) -> object:
    """What is equal for reductions that take the same work; of one that corrects a state it is its
    own."""
    if not isinstance(each, (Reduce, Welford)) or getattr(each, "correction", None):
        return each.value
    fold, live = program.nest.fold(each.value), program.nest.live
    axes = live[each.value], live[fold.source], program.tile_axes(each.value)
    return type(each), each.carried, id(loops), fold.times is None, axes


def _of_element(kind: values.ValueKind) -> Arithmetic:
    match kind:
        case values.Compute(cost="div"):
            return Arithmetic(div=1.0, sfu=1.0)
        case values.Compute(cost="libdevice"):
            return Arithmetic(libdevice=1.0, sfu=1.0)
        case values.Compute(op=Op.EXP, accuracy=Accuracy.EXACT):
            return Arithmetic(1.0 + _EXACT_EXP, 1.0)
        case values.Compute(cost=cost):
            return Arithmetic(1.0, float(cost == "sfu"))
        case values.Choice():
            return Arithmetic(2.0)
    return Arithmetic(1.0)


def _of_reduction(program: TileProgram, each: TileReduction, loop: TileLoop | None) -> Arithmetic:
    """The work of each thread by itself on one tile of a reduction in a loop."""
    fold = program.nest.fold(each.value)
    by_lane = loop is not None and loop.by_lane
    if loop is not None and loop.shared > 1 and isinstance(each, Reduce):
        return _of_shared(program, each, loop.shared)
    match each:
        case Mma(correction=correction):
            # The accumulator may have to be brought up to a new extremum.
            return Arithmetic(float(program.elements(each.value)) if correction else 0.0)
        case OnesMma():
            return Arithmetic()  # On the tensor cores.
        case Reduce(correction=correction) if by_lane and correction and correction.shift:
            # The exponential is that of the weights.
            whole = float(program.elements(fold.source))
            return Arithmetic((6.0 + 2.0 * len(correction.shift)) * whole)
        case Reduce(correction=correction) if by_lane and correction:
            # Every lane follows its own extremum: an exponential for each element more.
            whole = float(program.elements(fold.source))
            return Arithmetic(10.0 * whole, whole)
        case Welford() if by_lane:
            # The distance from the mean so far, its square and its weight, for each element.
            return Arithmetic(7.0 * program.elements(fold.source))
    summed = fold.times is not None
    return Arithmetic(float(program.tile(each.value) if summed else program.elements(fold.source)))


def _exchange_slots(program: TileProgram, num_warps: int, each: TileReduction) -> float:
    """Issue slots in which threads put together what each has of one tile of a reduction."""
    if isinstance(each, (Mma, OnesMma)):
        return 0.0
    threads = 32 * num_warps
    kept, lanes = _kept_by_thread(program, each, threads)
    if program.nest.contractions:
        steps = math.log2(_LANES_OF_A_ROW)
    else:
        across = max(1.0, lanes / 32)
        steps = math.log2(lanes / across) + _ACROSS_WARPS * math.log2(across)
    return _EXCHANGE * threads * steps * kept


def _scan_slots(program: TileProgram, each: TileScan) -> float:
    """Issue slots of one tile: every element is combined in its thread and again with what comes
    before the thread; each thread's run of neighbours goes through the steps of a warp."""
    whole, (width, axis) = float(program.elements(each.value)), widest(program)
    kind = program.nest.values[each.value].kind
    assert isinstance(kind, values.Scan)
    run = width if axis == each.axis else 1
    moved, combined = 1.0 + _WARP_STEPS / max(1, run), 2.0 + _WARP_STEPS / max(1, run)
    return whole * (moved + combined * kind.monoid.slots)


def _of_shared(program: TileProgram, each: Reduce, shared: int) -> Arithmetic:
    """A turn of a reduction in which several lanes have one state: an operation and a mask for each
    element, and each state follows its extremum."""
    whole = float(program.elements(program.nest.fold(each.value).source))
    found, correction = Arithmetic(2.0 * whole), each.correction
    if correction is not None:
        state = 10.0 + 3.0 * len(correction.shift)
        exponential = float(bool(correction.exponent) and not correction.shift)
        found = found.plus(Arithmetic(state, exponential), whole / shared)
    return found


def _kept_by_thread(program: TileProgram, each: TileReduction, threads: int) -> tuple[float, int]:
    """Results of which a thread has parts, and the threads that each is exchanged with: of rows
    side by side few, of columns as many as lie side by side in one thread."""
    kept = program.elements(each.value)
    if program.nest.contractions:
        return max(1.0, kept * _LANES_OF_A_ROW / threads), _LANES_OF_A_ROW
    width, axis = widest(program)
    if kept == 1 or axis is None:
        return 1.0, threads
    live, sizes = program.nest.live, program.blocks.sizes
    if axis in live[each.value]:
        own = max(1.0, min(kept, width))
        return own, max(1, int(threads * own / kept))
    together = min(threads, max(1, sizes[axis] // width))
    return max(1.0, kept * together / threads), together


def _access_slots(
    access: Access, program: TileProgram, num_warps: int, repeated: bool = False
) -> float:
    """Issue slots of a load or store: per instruction, which moves up to 16 bytes a thread, the
    access itself at a quarter of the fma rate, its address and its mask."""
    elements, most, slots = _instructions(program)[classes(program.nest)[id(access)]]
    slots = min(slots, _IN_REPEAT) if repeated else slots
    each = max(1.0, elements / (32 * num_warps))
    return elements / max(1.0, min(each, most)) * slots


@once
def _instructions(program: TileProgram) -> dict[int, tuple[int, int, float]]:
    """Of every class of accesses: elements of a tile, how many of them one instruction moves at
    most, and the issue slots of one."""
    found: dict[int, tuple[int, int, float]] = {}
    nest, blocks = program.nest, program.blocks
    number = classes(nest)
    for access in (*nest.loads.values(), *nest.stores.values()):
        if number[id(access)] in found:
            continue
        terms = access.offset.terms
        divisions = sum(t.mod > 0 or t.div > 1 for t in terms)
        masks = len(blocks.bounds(access)) + 2 * sum(a.checked for a in access.at)
        slots = 4.0 + 2.0 * (len(terms) + len(access.at)) + 3.0 * divisions + 2.0 * masks
        (most, axis), elements = vector_width(access, blocks), blocks.elements(access.axes)
        is_narrow = axis is not None and is_apart(access, axis, blocks)
        if is_narrow and axis is not None and not is_copied(access, axis, blocks):
            # One address for all of a thread's elements, and none for those beyond the row, where
            # the compiler knows its length.
            extent, slots = nest.axes[axis].extent, _APART
            elements = elements if varies(extent) else min(elements, extent)
        found[number[id(access)]] = elements, most, slots
    return found
