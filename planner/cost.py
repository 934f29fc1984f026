"""What a nest costs under a config on a device: a breakdown with units, read off the nest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from . import matrix
from .codegen.access import Tiles
from .config import Config
from .device import DeviceProfile
from .forms import Access, Role, Term
from .graph import Graph, itemsize
from .nest import Nest
from .place import Loop, Step, Store
from .registers import pressure
from .values import Choice, Compute, Fold, Load

# Issue slots of one element by cost class, in units of an fma; sfu work counts on its own unit.
_FMA_SLOTS = {"move": 1.0, "fma": 1.0, "sfu": 1.0, "div": 8.0, "libdevice": 22.0}
_SFU_SLOTS = {"move": 0.0, "fma": 0.0, "sfu": 1.0, "div": 1.0, "libdevice": 1.0}
_PROLOGUE = 40.0  # Issue slots of a thread before its first load, and its share of a launch.
_LIMITS = ("memory", "arithmetic", "tensor cores")
# Hints to the cache cost a little more often than they help.
_EVICTION = {"none": 1.0, "first": 1.03, "last": 1.01}


@dataclass(frozen=True, slots=True)
class Cost:
    """hbm_bytes and l2_bytes of one call; fma, sfu: operations by unit; registers per thread and
    spill_bytes per thread; occupancy: resident warps over the most an SM holds; waves: programs
    over what the device holds at once; limit: what binds; seconds: of one launch, cold cache."""

    hbm_bytes: int
    l2_bytes: int
    fma: float
    sfu: float
    launches: int
    registers: int
    spill_bytes: int
    shared_bytes: int
    occupancy: float
    waves: float
    memory_s: float
    compute_s: float
    seconds: float
    limit: str
    flops: float = 0.0
    tensor_s: float = 0.0


def estimate(nest: Nest, config: Config, device: DeviceProfile) -> Cost:
    """The cost of one launch. Raises Refused when the config does not fit the nest."""
    tiles = Tiles.of(nest, config)
    programs = math.prod(tiles.count(a) for a in nest.with_role(Role.GRID))
    traffic = _traffic(nest, tiles, programs, device)
    fma, sfu = _operations(nest, tiles, programs, config)
    registers, spills = pressure(nest, tiles, config.num_warps, config.subtiles)
    threads = 32 * config.num_warps
    shared = shared_bytes(nest, tiles, config)
    resident = _resident_blocks(registers, threads, shared, device)
    waves = programs / (resident * device.sm_count)
    busy = min(1.0, programs / device.sm_count)
    # The last wave is rarely full: whole waves over exact ones, felt less the more there are.
    tail = math.ceil(waves) / waves if waves > 1 else 1.0
    tail = 1 + (tail - 1) * 0.5
    # Little's law: what is under way at once, over the latency, bounds the bandwidth.
    flowing = _bytes_in_flight(nest, tiles, waves, resident, device) / (0.5 * device.latency_s)
    memory_s = max(
        device.stream_s(traffic.hbm) - device.launch_s, traffic.hbm / flowing if flowing else 0.0
    )
    memory_s = max(memory_s, traffic.l2 / device.l2_bandwidth) / min(1.0, max(0.05, busy * 1.6))
    memory_s *= _EVICTION[config.eviction] * _awkwardness(nest, tiles, config)
    memory_s += 2.0 * spills * threads * programs / device.l2_bandwidth
    rate = device.clock_hz * device.sm_count * busy
    # Latency is hidden by other warps: with few of them arithmetic runs below its rate.
    hidden = min(1.0, 0.4 + min(waves, 1.0) * resident * config.num_warps / 32)
    compute_s = max(fma / device.fma_rate, sfu / device.sfu_rate) / rate / hidden
    flops = matrix.flops(nest, tiles) * programs
    tensor_s = matrix.tensor_s(nest, tiles, programs, device) / busy
    each = (memory_s, compute_s, tensor_s)
    longest, other = max(each), sum(each) - max(each)
    serial_s = waves * _chain_s(nest, tiles, config.num_warps, device)
    longest = max(longest, serial_s, _started_s(programs, config.num_warps, device))
    # Blocks that wait at a reduction leave the memory idle unless others run beside them.
    apart = 0.12 + (0.4 / resident if _folds(nest) or flops else 0.0)
    alone_s = longest + apart * other
    if flops:
        streamed = max(0.0, device.stream_s(traffic.hbm) - device.launch_s)
        arithmetic = max(fma / device.fma_rate, sfu / device.sfu_rate) / rate
        l2_s = traffic.l2 / device.l2_bandwidth
        work = matrix.Work(streamed, l2_s, tensor_s, arithmetic, resident, spills)
        alone_s = matrix.seconds(nest, tiles, config, work)
    seconds = device.launch_s + alone_s * (tail if programs > 1 else 1.0)
    return Cost(
        hbm_bytes=traffic.hbm,
        l2_bytes=traffic.l2,
        fma=fma,
        sfu=sfu,
        launches=1,
        registers=registers,
        spill_bytes=spills,
        shared_bytes=shared,
        occupancy=resident * threads / device.threads_per_sm,
        waves=waves,
        memory_s=memory_s,
        compute_s=compute_s,
        seconds=seconds,
        limit=_LIMITS[each.index(max(each))],
        flops=flops,
        tensor_s=tensor_s,
    )


def total(costs: Sequence[Cost]) -> Cost:
    """The cost of kernels that run one after another; resources are those of the hungriest."""
    return replace(
        max(costs, key=lambda cost: cost.seconds),
        hbm_bytes=sum(c.hbm_bytes for c in costs),
        l2_bytes=sum(c.l2_bytes for c in costs),
        fma=sum(c.fma for c in costs),
        sfu=sum(c.sfu for c in costs),
        launches=sum(c.launches for c in costs),
        registers=max(c.registers for c in costs),
        spill_bytes=max(c.spill_bytes for c in costs),
        shared_bytes=max(c.shared_bytes for c in costs),
        memory_s=sum(c.memory_s for c in costs),
        compute_s=sum(c.compute_s for c in costs),
        seconds=sum(c.seconds for c in costs),
        flops=sum(c.flops for c in costs),
        tensor_s=sum(c.tensor_s for c in costs),
    )


def floor_s(group: Graph, device: DeviceProfile) -> float:
    """A lower bound on any kernel of a group: each input read once, each output written once."""
    ends = [*group.inputs, *(o for o in group.outputs if o is not None)]
    types = [group.nodes[n].type for n in ends]
    return device.launch_s + sum(t.nbytes for t in types if t) / device.bandwidth


@dataclass(frozen=True, slots=True)
class _Traffic:
    hbm: int
    l2: int


def _traffic(nest: Nest, tiles: Tiles, programs: int, device: DeviceProfile) -> _Traffic:
    """Each access moves its tile in every program and pass; what one program, or its neighbours
    at the same time, read before comes from L2 when their working set fits it."""
    hbm = l2 = 0
    seen: set[int] = set()
    near: set[tuple[int, int]] = set()  # (input, stretch of the body)
    concurrent = min(programs, device.sm_count * 8)
    for access, iterations, buffer, stretch in _accesses(nest, tiles):
        tile = _tile_bytes(access, tiles)
        moved = int(tile * iterations * programs)
        whole = _whole_bytes(access, nest)
        if buffer is None:
            hbm += whole
            l2 += moved
            continue
        if (buffer, stretch) not in near:
            # The same input at another offset in the same stretch is found in L1.
            l2 += moved
        near.add((buffer, stretch))
        repeats = moved / max(1, whole)
        if buffer in seen or repeats > 1.5:
            # Read again: by a later pass of the same program, or by another program.
            in_use = tile * iterations * _apart(access, nest, tiles, concurrent)
            missed = max(0.0, 1.0 - device.l2_bytes * 0.7 / max(1, min(in_use, whole)))
            fresh = 0 if buffer in seen else whole
            hbm += fresh + int(missed * max(0, moved - fresh))
        else:
            hbm += whole
        seen.add(buffer)
    return _Traffic(hbm, l2)


def _whole_bytes(access: Access, nest: Nest) -> int:
    """Bytes that all of an access touches: of one by index a row for every index, and no more than
    there are in the tensor."""
    if not access.at:
        return access.type.nbytes
    whole = tuple(axis.extent for axis in nest.axes)
    return min(access.type.nbytes, _sector_bytes(access, nest, whole))


def _apart(access: Access, nest: Nest, tiles: Tiles, programs: int) -> int:
    """Among programs that run at the same time, how many touch different data: those next to each
    other along a grid axis that the access lacks share theirs."""
    different, left = 1, programs
    for axis in reversed(nest.with_role(Role.GRID)):
        count = min(tiles.count(axis), left)
        different *= count if axis in access.axes else 1
        left = -(-left // max(1, count))
    return different


def _accesses(nest: Nest, tiles: Tiles) -> list[tuple[Access, float, int | None, int]]:
    """Every access, its repetitions within a program, the input it reads (None: a store), and
    the stretch of the body it stands in: a loop, or the straight-line work."""
    found: list[tuple[Access, float, int | None, int]] = []
    for item, loops in nest.walk():
        times = _turns(loops, tiles)
        stretch = id(loops[0]) if loops else 0
        if isinstance(item, Store):
            found.append((nest.stores[item.output], times, None, stretch))
        elif isinstance(item, Step) and item.value in nest.loads:
            load = nest.values[item.value].kind
            assert isinstance(load, Load)
            found.append((nest.loads[item.value], times, load.input, stretch))
    return found


def _turns(loops: Sequence[Loop], tiles: Tiles) -> float:
    return math.prod(tiles.turns(loop.axis) for loop in loops)


def _tile_bytes(access: Access, tiles: Tiles) -> int:
    """Bytes one program moves for one execution."""
    return _sector_bytes(access, tiles.nest, tiles.blocks)


def _sector_bytes(access: Access, nest: Nest, blocks: Sequence[int]) -> int:
    """Bytes of a block of these extents, in whole sectors of 32 bytes."""
    elements, run = 1, 1
    size = itemsize(access.type.dtype)
    for axis in access.offset.axes | access.along:
        elements *= min(blocks[axis], nest.axes[axis].extent)
    for term in access.offset.terms:
        if _is_dense(term, access):
            whole = term.mod or nest.axes[term.axis].extent
            run = min(blocks[term.axis], whole)
    rows = elements / run
    return int(rows * 32 * math.ceil(run * size / 32)) if rows else size


def _is_dense(term: Term, access: Access) -> bool:
    """Whether neighbours along the term lie side by side; where an index varies along the whole
    axis they lie anywhere."""
    return term.scale == 1 and (term.mod > 0 or term.axis not in access.along)


def _operations(nest: Nest, tiles: Tiles, programs: int, config: Config) -> tuple[float, float]:
    fma = sfu = 0.0
    threads = 32 * config.num_warps
    dots = [c for c in nest.contractions if tiles.dot(c) is not None]

    def work(value: int) -> tuple[float, float]:
        item = nest.values[value]
        elements = _padded(nest, tiles, value)
        match item.kind:
            case Compute(cost=cost):
                return elements * _FMA_SLOTS[cost], elements * _SFU_SLOTS[cost]
            case Fold() if value in dots:
                # The accumulator may have to be brought up to a new extremum.
                return (float(elements) if value in nest.corrections else 0.0), 0.0
            case Fold():
                whole = (
                    tiles.tile(value)
                    if item.kind.times is not None
                    else _padded(nest, tiles, item.kind.source)
                )
                steps = math.log2(threads) if config.num_warps > 1 else 5.0
                return whole + 2.0 * threads * steps, 0.0
            case Choice():
                return elements * 2.0, 0.0
            case Load():
                return _access_slots(nest.loads[value], tiles, config), 0.0
        return elements, 0.0

    for item, loops in nest.walk():
        times = _turns(loops, tiles)
        if isinstance(item, Store):
            more = (_access_slots(nest.stores[item.output], tiles, config), 0.0)
        else:
            assert not isinstance(item, Loop)
            more = work(item.value)
        fma += more[0] * times * programs
        sfu += more[1] * times * programs
    return fma + programs * threads * _PROLOGUE, sfu


def _access_slots(access: Access, tiles: Tiles, config: Config) -> float:
    """Issue slots of a load or store: per instruction, which moves up to 16 bytes a thread, the
    access itself at a quarter of the fma rate, its address and its mask."""
    elements = math.prod(tiles.blocks[a] for a in access.axes)
    each = max(1.0, elements / (32 * config.num_warps))
    inner = [t for t in access.offset.terms if _is_dense(t, access)]
    run = tiles.blocks[inner[0].axis] if inner else 1
    width = max(1.0, min(each, run, 16 / itemsize(access.type.dtype)))
    divisions = sum(t.mod > 0 or t.div > 1 for t in access.offset.terms)
    terms = len(access.offset.terms) + len(access.at)
    masks = len(tiles.masks(access, ())) + 2 * sum(a.checked for a in access.at)
    slots = 4.0 + 2.0 * terms + 3.0 * divisions + 2.0 * masks
    return elements / width * slots


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


def _bytes_in_flight(
    nest: Nest, tiles: Tiles, waves: float, resident: int, device: DeviceProfile
) -> float:
    tile = sum(
        _tile_bytes(a, tiles) for a, _, buffer, _ in _accesses(nest, tiles) if buffer is not None
    )
    return tile * resident * device.sm_count * min(1.0, waves)


def _chain_s(nest: Nest, tiles: Tiles, num_warps: int, device: DeviceProfile) -> float:
    """Seconds of one program alone: its loads wait for memory once in straight-line work and in
    every pass, a little in every turn of a loop, and all its warps meet at every fold."""
    outer = [item for item in nest.body if isinstance(item, Loop)]
    turns = sum(tiles.turns(loop.axis) for loop in outer)
    waits = device.latency_s * max(1, len(outer)) + 0.15e-6 * turns
    return waits + _folds(nest) * (0.2e-6 + 0.03e-6 * num_warps)


def _folds(nest: Nest) -> int:
    return sum(isinstance(v.kind, Fold) and v.kind.times is None for v in nest.values)


def _started_s(programs: int, num_warps: int, device: DeviceProfile) -> float:
    """Seconds to start every program: an SM takes one at a time, measured on an H200 at 80 ns
    each for up to 4 warps and about 7.5 ns for each warp beyond."""
    return programs / device.sm_count * max(80e-9, 50e-9 + 7.5e-9 * num_warps)


def _awkwardness(nest: Nest, tiles: Tiles, config: Config) -> float:
    """How much slower than a plain copy the accesses run: by the bytes a thread moves at once,
    best at one 16-byte vector for each tensor, and by the stretches a tile falls into. Factors
    fitted to measurements on an H200."""
    accesses = [a for a, _, _, _ in _accesses(nest, tiles)]
    widest = max(accesses, key=lambda a: _tile_bytes(a, tiles), default=None)
    if widest is None:
        return 1.0
    elements = math.prod(tiles.blocks[a] for a in widest.axes)
    each = max(elements / (32 * config.num_warps), 1.0) * itemsize(widest.type.dtype)
    if each >= 16:
        vectors = 1.0 + 0.012 * len(accesses) * math.log2(each / 16)
    else:
        vectors = 1.0 + 0.12 * math.log2(16 / each) ** 1.5
    return vectors * (1.0 + 0.015 * math.log2(max(1.0, elements / _run(widest, tiles))))


def _run(access: Access, tiles: Tiles) -> int:
    """Elements of a tile that lie side by side in memory."""
    run = 1
    for term in sorted(access.offset.terms, key=lambda t: abs(t.scale)):
        if term.scale != run or not (term.mod or term.axis not in access.along):
            break
        whole = term.mod or tiles.nest.axes[term.axis].extent
        run *= min(tiles.blocks[term.axis], whole)
        if tiles.blocks[term.axis] < whole:
            break
    return run


def shared_bytes(nest: Nest, tiles: Tiles, config: Config) -> int:
    """Shared memory: the reductions that cross warps, or the operands of matrix products."""
    largest = 0
    for value in nest.values:
        if isinstance(value.kind, Fold) and config.num_warps > 1:
            kept = math.prod(tiles.blocks[a] for a in nest.live[value.id])
            if value.kind.times is None:
                largest = max(largest, kept * config.num_warps * max(4, itemsize(value.dtype)))
    return max(largest, matrix.staged_bytes(nest, tiles, config))
