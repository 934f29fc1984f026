"""The work of a kernel under a config, counted before any rate of a device."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..config import Config
from ..graph.dtypes import itemsize
from ..nests.nest import Nest
from ..tiles.instructions import (
    Grid,
    OnesMma,
    TileLoad,
    TileLoop,
    TileScan,
    loads_of,
)
from ..tiles.passes.duplicate_raced_loads import duplicate_raced_loads
from ..tiles.program import TileProgram, by_body
from ..tiles.tile import tiled
from . import matrix, shared_memory, tile_cache
from .arithmetic import Arithmetic, arithmetic_of, prologue_of
from .bulk_copies import short_rows
from .device import DeviceProfile
from .lanes import lines_touched
from .meeting import LEAST_COPY, meetings_in_turn, meets_in_turns, waits_in_turn
from .registers import pressure
from .tile_cache import once, placed, scheduled
from .traffic import KEPT, awkwardness, in_flight, readings, sweeps, traffic_of, widths

# What hints to the cache do to the seconds of memory: medians of 280 pairs of kernels that differ
# in nothing else. They keep what a later sweep reads again: in L2, or in L1 where L2 holds it all.
_EVICTION = {"none": 1.0, "first": 1.015, "last": 1.0, "both": 1.01}
# Medians of 5 pairs of kernels on an H100 that write almost nothing. What was written before and
# still lies in the cache is not driven out, and so not written back, while they read.
_EVICTION_OF_READS = {"none": 1.0, "first": 0.91, "last": 1.0, "both": 0.95}
_LITTLE = 1 / 16  # Of the bytes that a kernel moves, the most that are "almost nothing" written.
_EVICTION_OF_PASSES = {"none": 1.0, "first": 0.94, "last": 0.965, "both": 0.925}
_EVICTION_IN_L2 = {"none": 1.0, "first": 1.0, "last": 0.88, "both": 0.94}
_PIPELINED = 2.6  # Times the bytes under way: a loop that loads its next turns ahead.
# Of 5 kernels on an H200 that copy columns of float32 ahead by 4 bytes, the fewest at once, each
# took 2.9 times (2.7 to 3.2) what the model said of plain loads, and 2.1 times what the best kernel
# without copies took.
_COPIED_NARROWLY = 2.9


@dataclass(frozen=True, slots=True)
class Work:
    """The work of one launch. Only the sizes of a device count here, none of its rates.

    programs: blocks of work; started: programs that are started for them (fewer in a persistent
    grid); resident: those an SM holds; waves: blocks over what the device holds at once; busy: the
    part of the SMs that have work. prologue: of the arithmetic, what is computed of operands of
    products in a loop. registers, spill_bytes: of a thread; shared_bytes: of a block.
    l2_weighed: see `Traffic`. l1_lines: see `lines_touched`, and short_rows: see there, of all
    programs. in_flight: bytes under way at once; awkward: times the seconds of a plain copy. turns,
    sweeps, folds: of one program, its loops' turns, how often it walks them, and where its threads
    meet. ahead: its next loads are begun while it works; begun: those of a loop's next turns, while
    threads meet in each. turn_folds, turn_waits: in each turn of a loop, where threads meet, and
    how often it then waits for memory. products: see `matrix`, None without any. launches: two
    where rows are copied before."""

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
    short_rows: float
    in_flight: float
    awkward: float
    arithmetic: Arithmetic
    prologue: Arithmetic
    turns: float
    sweeps: int
    folds: int
    ahead: bool
    begun: bool
    turn_folds: int
    turn_waits: int
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
    described = config.access == "descriptor"
    registers, spills = _pressure(nest, config)
    shared = shared_bytes(nest, config)
    resident = _resident_blocks(registers, 32 * config.num_warps, shared, device)
    if config.programs:
        resident = min(resident, math.ceil(started / device.sm_count))
    at_once = min(programs, resident * device.sm_count)
    traffic = traffic_of(program, config.group, at_once, device.l2_bytes)
    waves = programs / (resident * device.sm_count)
    ahead, begun = loads_next_tiles(grid), config.num_stages > 2 and meets_in_turns(program)
    flowing = in_flight(program, waves, resident, config.num_warps, device)
    if sweeps(program) and config.num_stages > 1:
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
        short_rows=short_rows(program) * programs if described else 0.0,
        in_flight=flowing * (config.num_stages - 1 if ahead else 1),
        awkward=hint
        * awkwardness(program, config.num_warps)
        * (_copied(program) if ahead else 1.0),
        arithmetic=arithmetic_of(program, config.num_warps),
        prologue=prologue_of(program),
        turns=sum(program.blocks.turns(loop.axis) for loop in _loops(program)),
        sweeps=sweeps(program),
        folds=_folds(program),
        ahead=ahead,
        begun=begun,
        turn_folds=meetings_in_turn(program),
        turn_waits=waits_in_turn(program, begun),
        products=matrix.products_of(multiplying, config, programs, spills),
        launches=1 + _copies_rows(program),
    )


def spill_bytes(nest: Nest, config: Config) -> int:
    """Bytes that a thread of one launch would spill. Raises Refused when the config does not fit
    the nest."""
    return _pressure(nest, config)[1]


def _pressure(nest: Nest, config: Config) -> tuple[int, int]:
    ahead = bool(nest.contractions) and config.num_stages > 1
    described = config.access == "descriptor"
    return pressure(
        scheduled(nest, config), config.num_warps, ahead, config.programs > 0, described
    )


@by_body
def _loops(program: TileProgram) -> list[TileLoop]:
    return [each for each in program.body if isinstance(each, TileLoop)]


@once
def _copied(program: TileProgram) -> float:
    """Times the seconds of plain loads that copies of next tiles to shared memory take."""
    loads = zip(readings(program), widths(program), strict=True)
    sizes = [
        (each.tile, width * itemsize(each.access.type.dtype))
        for each, (width, _) in loads
        if each.input is not None
    ]
    _, at_once = max(sizes, default=(0, 0))
    return _COPIED_NARROWLY if at_once == LEAST_COPY else 1.0


@by_body
def _copies_rows(program: TileProgram) -> bool:
    """Whether a kernel before copies rows or vectors for this one."""
    loads = (load for each, _ in program.walk() for load in loads_of(each))
    return any(load.rows in ("copied", "laid") for load in loads)


def _hint(program: TileProgram, hbm: int, device: DeviceProfile) -> dict[str, float]:
    """What each hint to the cache is worth."""
    if sweeps(program) < 2:
        stored = sum(access.type.nbytes for access in program.nest.stores.values())
        return _EVICTION_OF_READS if stored < _LITTLE * hbm else _EVICTION
    return _EVICTION_IN_L2 if hbm < KEPT * device.l2_bytes else _EVICTION_OF_PASSES


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


@once
def _turn_bytes(program: TileProgram) -> int:
    """Of the tiles that a turn of a loop loads."""
    loops = (each for each in program.body if isinstance(each, TileLoop))
    loads = (each for loop in loops for each in loop.body if isinstance(each, TileLoad))
    sizes = ((program.elements(e.value), itemsize(e.access.type.dtype)) for e in loads)
    return sum(elements * size for elements, size in sizes if elements > 1)


@by_body
def _folds(program: TileProgram) -> int:
    """Scans, and reductions in which threads meet: all but products of tiles."""
    scans = sum(isinstance(each, TileScan) for each, _ in program.walk())
    return scans + len(program.reductions)


def shared_bytes(nest: Nest, config: Config) -> int:
    """Shared memory: the reductions that cross warps, the operands of matrix products, or the
    tiles that a persistent kernel loads ahead. Raises Refused when the config does not fit."""
    program, ways = placed(nest, config), (config.programs, config.num_stages, config.group)
    if not program.mmas:
        return _without_mmas(program, config.num_warps, *ways)
    loading = tiled(nest, config, duplicate_raced_loads)
    described, walks = config.access == "descriptor", config.programs > 0
    run = shared_memory.StagingNeeds(config.num_warps, described, walks, config.subtiles)
    staged = shared_memory.staged_bytes(loading, run)
    if not staged:
        return _without_mmas(program, config.num_warps, *ways)
    staged = max(staged, shared_memory.stored_bytes(program, config.subtiles))
    return max(staged, _beside_operands(program, config.num_warps, *ways))


@once
def _without_mmas(
    program: TileProgram, num_warps: int, programs: int, num_stages: int, group: int
) -> int:
    """Where no operands lie there."""
    staged = (num_stages - 1) * _turn_bytes(program) if meets_in_turns(program) else 0
    return max(staged, _beside_operands(program, num_warps, programs, num_stages, group))


@once
def _beside_operands(
    program: TileProgram, num_warps: int, programs: int, num_stages: int, group: int
) -> int:
    """Of reductions, or of the tiles that a persistent kernel loads ahead."""
    grid = tile_cache.grid(program, programs, num_stages, group)
    ahead = _ahead_bytes(program, grid) if loads_next_tiles(grid) else 0
    return max(_crossing_bytes(program, num_warps), ahead)


@once
def _crossing_bytes(program: TileProgram, num_warps: int) -> int:
    """Of the reductions that cross warps."""
    if num_warps == 1:
        return 0
    crossing = (each for each in _kinds_of_sums(program) if each.crosses_warps(program, num_warps))
    kept = (program.blocks.elements(each.axes) * each.itemsize for each in crossing)
    return max(kept, default=0) * num_warps


@dataclass(frozen=True, slots=True)
class _KindOfSum:
    """Reductions over the same axes whose results have the same axes and the same size of an
    element."""

    reduced: tuple[int, ...]
    axes: frozenset[int]
    itemsize: int

    def crosses_warps(self, program: TileProgram, num_warps: int) -> bool:
        """Whether several warps hold parts of one sum. Neighbouring threads hold neighbours along
        the innermost axis: what is summed over an outer one lies in one thread when rows are
        long."""
        reduced = program.blocks.dims(self.reduced)
        if not reduced:
            return False
        inner = max(self.axes, default=-1)
        return inner < max(reduced) or program.blocks.elements(self.axes) < 32 * num_warps


@by_body
def _kinds_of_sums(program: TileProgram) -> tuple[_KindOfSum, ...]:
    """The reductions of a program but products, one of each kind."""
    nest, found = program.nest, []
    for value, each in program.reductions.items():
        fold = nest.fold(value)
        if fold.times is None and not isinstance(each, OnesMma):
            size = max(4, itemsize(nest.values[value].dtype))
            found.append(_KindOfSum(nest.reduced(fold), nest.live[value], size))
    return tuple(dict.fromkeys(found))


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
