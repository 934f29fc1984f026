"""What a kernel does under a config, counted off its nest before any rate of a device."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from ..codegen.access import GROUP, Tiles
from ..config import Config
from ..graph.dtypes import itemsize
from ..graph.op import Accuracy, Op
from ..memo import by_identity
from ..nests.linear_forms import Access, Role
from ..nests.nest import Nest
from ..nests.placement import Loop, Store
from ..values.values import Choice, Compute, Fold, ValueKind
from . import matrix, staging
from .alike import classes
from .device import DeviceProfile
from .registers import pressure
from .tile_cache import once, tiles_of
from .traffic import KEPT, awkwardness, in_flight, is_dense, passes, traffic_of, turns

# What hints to the cache do to the seconds of memory: medians of 280 pairs of kernels that differ
# in nothing else. They keep what a later pass reads again: in L2, or in L1 where L2 holds it all.
_EVICTION = {"none": 1.0, "first": 1.03, "last": 1.0, "both": 1.01}
_EVICTION_OF_PASSES = {"none": 1.0, "first": 0.94, "last": 0.965, "both": 0.925}
_EVICTION_IN_L2 = {"none": 1.0, "first": 1.0, "last": 0.88, "both": 0.94}
_PIPELINED = 2.6  # Times the bytes under way: a loop that loads its next turns ahead.
_PROLOGUE = 40.0  # Issue slots of a thread before its first load, and its share of a launch.
_EXACT_EXP = 7.0  # Issue slots of an exponential to the last place, besides its own.


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
    """What one launch does. Only the sizes of a device count here, none of its rates.

    programs: blocks of work; started: programs that are started for them (fewer in a persistent
    grid); resident: those an SM holds; waves: blocks over what the device holds at once; busy: the
    part of the SMs that have work. registers, spill_bytes: of a thread; shared_bytes: of a block.
    l2_weighed: see `Traffic`. in_flight: bytes under way at once; awkward: times the seconds of a
    plain copy. turns, passes, folds: of one program, its loops' turns, how often it walks them, and
    where its threads meet. ahead: its next loads are begun while it works. products: see `matrix`,
    None without any."""

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
    in_flight: float
    awkward: float
    arithmetic: Arithmetic
    turns: float
    passes: int
    folds: int
    ahead: bool
    products: matrix.Products | None

    @property
    def threads(self) -> int:
        return 32 * self.num_warps


def work_of(nest: Nest, config: Config, device: DeviceProfile) -> Work:
    """The work of one launch. Raises Refused when the config does not fit the nest."""
    tiles = tiles_of(nest, config)
    programs = _programs(nest, tiles)
    ahead = bool(nest.contractions) and config.num_stages > 1
    walks = config.programs > 0
    registers, spills = pressure(nest, tiles, config.num_warps, config.subtiles, ahead, walks)
    shared = shared_bytes(nest, tiles, config)
    resident = _resident_blocks(registers, 32 * config.num_warps, shared, device)
    started = min(programs, config.programs or programs)
    if config.programs:
        resident = min(resident, math.ceil(started / device.sm_count))
    at_once = min(programs, resident * device.sm_count)
    traffic = traffic_of(nest, tiles, config.group, at_once, device)
    waves = programs / (resident * device.sm_count)
    ahead = is_ahead(nest, tiles, config)
    flowing = in_flight(nest, tiles, waves, resident, device)
    if passes(nest) and config.num_stages > 1:
        flowing *= _PIPELINED
    hint = _hint(nest, traffic.hbm, device)[config.eviction]
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
        in_flight=flowing * (config.num_stages - 1 if ahead else 1),
        awkward=hint * awkwardness(nest, tiles, config.num_warps),
        arithmetic=_arithmetic(nest, tiles, config.num_warps),
        turns=sum(tiles.turns(item.axis) for item in nest.body if isinstance(item, Loop)),
        passes=passes(nest),
        folds=_folds(nest),
        ahead=ahead,
        products=matrix.products_of(nest, tiles, config, programs),
    )


def _hint(nest: Nest, hbm: int, device: DeviceProfile) -> dict[str, float]:
    """What each hint to the cache is worth."""
    if passes(nest) < 2:
        return _EVICTION
    return _EVICTION_IN_L2 if hbm < KEPT * device.l2_bytes else _EVICTION_OF_PASSES


@once
def _arithmetic(nest: Nest, tiles: Tiles, num_warps: int) -> Arithmetic:
    items = _sorted_out(nest)
    found, programs = Arithmetic(), _programs(nest, tiles)
    for some in items.plain:
        elements = math.prod(tiles.blocks[a] for a in some.axes)
        found = found.plus(some.each, elements * turns(some.loops, tiles) * programs)
    for moved in items.moved:
        slots = moved.count * _access_slots(moved.access, tiles, num_warps)
        found = found.plus(Arithmetic(slots), turns(moved.loops, tiles) * programs)
    for fold, loops in items.folds:
        by_lane = bool(loops) and loops[-1].by_lane
        more = _of_fold(nest, tiles, num_warps, fold, by_lane)
        found = found.plus(more, turns(loops, tiles) * programs)
    return found.plus(Arithmetic(_PROLOGUE), programs * 32 * num_warps)


@dataclass(slots=True)
class _Elements:
    """What is done with each element of the values over some tile axes, in the same loops."""

    axes: frozenset[int]
    loops: tuple[Loop, ...]
    each: Arithmetic = Arithmetic()


@dataclass(slots=True)
class _Moved:
    """Loads or stores that are alike, in the same loops."""

    access: Access
    loops: tuple[Loop, ...]
    count: int = 0


class _Items(NamedTuple):
    """The work that goes by elements alone; the loads and stores; the folds."""

    plain: tuple[_Elements, ...]
    moved: tuple[_Moved, ...]
    folds: tuple[tuple[int, tuple[Loop, ...]], ...]


@by_identity(64)
def _sorted_out(nest: Nest) -> _Items:
    # All items of a loop have the same tuple of loops around them.
    plain: dict[tuple[frozenset[int], int], _Elements] = {}
    moved: dict[tuple[int, int], _Moved] = {}
    folds = []
    number = classes(nest)
    for item, loops in nest.walk():
        assert not isinstance(item, Loop)
        if isinstance(item, Store) or item.value in nest.loads:
            if isinstance(item, Store):
                access = nest.stores[item.output]
            else:
                access = nest.loads[item.value]
            known = moved.setdefault((number[id(access)], id(loops)), _Moved(access, loops))
            known.count += 1
        elif isinstance(nest.values[item.value].kind, Fold):
            folds.append((item.value, loops))
        else:
            axes = nest.live[item.value]
            found = plain.setdefault((axes, id(loops)), _Elements(axes, loops))
            found.each = found.each.plus(_of_element(nest.values[item.value].kind), 1.0)
    return _Items(tuple(plain.values()), tuple(moved.values()), tuple(folds))


def _of_element(kind: ValueKind) -> Arithmetic:
    match kind:
        case Compute(cost="div"):
            return Arithmetic(div=1.0, sfu=1.0)
        case Compute(cost="libdevice"):
            return Arithmetic(libdevice=1.0, sfu=1.0)
        case Compute(op=Op.EXP, accuracy=Accuracy.EXACT):
            return Arithmetic(1.0 + _EXACT_EXP, 1.0)
        case Compute(cost=cost):
            return Arithmetic(1.0, float(cost == "sfu"))
        case Choice():
            return Arithmetic(2.0)
    return Arithmetic(1.0)


def _of_fold(nest: Nest, tiles: Tiles, num_warps: int, value: int, by_lane: bool) -> Arithmetic:
    """The work on one tile of a fold. by_lane: see `Loop`."""
    item, elements = nest.values[value], float(_padded(nest, tiles, value))
    match item.kind:
        case Fold() if value in nest.contractions and tiles.dot(value) is not None:
            # The accumulator may have to be brought up to a new extremum.
            return Arithmetic(elements if value in nest.corrections else 0.0)
        case Fold() if tiles.is_by_ones(value):
            return Arithmetic()  # On the tensor cores.
        case Fold() if by_lane and value in nest.corrections:
            # Every lane follows its own extremum: an exponential for each element more.
            whole = float(_padded(nest, tiles, item.kind.source))
            return Arithmetic(10.0 * whole, whole)
        case Fold(about=int(), source=source) if by_lane:
            # The distance from the mean so far, its square and its weight, for each element.
            return Arithmetic(7.0 * _padded(nest, tiles, source))
        case Fold():
            summed = item.kind.times is not None
            whole = tiles.tile(value) if summed else _padded(nest, tiles, item.kind.source)
            threads = 32 * num_warps
            steps = math.log2(threads) if num_warps > 1 else 5.0
            return Arithmetic(whole + 2.0 * threads * steps)
    return Arithmetic(elements)


def _access_slots(access: Access, tiles: Tiles, num_warps: int) -> float:
    """Issue slots of a load or store: per instruction, which moves up to 16 bytes a thread, the
    access itself at a quarter of the fma rate, its address and its mask."""
    elements, run, slots = _instructions(tiles.nest, tiles)[classes(tiles.nest)[id(access)]]
    each = max(1.0, elements / (32 * num_warps))
    width = max(1.0, min(each, run, 16 / itemsize(access.type.dtype)))
    return elements / width * slots


@once
def _instructions(nest: Nest, tiles: Tiles) -> dict[int, tuple[int, int, float]]:
    """Of every class of accesses: elements of a tile, how many lie side by side, and the issue
    slots of one instruction."""
    found: dict[int, tuple[int, int, float]] = {}
    number = classes(nest)
    for access in (*nest.loads.values(), *nest.stores.values()):
        if number[id(access)] in found:
            continue
        terms = access.offset.terms
        inner = [t for t in terms if is_dense(t, access)]
        divisions = sum(t.mod > 0 or t.div > 1 for t in terms)
        masks = len(tiles.masks(access, ())) + 2 * sum(a.checked for a in access.at)
        slots = 4.0 + 2.0 * (len(terms) + len(access.at)) + 3.0 * divisions + 2.0 * masks
        run = tiles.blocks[inner[0].axis] if inner else 1
        elements = math.prod(tiles.blocks[a] for a in access.axes)
        found[number[id(access)]] = elements, run, slots
    return found


def _padded(nest: Nest, tiles: Tiles, value: int) -> int:
    return math.prod(tiles.blocks[a] for a in nest.live[value])


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


def _folds(nest: Nest) -> int:
    return sum(isinstance(v.kind, Fold) and v.kind.times is None for v in nest.values)


def shared_bytes(nest: Nest, tiles: Tiles, config: Config) -> int:
    """Shared memory: the reductions that cross warps, the operands of matrix products, or the
    tiles that a persistent kernel loads ahead."""
    warps = GROUP if config.num_warps % GROUP == 0 else 1  # More of them change nothing.
    staged = staging.staged_bytes(nest, tiles, config.num_stages, warps)
    if staged:
        staged = max(staged, staging.stored_bytes(nest, tiles, config.subtiles))
    return max(
        _crossing_bytes(nest, tiles, config.num_warps), staged, _ahead_bytes(nest, tiles, config)
    )


@once
def _crossing_bytes(nest: Nest, tiles: Tiles, num_warps: int) -> int:
    """Of the reductions that cross warps."""
    largest = 0
    for value in nest.values:
        if not isinstance(value.kind, Fold) or tiles.is_by_ones(value.id):
            continue
        if num_warps > 1 and value.kind.times is None:
            kept = math.prod(tiles.blocks[a] for a in nest.live[value.id])
            if _crosses_warps(nest, tiles, value.id, kept, num_warps):
                largest = max(largest, kept * num_warps * max(4, itemsize(value.dtype)))
    return largest


def _crosses_warps(nest: Nest, tiles: Tiles, fold: int, kept: int, num_warps: int) -> bool:
    """Whether several warps hold parts of one sum. Neighbouring threads hold neighbours along the
    innermost axis: what is summed over an outer one lies in one thread when rows are long."""
    reduced = [a for a in nest.reduced(nest.fold(fold)) if tiles.blocks[a] > 1]
    if not reduced:
        return False
    inner = max(nest.live[fold], default=-1)
    return inner < max(reduced) or kept < 32 * num_warps


def _ahead_bytes(nest: Nest, tiles: Tiles, config: Config) -> int:
    """Of the loads of a persistent kernel's next tiles, each a copy of its tile in memory: Triton
    does not take those out that are the same for all tiles."""
    if not is_ahead(nest, tiles, config):
        return 0
    loads = sum(
        math.prod(tiles.blocks[a] for a in access.axes) * itemsize(access.type.dtype)
        for access in nest.loads.values()
    )
    return (config.num_stages - 1) * loads


def is_ahead(nest: Nest, tiles: Tiles, config: Config) -> bool:
    """Whether a persistent kernel loads its next tiles while it works on one: it does where no
    loop stands inside the walk over the tiles."""
    if not config.programs or config.num_stages == 1 or passes(nest):
        return False
    return config.programs < _programs(nest, tiles)


@once
def _programs(nest: Nest, tiles: Tiles) -> int:
    """Blocks of work."""
    return math.prod(tiles.count(a) for a in nest.with_role(Role.GRID))
