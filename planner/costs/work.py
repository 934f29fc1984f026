"""The work of a kernel under a config, counted before any rate of a device."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from ..config import Config
from ..graph.dtypes import NARROW, itemsize
from ..graph.op import Accuracy, Op
from ..graph.sizes import nominal
from ..nests.linear_forms import Access, Role
from ..nests.nest import Nest
from ..tiles.alignment import is_apart, is_copied, vector_width
from ..tiles.instructions import (
    Grid,
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
from ..tiles.passes.duplicate_raced_loads import duplicate_raced_loads
from ..tiles.program import TileProgram, by_body
from ..tiles.tile import tiled
from ..values import values
from . import matrix, staging, tile_cache
from .access_classes import classes
from .device import DeviceProfile
from .lanes import lines_touched, widest
from .registers import pressure
from .tile_cache import once, placed, scheduled
from .traffic import KEPT, awkwardness, in_flight, passes, traffic_of, turns

# What hints to the cache do to the seconds of memory: medians of 280 pairs of kernels that differ
# in nothing else. They keep what a later pass reads again: in L2, or in L1 where L2 holds it all.
_EVICTION = {"none": 1.0, "first": 1.03, "last": 1.0, "both": 1.01}
_EVICTION_OF_PASSES = {"none": 1.0, "first": 0.94, "last": 0.965, "both": 0.925}
_EVICTION_IN_L2 = {"none": 1.0, "first": 1.0, "last": 0.88, "both": 0.94}
_PIPELINED = 2.6  # Times the bytes under way: a loop that loads its next turns ahead.
_PROLOGUE = 40.0  # Issue slots of a thread before its first load, and its share of a launch.
_EXACT_EXP = 7.0  # Issue slots of an exponential to the last place, besides its own.
_ENDS = 140.0  # Of a thread, at the ends of an aligned row: elements one by one, and masks (SASS).
_APART = 5.0  # Of an element of a row that begins elsewhere: a load, and its mask (SASS for sm_90).
_LANES_OF_A_ROW = 4  # A product's results lie with each row on so many lanes of a warp.
_WARP_STEPS = 5.0  # Exchanges by which the lanes of a warp learn what comes before them.
_LANES_OF_A_COLUMN = 8  # And with each column.


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


@dataclass(frozen=True, slots=True)
class Work:
    """The work of one launch. Only the sizes of a device count here, none of its rates.

    programs: blocks of work; started: programs that are started for them (fewer in a persistent
    grid); resident: those an SM holds; waves: blocks over what the device holds at once; busy: the
    part of the SMs that have work. prologue: of the arithmetic, what is computed of operands of
    products in a loop. registers, spill_bytes: of a thread; shared_bytes: of a block.
    l2_weighed: see `Traffic`. l1_lines: see `lines_touched`, of all programs. in_flight: bytes
    under way at once; awkward: times the seconds of a plain copy. turns, passes, folds: of one
    program, its loops' turns, how often it walks them, and where its threads meet. ahead: its next
    loads are begun while it works. products: see `matrix`, None without any. launches: two where
    rows are copied before."""

    programs: int
    started: int
    num_warps: int
    resident: int
    waves: float
    busy: float
    registers: int
    spill_bytes: int
    shared_bytes: int
    hbm_bytes: int
    l2_bytes: int
    l2_weighed: int
    l1_lines: float
    in_flight: float
    awkward: float
    arithmetic: Arithmetic
    prologue: Arithmetic
    turns: float
    passes: int
    folds: int
    ahead: bool
    products: matrix.Products | None
    launches: int = 1

    @property
    def threads(self) -> int:
        return 32 * self.num_warps


def work_of(nest: Nest, config: Config, device: DeviceProfile) -> Work:
    """The work of one launch. Raises Refused when the config does not fit the nest."""
    program, multiplying = placed(nest, config), scheduled(nest, config)
    grid = tile_cache.grid(program, config.programs, config.num_stages, config.group)
    programs, started = grid.tiles, grid.programs
    ahead = bool(nest.contractions) and config.num_stages > 1
    walks = config.programs > 0
    registers, spills = pressure(
        multiplying, config.num_warps, ahead, walks, config.access == "descriptor"
    )
    shared = shared_bytes(nest, config)
    resident = _resident_blocks(registers, 32 * config.num_warps, shared, device)
    if config.programs:
        resident = min(resident, math.ceil(started / device.sm_count))
    at_once = min(programs, resident * device.sm_count)
    traffic = traffic_of(program, config.group, at_once, device)
    waves = programs / (resident * device.sm_count)
    ahead = loads_next_tiles(grid)
    flowing = in_flight(program, waves, resident, config.num_warps, device)
    if passes(program) and config.num_stages > 1:
        flowing *= _PIPELINED
    hint = _hint(program, traffic.hbm, device)[config.eviction]
    return Work(
        programs=programs,
        started=started,
        num_warps=config.num_warps,
        resident=resident,
        waves=waves,
        busy=min(1.0, programs / device.sm_count),
        registers=registers,
        spill_bytes=spills,
        shared_bytes=shared,
        hbm_bytes=traffic.hbm,
        l2_bytes=traffic.l2,
        l2_weighed=traffic.weighed,
        l1_lines=lines_touched(program, config.num_warps) * programs,
        in_flight=flowing * (config.num_stages - 1 if ahead else 1),
        awkward=hint * awkwardness(program, config.num_warps),
        arithmetic=_arithmetic(program, config.num_warps),
        prologue=_prologue(program),
        turns=sum(
            program.blocks.turns(each.axis) for each in program.body if isinstance(each, TileLoop)
        ),
        passes=passes(program),
        folds=_folds(program),
        ahead=ahead,
        products=matrix.products_of(multiplying, config, programs),
        launches=1 + _copies_rows(program),
    )


@once
def _copies_rows(program: TileProgram) -> bool:
    """Whether a kernel before copies rows for this one."""
    loads = (load for each, _ in program.walk() for load in loads_of(each))
    return any(load.rows == "copied" for load in loads)


def _hint(program: TileProgram, hbm: int, device: DeviceProfile) -> dict[str, float]:
    """What each hint to the cache is worth."""
    if passes(program) < 2:
        return _EVICTION
    return _EVICTION_IN_L2 if hbm < KEPT * device.l2_bytes else _EVICTION_OF_PASSES


@once
def _arithmetic(program: TileProgram, num_warps: int) -> Arithmetic:
    items, blocks = _sorted_out(program), program.blocks
    found, programs = Arithmetic(), tiles_in_all(program)
    held, alive = _alive(program, num_warps)
    for some in items.plain:
        elements = blocks.elements(some.axes) * _lanes_alike(program, some.axes, num_warps)
        elements *= alive if held in some.axes else 1.0
        found = found.plus(some.each, elements * turns(some.loops, blocks) * programs)
    unrolled = any(output.part is not None for output in program.nest.outputs)
    for moved in items.moved:
        slots = moved.count * _access_slots(moved.access, program, num_warps)
        slots *= alive if held in moved.access.axes else 1.0
        if unrolled and moved.access.type.dtype in NARROW:
            # There are few operations to a number, and to widen it is one of them.
            slots += moved.count * blocks.elements(moved.access.axes)
        found = found.plus(Arithmetic(slots), turns(moved.loops, blocks) * programs)
    for each, loops in items.reductions:
        more = _of_reduction(program, num_warps, each, loops[-1] if loops else None)
        found = found.plus(more, turns(loops, blocks) * programs)
    for scan, loops in items.scans:
        slots = _scan_slots(program, scan)
        found = found.plus(Arithmetic(slots), turns(loops, blocks) * programs)
    ends = _ENDS * _ended_rows(program)
    return found.plus(Arithmetic(_PROLOGUE + ends), programs * 32 * num_warps)


def _alive(program: TileProgram, num_warps: int) -> tuple[int, float]:
    """The held axis along which a tile lies, and the part of its lanes for which there is code:
    lanes that lie past the end whatever the program is are left out by the compiler, in pieces of
    what all threads move at once. -1 where there is no such axis."""
    blocks, (width, axis) = program.blocks, widest(program)
    if axis is None or program.nest.axes[axis].role is not Role.HELD:
        return -1, 1.0
    if blocks.elements(range(len(blocks.sizes))) != blocks.sizes[axis] or not blocks.is_ragged(
        axis
    ):
        return -1, 1.0
    before = blocks.aligned.vector - 1 if blocks.aligned else 0
    piece = 32 * num_warps * width
    pieces = math.ceil((nominal(program.nest.axes[axis].extent) + before) / piece)
    return axis, min(1.0, pieces * piece / blocks.sizes[axis])


def _ended_rows(program: TileProgram) -> int:
    """Whether a program holds an aligned row, and so both its ends; loops have theirs apart, and of
    blocks along a grid few have one."""
    rows = program.blocks.aligned
    return int(rows is not None and program.nest.axes[rows.axis].role is Role.HELD)


@once
def _prologue(program: TileProgram) -> Arithmetic:
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
    each column. The SASS of kernels for sm_90 shows it."""
    rows = {each.m for each in program.mmas.values()}
    columns = {axis for each in program.mmas.values() for axis in (each.n, each.k)}
    if axes & rows or not axes & columns:
        return 1.0
    high = min(program.blocks.sizes[axis] for axis in rows)
    return max(1.0, min(_LANES_OF_A_COLUMN * num_warps, high / 2))


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
    count: int = 0


class _Items(NamedTuple):
    """The work that goes by elements alone; the loads and stores; the reductions."""

    plain: tuple[_Elements, ...]
    moved: tuple[_AlikeAccesses, ...]
    reductions: tuple[tuple[TileReduction, Loops], ...]
    scans: tuple[tuple[TileScan, Loops], ...]


@by_body
def _sorted_out(program: TileProgram) -> _Items:
    # All instructions of a loop have the same tuple of loops around them.
    nest = program.nest
    plain: dict[tuple[frozenset[int], int], _Elements] = {}
    moved: dict[tuple[int, int], _AlikeAccesses] = {}
    reductions: list[tuple[TileReduction, Loops]] = []
    scans: list[tuple[TileScan, Loops]] = []
    number = classes(nest)
    for each, loops in program.walk():
        accesses = [each] if isinstance(each, TileStore) else loads_of(each)
        for access in (own.access for own in accesses):
            known = moved.setdefault((number[id(access)], id(loops)), _AlikeAccesses(access, loops))
            known.count += 1
        match each:
            case TileCompute(value=value) | SelectedLoad(value=value):
                axes = nest.live[value]
                found = plain.setdefault((axes, id(loops)), _Elements(axes, loops))
                found.each = found.each.plus(_of_element(nest.values[value].kind), 1.0)
            case Mma() | OnesMma() | Reduce() | Welford():
                reductions.append((each, loops))
            case TileScan():
                scans.append((each, loops))
    return _Items(tuple(plain.values()), tuple(moved.values()), tuple(reductions), tuple(scans))


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


def _of_reduction(
    program: TileProgram, num_warps: int, each: TileReduction, loop: TileLoop | None
) -> Arithmetic:
    """The work on one tile of a reduction in a loop."""
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
    whole = program.tile(each.value) if summed else program.elements(fold.source)
    threads = 32 * num_warps
    steps = math.log2(threads) if num_warps > 1 else 5.0
    if program.nest.contractions:
        steps = math.log2(_LANES_OF_A_ROW)
    return Arithmetic(whole + 2.0 * threads * steps * _kept_by_thread(program, each, threads))


def _scan_slots(program: TileProgram, each: TileScan) -> float:
    """Issue slots of one tile: every element is combined in its thread and again with what comes
    before the thread; each thread's run of neighbours goes through the steps of a warp."""
    whole, (width, axis) = float(program.elements(each.value)), widest(program)
    run = width if axis == each.axis else 1
    return whole * (3.0 + 2.0 * _WARP_STEPS / max(1, run))


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


def _kept_by_thread(program: TileProgram, each: TileReduction, threads: int) -> float:
    """Results of which a thread has parts, each to be exchanged with the other threads: of rows
    side by side few, of columns as many as lie side by side in one thread."""
    kept = program.elements(each.value)
    if program.nest.contractions:
        return max(1.0, kept * _LANES_OF_A_ROW / threads)
    width, axis = widest(program)
    if kept == 1 or axis is None:
        return 1.0
    live, sizes = program.nest.live, program.blocks.sizes
    if axis in live[each.value]:
        return max(1.0, min(kept, width))
    together = min(threads, max(1, sizes[axis] // width))
    return max(1.0, kept * together / threads)


def _access_slots(access: Access, program: TileProgram, num_warps: int) -> float:
    """Issue slots of a load or store: per instruction, which moves up to 16 bytes a thread, the
    access itself at a quarter of the fma rate, its address and its mask."""
    elements, most, slots = _instructions(program)[classes(program.nest)[id(access)]]
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
            # One address for all of a thread's elements, and none for those beyond the row.
            elements, slots = min(elements, nest.axes[axis].extent), _APART
        found[number[id(access)]] = elements, most, slots
    return found


def _resident_blocks(registers: int, threads: int, shared: int, device: DeviceProfile) -> int:
    """Blocks an SM holds at once; registers are given out in units of 8 a thread."""
    per_block = max(16, math.ceil(registers / 8) * 8) * threads
    return max(
        1,
        min(
            device.registers_per_sm // per_block,
            device.threads_per_sm // threads,
            device.shared_per_sm // (shared + 1024),
            device.blocks_per_sm,
        ),
    )


@by_body
def _folds(program: TileProgram) -> int:
    """Scans, and reductions in which threads meet: all but products of tiles."""
    scans = sum(isinstance(each, TileScan) for each, _ in program.walk())
    return scans + len(program.reductions)


def shared_bytes(nest: Nest, config: Config) -> int:
    """Shared memory: the reductions that cross warps, the operands of matrix products, or the
    tiles that a persistent kernel loads ahead. Raises Refused when the config does not fit."""
    program, staged = placed(nest, config), 0
    if program.mmas:
        loading = tiled(nest, config, duplicate_raced_loads)
        described, walks = config.access == "descriptor", config.programs > 0
        run = staging.StagingNeeds(config.num_warps, described, walks, config.subtiles)
        staged = staging.staged_bytes(loading, run)
    if staged:
        staged = max(staged, staging.stored_bytes(program, config.subtiles))
    grid = tile_cache.grid(program, config.programs, config.num_stages, config.group)
    ahead = _ahead_bytes(program, grid) if loads_next_tiles(grid) else 0
    return max(_crossing_bytes(program, config.num_warps), staged, ahead)


@once
def _crossing_bytes(program: TileProgram, num_warps: int) -> int:
    """Of the reductions that cross warps."""
    largest = 0
    for value, each in program.reductions.items():
        if num_warps == 1 or isinstance(each, OnesMma):
            continue
        if program.nest.fold(value).times is None:
            kept = program.elements(value)
            if _crosses_warps(program, value, kept, num_warps):
                size = max(4, itemsize(program.nest.values[value].dtype))
                largest = max(largest, kept * num_warps * size)
    return largest


def _crosses_warps(program: TileProgram, fold: int, kept: int, num_warps: int) -> bool:
    """Whether several warps hold parts of one sum. Neighbouring threads hold neighbours along the
    innermost axis: what is summed over an outer one lies in one thread when rows are long."""
    nest = program.nest
    reduced = program.blocks.dims(nest.reduced(nest.fold(fold)))
    if not reduced:
        return False
    inner = max(nest.live[fold], default=-1)
    return inner < max(reduced) or kept < 32 * num_warps


def _ahead_bytes(program: TileProgram, grid: Grid) -> int:
    """Of the loads of a persistent kernel's next tiles, each a copy of its tile in memory: Triton
    does not take those out that are the same for all tiles."""
    loads = sum(
        program.blocks.elements(access.axes) * itemsize(access.type.dtype)
        for access in program.nest.loads.values()
    )
    return (grid.stages - 1) * loads


def loads_next_tiles(grid: Grid) -> bool:
    """Whether a persistent kernel loads its next tiles while it works on one."""
    return grid.stages > 1 and grid.programs < grid.tiles
