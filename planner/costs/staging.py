"""What matrix products stage in shared memory: their operands, a tile for every load under way."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping

from ..codegen.access import ONES, Tiles
from ..graph.dtypes import itemsize
from ..nests.nest import Nest
from ..nests.placement import Carry, Loop, Step, Store
from ..values.values import Choice, Compute, Fold, Load
from .tile_cache import once


@once
def staged_bytes(nest: Nest, tiles: Tiles, num_stages: int, num_warps: int) -> int:
    """Shared memory for the operands of matrix products. What a loop loads ahead has a place for
    every stage (one less where warps read operands into registers first); what is loaded before a
    loop lies there until it ends; what is not loaded ahead makes room for what comes after it."""
    if not nest.contractions:
        return 0
    steps = [(i, loops) for i, loops in nest.walk() if isinstance(i, (Step, Carry))]
    places = [(i.value, tuple(id(loop) for loop in loops)) for i, loops in steps]
    within, known = dict(places), set(places)
    innermost = {
        id(loop): not any(isinstance(each, Loop) for each in loop.body)
        for _, loops in steps
        for loop in loops
    }
    standing: dict[int, int] = {}
    ahead: dict[int, dict[int, int]] = defaultdict(dict)  # By loop, of each load.
    alone: dict[tuple[int, ...], int] = {}
    for item, _ in steps:
        kind = nest.values[item.value].kind
        if isinstance(kind, Fold) and tiles.is_by_ones(item.value):
            (k,) = tiles.dims(nest.reduced(kind))
            standing[-1] = 2 * tiles.blocks[k] * ONES  # The same ones for all such sums.
        dot = tiles.dot(item.value) if item.value in nest.contractions else None
        if dot is None:
            continue
        grouped = tiles.by_group(dot, num_warps)
        here, now = within[item.value], 0
        for load, size in _loads(nest, tiles, item.value).items():
            # What several loops read is loaded in each of them.
            there = here if (load, here) in known else within[load]
            if not there and here:
                standing[load] = size
            elif num_stages > 1 and there == here and here and innermost[here[-1]]:
                count = max(1, num_stages - (not grouped))
                if tiles.is_loaded_twice(load, num_warps):
                    count += num_stages - 1
                ahead[here[-1]][load] = size * count
            else:
                now += size
        now += _copied(nest, tiles, item.value, within, grouped)
        alone[here] = max(alone.get(here, 0), now)
    kept = sum(size for loop in ahead.values() for size in loop.values())
    most = max(alone.values(), default=0)
    return sum(standing.values()) + kept + most


@once
def stored_bytes(nest: Nest, tiles: Tiles, subtiles: int) -> int:
    """Shared memory through which the results of products are stored, when all else has left it:
    tiles that a thread does not hold in rows."""
    stored = 0
    for item in nest.body:
        if isinstance(item, Store) and len(nest.stores[item.output].axes) > 1:
            access = nest.stores[item.output]
            elements = math.prod(tiles.blocks[a] for a in access.axes)
            stored += elements * itemsize(access.type.dtype)
    return stored // subtiles


def _loads(nest: Nest, tiles: Tiles, product: int) -> dict[int, int]:
    """Bytes of each load that is an operand of a product, or that one is computed from."""
    fold, found = nest.fold(product), {}
    for operand in nest.values[product].reads:
        if isinstance(nest.values[operand].kind, Load):
            found[operand] = _elements(nest, tiles, operand) * itemsize(fold.operand)
            continue
        whole = _elements(nest, tiles, operand)
        for load in _behind(nest, operand):
            kind = nest.values[load].kind
            if isinstance(kind, Load) and _elements(nest, tiles, load) == whole:
                found[load] = whole * itemsize(kind.dtype)
    return found


def _copied(
    nest: Nest, tiles: Tiles, product: int, within: Mapping[int, tuple[int, ...]], grouped: bool
) -> int:
    """Bytes of computed operands. The left one may be read from the registers that it was computed
    in: not where each warp has other columns of it, nor where its own product had a loop inside."""
    fold = nest.fold(product)
    assert fold.times is not None
    sides = [fold.times]
    apart = any(
        len(within[c]) > len(within[product])
        for c in nest.contractions
        if c != product and c in within
    )
    if not grouped or apart:
        sides.append(fold.source)
    computed = (v for v in sides if isinstance(nest.values[v].kind, (Compute, Choice)))
    return sum(_elements(nest, tiles, v) * itemsize(fold.operand) for v in computed)


def _behind(nest: Nest, value: int) -> set[int]:
    """The loads that a value is computed from, without sums between."""
    found: set[int] = set()
    left = [value]
    while left:
        this = left.pop()
        kind = nest.values[this].kind
        if isinstance(kind, Load):
            found.add(this)
        elif isinstance(kind, (Compute, Choice)):
            left.extend(nest.values[this].reads)
    return found


def _elements(nest: Nest, tiles: Tiles, value: int) -> int:
    return math.prod(tiles.blocks[a] for a in nest.live[value])


def of_warp(m: int, n: int, num_warps: int) -> tuple[float, float]:
    """Rows and columns of a tile of a product that each warp multiplies by itself."""
    down = across = 1
    while down * across < num_warps:
        if m * across >= n * down and down * 16 < m:
            down *= 2
        else:
            across *= 2
    return max(16, m / down), max(8, n / across)
