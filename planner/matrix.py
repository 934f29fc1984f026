"""Matrix products of tiles: what they cost on tensor cores, and what they stage in shared memory."""

from __future__ import annotations

import math

from .codegen.access import Dot, Tiles
from .config import Config
from .device import DeviceProfile
from .graph import Graph, Ref, itemsize
from .nest import Nest
from .ops import Contraction, bound, row
from .place import Carry, Loop, Step
from .values import Load

_RATE = {"float16": 1.0, "bfloat16": 1.0, "float32": 0.5}
"""By operand dtype, times the 16-bit rate; float32 stands for tf32."""

_VENDOR = 0.94
"""Of `tensor_flops` that the vendor's product reaches where it is large."""


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


def flops(nest: Nest, tiles: Tiles) -> float:
    """Operations of one program, padding included."""
    return sum(2.0 * _volume(dot, tiles) * times for _, dot, times in dots(nest, tiles))


def seconds(
    nest: Nest, tiles: Tiles, config: Config, device: DeviceProfile, resident: int
) -> float:
    """Seconds that the tensor cores of one SM take for one program alone."""
    found = 0.0
    per_sm = device.tensor_flops / device.sm_count
    for value, dot, times in dots(nest, tiles):
        fold = nest.fold(value)
        rate = _RATE[fold.operand]
        if fold.operand == "float32" and fold.precision == "ieee":
            rate = 2.0 * device.fma_rate * device.clock_hz / per_sm * 0.5
        work = 2.0 * _volume(dot, tiles) * times
        found += work / (per_sm * rate * _efficiency(dot, tiles, config, resident))
    return found


def _volume(dot: Dot, tiles: Tiles) -> int:
    return tiles.blocks[dot.m] * tiles.blocks[dot.n] * tiles.blocks[dot.k]


def _efficiency(dot: Dot, tiles: Tiles, config: Config, resident: int) -> float:
    """Of the vendor's rate that products of such tiles reach: small ones wait for shared memory,
    those with one warp group on an SM for each other."""
    m, n = tiles.blocks[dot.m], tiles.blocks[dot.n]
    reuse = 2.0 * m * n / (m + n)  # operations for each element of an operand
    small = reuse / (reuse + 24.0)
    busy = min(1.0, 0.55 + 0.225 * (resident * config.num_warps / 4 - 1))
    short = 1.0 if tiles.blocks[dot.k] >= 64 else 0.85
    return small * busy * short


def staged_bytes(nest: Nest, tiles: Tiles, config: Config) -> int:
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
        staged += size * (max(2, config.num_stages) if loaded and inner else 1) if loaded else 0
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
    rate = device.tensor_flops * _VENDOR
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


def _ref(argument: object) -> int:
    assert isinstance(argument, Ref)
    return argument.node
