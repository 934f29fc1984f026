"""Shared memory of matrix products: their operands, one tile for every load that is under way."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from ..graph.dtypes import itemsize
from ..tiles.instructions import ONES, Load, Loops, Mma, OnesMma, Store
from ..tiles.program import TileProgram
from ..values import values
from .tile_cache import once


@once
def staged_bytes(program: TileProgram) -> int:
    """Shared memory for the operands of mmas. What a loop loads ahead has a place for every stage
    (one less where warps read operands into registers first); what is loaded before a loop lies
    there until it ends; what is not loaded ahead makes room for what comes after it."""
    steps = program.evaluations()
    within = {each.value: loops for each, loops in steps}
    known = {(each.value, tuple(map(id, loops))): each for each, loops in steps}
    standing: dict[int, int] = {}
    ahead: dict[int, dict[int, int]] = defaultdict(dict)  # By loop, of each load.
    alone: dict[tuple[int, ...], int] = {}
    for each, _ in steps:
        if isinstance(each, OnesMma):
            # The same ones for all such sums.
            standing[-1] = 2 * program.blocks.sizes[each.k] * ONES
        if not isinstance(each, Mma):
            continue
        here, now = within[each.value], 0
        inside = tuple(map(id, here))
        for load, size in _loads(program, each).items():
            # What several loops read is loaded in each of them.
            own = known.get((load, inside))
            there = here if own is not None else within[load]
            if not there and here:
                standing[load] = size
            elif own is not None and here and here[-1].stages > 1:
                stages = here[-1].stages
                count = max(1, stages - (not each.suits_warpgroup))
                if isinstance(own, Load) and own.twice:
                    count += stages - 1
                ahead[inside[-1]][load] = size * count
            else:
                now += size
        now += _copied(program, each, within)
        alone[inside] = max(alone.get(inside, 0), now)
    kept = sum(size for loop in ahead.values() for size in loop.values())
    most = max(alone.values(), default=0)
    return sum(standing.values()) + kept + most


@once
def stored_bytes(program: TileProgram, subtiles: int) -> int:
    """Shared memory through which the results of mmas are stored, when all else has left it: tiles
    that a thread does not hold in rows."""
    stored = 0
    for each in program.body:
        if isinstance(each, Store) and len(each.access.axes) > 1:
            elements = program.blocks.elements(each.access.axes)
            stored += elements * itemsize(each.access.type.dtype)
    return stored // subtiles


def _loads(program: TileProgram, mma: Mma) -> dict[int, int]:
    """Bytes of each load that is an operand of an mma, or that one is computed from."""
    nest, found = program.nest, dict[int, int]()
    size = itemsize(nest.fold(mma.value).operand)
    for operand in dict.fromkeys((mma.source, mma.times)):
        whole = program.elements(operand)
        if operand in nest.loads:
            found[operand] = whole * size
            continue
        for load in _behind(program, operand):
            if program.elements(load) == whole:
                found[load] = whole * itemsize(nest.loads[load].type.dtype)
    return found


def _copied(program: TileProgram, mma: Mma, within: Mapping[int, Loops]) -> int:
    """Bytes of computed operands. The left one may be read from the registers that it was computed
    in: not where each warp has other columns of it, nor where its own product had a loop inside."""
    nest = program.nest
    sides = [mma.times]
    apart = any(
        len(within[c]) > len(within[mma.value])
        for c in nest.contractions
        if c != mma.value and c in within
    )
    if not mma.suits_warpgroup or apart:
        sides.append(mma.source)
    kinds = (values.Compute, values.Choice)
    computed = [v for v in sides if isinstance(nest.values[v].kind, kinds)]
    return sum(map(program.elements, computed)) * itemsize(nest.fold(mma.value).operand)


def _behind(program: TileProgram, value: int) -> set[int]:
    """The loads that a value is computed from, without sums between."""
    found: set[int] = set()
    left = [value]
    while left:
        this = program.nest.values[left.pop()]
        if isinstance(this.kind, values.Load):
            found.add(this.id)
        elif isinstance(this.kind, (values.Compute, values.Choice)):
            left.extend(this.reads)
    return found


def of_warp(m: int, n: int, num_warps: int) -> tuple[float, float]:
    """Rows and columns of a tile of a product that each warp multiplies by itself."""
    down = across = 1
    while down * across < num_warps:
        if m * across >= n * down and down * 16 < m:
            down *= 2
        else:
            across *= 2
    return max(16, m / down), max(8, n / across)
