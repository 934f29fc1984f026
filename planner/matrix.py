"""Products of tiles: what they cost on tensor cores, and what they stage in shared memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .codegen.access import Dot, Tiles
from .config import Config
from .device import DeviceProfile
from .graph import Graph, Ref, itemsize
from .judged import once
from .nest import Nest
from .ops import Contraction, bound, row
from .place import Carry, Loop, Step, Store
from .values import Load

_RATE = {"float16": 1.0, "bfloat16": 1.0, "float32": 0.5}
"""By operand dtype, times the 16-bit rate; float32 stands for tf32."""


@once
def dots(nest: Nest, tiles: Tiles) -> list[tuple[int, Dot, float]]:
    """(value, tile axes, times in one program) of every matrix product."""
    found = []
    for item, loops in nest.walk():
        if isinstance(item, (Step, Carry)) and item.value in nest.contractions:
            dot = tiles.dot(item.value)
            if dot is not None:
                times = math.prod(tiles.turns(loop.axis) for loop in loops)
                found.append((item.value, dot, times))
    return found


@dataclass(frozen=True, slots=True)
class Products:
    """The matrix products of one launch. flops: operations, padding included; tensor: those of the
    tensor cores at the rate of 16 bits; ieee: those in float32, without tensor cores; slower: the
    sum of those weights below that the config alone decides; several: more than one product; ahead:
    turns of a loop whose loads are under way at once."""

    flops: float
    tensor: float
    ieee: float
    slower: float
    several: bool = False
    ahead: int = 1


def products_of(nest: Nest, tiles: Tiles, config: Config, programs: int) -> Products | None:
    """The products of a nest, None where no contraction runs as one."""
    found = dots(nest, tiles)
    if not found:
        return None
    flops = tensor = ieee = 0.0
    for value, dot, times in found:
        fold, work = nest.fold(value), 2.0 * _volume(dot, tiles) * times * programs
        flops += work
        if fold.operand == "float32" and fold.precision == "ieee":
            ieee += work
        else:
            tensor += work / _RATE[fold.operand]
    slower = _slower([dot for _, dot, _ in found], tiles, config)
    slower += _slower_loops(nest, config, several=len(found) > 1)
    ahead = 1 if config.reduction == "held" else max(1, config.num_stages - 1)
    return Products(flops, tensor, ieee, slower, len(found) > 1, ahead)


# How much slower than its work alone a kernel runs: exp of a sum of these, fitted by least squares
# to 675 kernels of eight workloads timed on an H200, Triton 3.6. With a workload left out, the best
# of the ten configs it ranks first is within 9% of the best of all in seven of the eight.
_ALWAYS = -0.08  # the best configs are about a tenth faster than the fit says
_SEVERAL = 0.351  # more than one product
_POINTERS = 0.068  # operands read by pointers, not by descriptors
_TWO_LOOPS = 0.062  # nested loops not run as one
_HELD_PERSISTENT = 0.367  # a persistent grid without a loop to overlap
_ONE_STAGE, _TWO_STAGES = 0.156, 0.123
_SHORT = 0.098  # for each halving of the summed block below 64
_FEW_WARPS = -0.169  # for each halving of the resident warps below 16, of several products
_SPILLED = 0.128  # for each 100 bytes a thread
_SMALL = 0.138  # for each halving of the reuse of an operand below 96
_ARITHMETIC = 0.794  # times the arithmetic's share
# Fitted to 501 kernels of five workloads, training steps among them, the weights above kept. With a
# workload left out, the mean regret of the model's choice falls from 28% to 16%.
_THIN = 0.239  # for each halving of the rows of a tile below 16 for each warp
_STORING = 0.281  # stores within a loop
_WAITING = 0.243  # of several products: each operand of a loop beyond two, none loaded ahead


# A single product: a program waits for its first loads, and once more in every turn of its loop;
# other programs of the SM hide a part of that; what it computes besides overlaps with little.
# Fitted, the weights above kept, to 720 kernels of 43 groups timed on H200s. The workloads left out
# in turn, the correlation within a group rises from 0.43 to 0.72, the mean error falls from 28% to
# 13% and the mean regret from 18% to 5%.
_WAIT_S = 5.2e-6
_TURN = 0.123  # of that, for each turn of the loop whose loads are not under way ahead
_NEXT = 0.58  # of that, for every later wave, shared by the programs of an SM
_L2_ALONE = 0.23
_BESIDE = 3.1  # times the arithmetic
_ALONE, _CONFIG, _ALONE_SPILLED = -0.408, 0.517, 0.1
# Several products, each of which waits for the one before: fitted to 310 kernels of 13 groups. With
# a workload left out the mean regret of attention falls from 38% to 18%.
_CHAINED_S = 35e-6


@dataclass(frozen=True, slots=True)
class Waiting:
    """What hides latency. resident: programs on an SM; warps: of all of them; waves: blocks over
    what the device holds at once; turns: of one program's loops."""

    resident: int
    warps: int
    waves: float
    turns: float


def tensor_s(products: Products, device: DeviceProfile) -> float:
    """Seconds of all products at the rate of the vendor's best."""
    plain = 2.0 * device.fma_rate * device.clock_hz * device.sm_count * 0.6
    return products.tensor / device.tensor_flops + products.ieee / plain


def _slower(found: Sequence[Dot], tiles: Tiles, config: Config) -> float:
    pairs = [(tiles.blocks[dot.m], tiles.blocks[dot.n]) for dot in found]
    reuse = sum(2.0 * m * n / (m + n) for m, n in pairs) / len(pairs)
    thin = sum(_halvings(16 * config.num_warps, max(16, m)) for m, _ in pairs) / len(pairs)
    looped = config.reduction != "held"
    return (
        _ALWAYS
        + _POINTERS * (config.access == "pointer")
        + _TWO_LOOPS * (config.reduction == "nested" and not config.flatten)
        + _HELD_PERSISTENT * (config.programs > 0 and not looped)
        + _ONE_STAGE * (looped and config.num_stages == 1 and len(found) == 1)
        + _TWO_STAGES * (looped and config.num_stages == 2)
        + _SHORT * _halvings(64, min(tiles.blocks[dot.k] for dot in found))
        + _SMALL * _halvings(96, reuse)
        + _THIN * thin
    )


def _slower_loops(nest: Nest, config: Config, several: bool) -> float:
    """By what is loaded and stored within loops."""
    inside = [item for item, loops in nest.walk() if loops]
    stores = any(isinstance(item, Store) for item in inside)
    loads = sum(isinstance(item, Step) and item.value in nest.loads for item in inside)
    waits = several and config.reduction == "loop" and config.num_stages == 1
    return _STORING * stores + _WAITING * (max(0, loads - 2) if waits else 0)


@dataclass(frozen=True, slots=True)
class Alone:
    """Seconds of a kernel's parts, each by itself and at its best."""

    memory_s: float
    l2_s: float
    tensor_s: float
    arithmetic_s: float


def seconds(products: Products, waiting: Waiting, spills: int, alone: Alone) -> float:
    """Seconds of a kernel with matrix products. spills: bytes a thread."""
    spilled = min(2.0, spills / 100)
    if not products.several:
        return _single(products, waiting, spilled, alone)
    base = max(alone.memory_s, 0.6 * alone.l2_s, alone.tensor_s) + 0.4 * alone.arithmetic_s
    slower = (
        products.slower
        + _SEVERAL
        + _FEW_WARPS * _halvings(16, waiting.warps)
        + _SPILLED * spilled
        + _ARITHMETIC * alone.arithmetic_s / base
    )
    return base * math.exp(slower) + _CHAINED_S


def _single(products: Products, waiting: Waiting, spilled: float, alone: Alone) -> float:
    later = _NEXT * max(0.0, waiting.waves - 1) / max(1, waiting.resident)
    waits_s = _WAIT_S * (1 + _TURN * waiting.turns / products.ahead) * (1 + later)
    least_s = max(alone.memory_s, alone.tensor_s)
    base = max(least_s, _L2_ALONE * alone.l2_s) + _BESIDE * alone.arithmetic_s + waits_s
    slower = _ALONE + _CONFIG * products.slower + _ALONE_SPILLED * spilled
    return max(least_s, base * math.exp(slower))


def _halvings(usual: float, found: float) -> float:
    return max(0.0, math.log2(usual / found))


def _volume(dot: Dot, tiles: Tiles) -> int:
    return tiles.blocks[dot.m] * tiles.blocks[dot.n] * tiles.blocks[dot.k]


@once
def staged_bytes(nest: Nest, tiles: Tiles, num_stages: int) -> int:
    """Shared memory for the loaded operands: in the innermost loop one tile for every stage."""
    staged = 0
    operands = {
        r: nest.fold(c) for c in nest.contractions if tiles.dot(c) for r in nest.values[c].reads
    }
    for item, loops in nest.walk():
        if not isinstance(item, Step) or item.value not in operands:
            continue
        size = math.prod(tiles.blocks[a] for a in nest.live[item.value])
        size *= itemsize(operands[item.value].operand)
        loaded = isinstance(nest.values[item.value].kind, Load)
        inner = bool(loops) and not any(isinstance(each, Loop) for each in loops[-1].body)
        staged += size * (max(2, num_stages) if loaded and inner else 1) if loaded else 0
    return staged


def vendor_s(graph: Graph, node: int, device: DeviceProfile) -> float:
    """Seconds of the vendor's product for a contraction of a graph."""
    this = graph.nodes[node]
    contraction, named = row(this), bound(this)
    assert isinstance(contraction, Contraction)
    assert this.type is not None
    left = graph.nodes[_ref(named[contraction.left])].type
    assert left is not None
    work = 2.0 * this.type.numel * left.shape[-1]
    rate = device.tensor_flops * device.vendor
    if left.dtype == "float32":
        tf32 = dict(this.kwargs).get("precision") == "tf32"
        rate *= 0.5 if tf32 else 0.07
    moved = sum(t.nbytes for t in (graph.nodes[i].type for i in this.inputs) if t)
    moved += this.type.nbytes
    # Blocks of 128 x 128, one for each SM at a time: a small product leaves SMs idle.
    rows, columns = this.type.shape[-2:]
    blocks = this.type.numel / (rows * columns) * math.ceil(rows / 128) * math.ceil(columns / 128)
    waves = blocks / device.sm_count
    idle = math.ceil(waves) / waves
    return max(device.stream_s(moved), device.launch_s + work / rate * min(idle, 8.0))


def fastest_s(graph: Graph, node: int, device: DeviceProfile) -> float:
    """Seconds below which nothing here predicts a contraction of a graph, whoever runs it."""
    this = graph.nodes[node]
    contraction, named = row(this), bound(this)
    assert isinstance(contraction, Contraction)
    left = graph.nodes[_ref(named[contraction.left])].type
    assert this.type is not None
    assert left is not None
    rate = device.tensor_flops * _RATE.get(left.dtype, 1.0)
    least = math.exp(_ALWAYS) * min(1.0, device.generated)
    return 2.0 * this.type.numel * left.shape[-1] / rate * least


def _ref(argument: object) -> int:
    assert isinstance(argument, Ref)
    return argument.node
