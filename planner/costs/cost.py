"""The cost of a kernel on a device: its work at the device's rates, a breakdown with units."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..config import Config
from ..graph.graph import Graph
from ..groups.needs import inputs_read_whole
from ..nests.nest import Nest
from ..trace.indexed_writes import nbytes_given
from . import matrix
from .arithmetic import Arithmetic
from .device import DeviceProfile
from .work import Work, work_of

_LIMITS = ("memory", "arithmetic", "tensor cores")
_WALKED = 1.1
"""What a loop's branches, addresses and states cost beside the same work on a tile that registers
hold. Of 1,700 kernels of 61 groups timed on H200s, the one that the model likes best is 12% slower
than the best of its group on average; without this it is 21%."""
_FLIGHT = 0.5
"""Of the latency, how long loads of straight-line work are under way; in a loop all of it, for the
next ones wait until a turn is done. This and what follows of 1,660 kernels without products, timed
on H200s, by robust least squares: with the workloads left out in turn, the mean regret of the
model's choice falls from 26% to 7% among loops, from 18% to 11% among splits."""
_SPILLED = 8.0
"""Times what is spilled, in every turn: stored and loaded, mostly in L1, and waited for. Of 1,726
kernels without products timed on H200s; with 1.2 the mean regret of the model's choice is 9.5%
instead of 8.5%. Where threads meet in every turn it is what waits there, stored and loaded once."""
_SPILLED_MEETING = 2.0
_STARTED, _STARTED_FOLDING, _FIRST = 0.75, 0.1, 2
"""Of the time to start the programs of the first waves, what work that folds nothing, and what
folds, does not hide; later ones start while others work. Of 607 pointwise kernels the model's
choice is 9.1% slower than the best on average, 10.7% without; of 762 held reductions 6.0%, 6.7%."""
_WAITS_TOGETHER, _WAITS, _TOGETHER = 0.4, 0.2, 3
"""The share of the shorter of memory time and arithmetic time that one block on an SM does not hide
at its reductions: in the first `_TOGETHER` waves, when all programs wait at once, and (`_WAITS`) in
later waves. Of 327 kernels of 33 functions of rows of 1,000 to 262,144 elements and the like,
timed on an H100, with 0.4 throughout the mean regret of the model's choice was 5.5%, and is 3.7%:
rows of 32,000 elements are held whole, in 191 us, where a loop takes 243."""
_ENDED, _USUALLY_RESIDENT = 0.12, 4
"""By how much few programs on an SM are slower than very many, and how many are usual: of copies on
an H200 by 8 warps for 2,048 elements and by 32 for 8,192 the first took 4 to 7% less."""
_LINE = 0.6
"""Clock cycles in which an SM's L1 cache gives or takes what a warp's instruction touches of one
line. Of 1,294 kernels timed on an H200 (`bench.strides`), of 20 functions most of which read or
write in strides: with it, with sectors alone weighed (see `traffic`) and results that threads
share exchanged (see `arithmetic`), the mean regret of the model's choice falls from 76% to 18%,
and the mean correlation with what was measured rises from 0.47 to 0.73."""
_SHORT_ROW = 6.0
"""Clock cycles of an SM for what a row that a descriptor copies lacks of 128 bytes. Of 348 kernels
of eleven groups of EfficientNet-B0 (rows of 16 to 672 numbers of 16 bits) timed on an H200 the mean
regret of the model's choice falls from 15% to 5%, with `matrix._BESIDE_MEMORY`; of 910 products
timed on an H100 it stays."""


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
    return timed(work_of(nest, config, device), device)


def timed(work: Work, device: DeviceProfile) -> Cost:
    """What that work costs at the device's rates."""
    memory_s = _memory_s(work, device)
    rate = device.clock_hz * device.sm_count * work.busy
    # Latency is hidden by other warps: with few of them arithmetic runs below its rate.
    hidden = min(1.0, 0.4 + min(work.waves, 1.0) * work.resident * work.num_warps / 32)
    arithmetic_s = _cycles(work.arithmetic, device) / rate
    compute_s = arithmetic_s / hidden
    products = work.products
    tensor_s = matrix.tensor_s(products, device) / work.busy if products else 0.0
    each = (memory_s, compute_s, tensor_s)
    if products:
        prologue_s = _cycles(work.prologue, device) / rate
        alone_s = _products_s(work, products, device, (tensor_s, arithmetic_s, prologue_s))
    else:
        alone_s = _alone_s(work, max(each), sum(each) - max(each), device)
    # The last wave is rarely full: whole waves over exact ones, of less effect the more there are.
    # With less than one wave, some SMs still run a program more than others.
    turns = work.waves if work.waves > 1 or products else work.programs / device.sm_count
    tail = math.ceil(turns) / turns if turns > 1 else 1.0
    seconds = device.launch_s * work.launches + alone_s * (1 + (tail - 1) * 0.5)
    return Cost(
        hbm_bytes=work.hbm_bytes,
        l2_bytes=work.l2_bytes,
        fma=_slots(work.arithmetic, device),
        sfu=work.arithmetic.sfu,
        launches=work.launches,
        registers=work.registers,
        spill_bytes=work.spill_bytes,
        shared_bytes=work.shared_bytes,
        occupancy=work.resident * work.threads / device.threads_per_sm,
        waves=work.waves,
        memory_s=memory_s,
        compute_s=compute_s,
        seconds=seconds,
        limit=_LIMITS[each.index(max(each))],
        flops=products.flops if products else 0.0,
        tensor_s=tensor_s,
    )


def _products_s(
    work: Work,
    products: matrix.Products,
    device: DeviceProfile,
    computing: tuple[float, float, float],
) -> float:
    """Seconds of a kernel with matrix products, its launch aside. computing: seconds of the tensor
    cores, of all other arithmetic, and of the part of it that makes operands, each alone."""
    waiting = matrix.Waiting(
        work.programs,
        work.resident,
        work.resident * work.num_warps,
        work.waves,
        work.turns,
        max(1.0, work.started / (work.resident * device.sm_count)),
    )
    # What attention computes between its products hides its copies.
    short_rows = work.short_rows * (products.chain is None or not products.reduces)
    short_s = _SHORT_ROW * short_rows / (device.clock_hz * device.sm_count * work.busy)
    parts = matrix.Alone(
        max(0.0, device.stream_s(work.hbm_bytes) - device.launch_s) + short_s,
        work.l2_weighed / device.l2_bandwidth,
        *computing,
        work.hbm_bytes / device.bandwidth,
        products.read_behind / device.bandwidth,
        products.moved_between / device.bandwidth,
        products.spilled * max(1.0, work.turns) / device.l2_bandwidth,
    )
    seconds = matrix.seconds(products, waiting, work.spill_bytes, parts, device)
    return seconds * device.generated


def _memory_s(work: Work, device: DeviceProfile) -> float:
    """Seconds of the memory and the caches alone."""
    part = min(1.0, max(0.05, work.busy * 1.6))  # Few SMs do not fill the memory's width.
    streamed = (device.stream_s(work.hbm_bytes) - device.launch_s) / part
    # Little's law: what is under way at once, over the latency, bounds the bandwidth.
    flowing = work.in_flight / device.latency_s
    # A loop waits for what it finds in L2 as well.
    moved = max(work.hbm_bytes, work.l2_bytes) if work.sweeps else _FLIGHT * work.hbm_bytes
    found = max(streamed, moved / flowing if flowing else 0.0)
    found = max(found, work.l2_weighed / device.l2_bandwidth / part) * work.awkward
    found = max(found, _LINE * work.l1_lines / (device.clock_hz * device.sm_count * work.busy))
    each = _SPILLED_MEETING if work.turn_folds else _SPILLED
    spilled = each * work.spill_bytes * work.threads * work.programs * max(1.0, work.turns)
    return found + spilled / device.l2_bandwidth


def _slots(work: Arithmetic, device: DeviceProfile) -> float:
    """Issue slots of the fma pipes for all arithmetic."""
    divided = work.div / device.div_rate + work.libdevice / device.libdevice_rate
    return work.slots + divided * device.fma_rate


def _cycles(work: Arithmetic, device: DeviceProfile) -> float:
    """Clock cycles of all SMs together, at full rate."""
    return max(_slots(work, device) / device.fma_rate, work.sfu / device.sfu_rate)


def _alone_s(work: Work, longest: float, other: float, device: DeviceProfile) -> float:
    """Seconds of a kernel without matrix products, launch not included. longest: of memory and
    arithmetic; other: the rest of their sum."""
    serial_s = max(1.0, work.waves) * _chain_s(work, device)
    started_s = _started_s(work, device)
    if work.waves > 1 and not work.folds:
        # Where one of few programs has ended, much of an SM stands idle until the next works.
        longest *= (1.0 + _ENDED / work.resident) / (1.0 + _ENDED / _USUALLY_RESIDENT)
    longest = max(longest, serial_s, _replaced_s(work, device))
    felt = _STARTED_FOLDING if work.folds else _STARTED
    longest += felt * started_s * min(1.0, (_FIRST / work.waves) ** 2)
    # Blocks that wait at a reduction leave the memory idle unless others run beside them.
    together = (
        1.0 if work.sweeps or work.started < work.programs else min(1.0, _TOGETHER / work.waves)
    )
    waits = _WAITS + (_WAITS_TOGETHER - _WAITS) * together
    held = work.folds and not (work.ahead or work.begun)
    apart = 0.12 + (waits / work.resident if held else 0.0)
    walked = _WALKED if work.turns else 1.0
    between_s = work.waves * device.waits.persistent_tile_s if work.ahead else 0.0
    return (longest + apart * other) * walked + between_s


def _chain_s(work: Work, device: DeviceProfile) -> float:
    """Seconds of one program alone: its loads wait for memory once in straight-line work (unless
    they were begun ahead) and in every sweep, and all its warps meet at every fold; in loops where
    they meet in every turn, in each."""
    waits = 0.0 if work.ahead else device.latency_s * max(1, work.sweeps)
    of = device.waits
    in_turn = work.turn_folds * of.turn_fold_s + work.turn_waits * _FLIGHT * device.latency_s
    return (
        waits
        + work.folds * (of.fold_s + of.fold_warp_s * work.num_warps)
        + max(0.0, work.turns - 1) * in_turn
    )


def _started_s(work: Work, device: DeviceProfile) -> float:
    """Seconds to start every program on SMs that have room for it, one at a time on an SM: on an
    H200 80 ns each for up to 4 warps and about 7.5 ns for each warp beyond."""
    of = device.waits
    each = max(of.start_least_s, of.start_s + of.start_warp_s * work.num_warps)
    return work.started / device.sm_count * each


def _replaced_s(work: Work, device: DeviceProfile) -> float:
    """Seconds in which every program can be started where each takes the place of one that ended:
    of 254 kernels on an H200 with 200 programs or more for each SM, whatever they do, none took
    less than 160 ns for each of up to 8 warps, 210 ns of 16."""
    of = device.waits
    each = max(of.replace_least_s, of.start_s + of.replace_warp_s * work.num_warps)
    return work.started / device.sm_count * each


def total(costs: Sequence[Cost]) -> Cost:
    """The cost of kernels that run one after another; resources are those of the hungriest."""
    if len(costs) == 1:
        return costs[0]
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
    """A lower bound on any kernel of a group: each input of which it needs every element read once,
    each output written once."""
    ends = [*inputs_read_whole(group), *(o for o in group.outputs if o is not None)]
    moved = sum(nbytes_given(group, group.nodes[n]) for n in ends)
    return device.launch_s + moved / device.bandwidth
