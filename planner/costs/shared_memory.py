"""Shared memory of matrix products: their operands, one tile for every load that is under way."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from ..graph.dtypes import itemsize
from ..graph.sizes import varies
from ..memo import by_identity
from ..nests.nest import Nest
from ..tiles.alignment import vector_width
from ..tiles.instructions import (
    ONES,
    Evaluation,
    Loops,
    Mma,
    MmaUnit,
    OnesMma,
    TileLoad,
    TileLoop,
    TileStore,
)
from ..tiles.passes.choose_access import describes_store
from ..tiles.program import TileProgram, by_body
from ..values import values
from .access_classes import alignments
from .meeting import LEAST_COPY
from .tile_cache import once


@dataclass(frozen=True, slots=True)
class StagingNeeds:
    """The decisions of a config on which shared memory depends. described: it stores by descriptors
    where it can. walks: by a persistent grid. subtiles: the parts of its epilogue."""

    num_warps: int
    described: bool = False
    walks: bool = False
    subtiles: int = 1


@once
def staged_bytes(program: TileProgram, run: StagingNeeds) -> int:
    """Shared memory for the operands of mmas, and for what is moved while they lie there. What a
    loop loads ahead has a place for every stage (one less where warps read operands into registers
    first, or where it is no operand but takes part in one); what is loaded before a loop lies there
    until it ends; what is not loaded ahead makes room for what comes after it."""
    within, known = _places(program)
    standing: dict[int, int] = {}
    ahead: dict[int, dict[int, int]] = defaultdict(dict)  # By loop, of each load.
    alone: dict[tuple[int, ...], int] = {}
    for each in program.reductions.values():
        if isinstance(each, OnesMma):
            # The same ones for all such sums.
            standing[-1] = 2 * program.blocks.sizes[each.k] * ONES
        if not isinstance(each, Mma):
            continue
        here, now = within[each.value], 0
        inside = tuple(map(id, here))
        stages = _stages(program, here[-1]) if here else 1
        for load, size in _loads(program, each).items():
            # What several loops read is loaded in each of them.
            own = known.get((load, inside))
            there = here if own is not None else within[load]
            if not there and here:
                standing[load] = size
            elif own is not None and stages > 1:
                read = each.unit is MmaUnit.WARPGROUP and load in (each.source, each.times)
                count = max(1, stages - (not read))
                if isinstance(own, TileLoad) and own.twice:
                    count += stages - 1
                ahead[inside[-1]][load] = size * count
            else:
                now += size
        if stages > 1:
            for load, size in _taking_part(program, each, inside).items():
                ahead[inside[-1]].setdefault(load, size * (stages - 1))
        now += _copied(program, each, within)
        alone[inside] = max(alone.get(inside, 0), now)
    kept = sum(size for loop in ahead.values() for size in loop.values())
    most = max(alone.values(), default=0)
    begun = frozenset(load for loop in ahead.values() for load in loop)
    stored, exchanged = _moved_within(program, run, begun)
    if kept:  # The places of a loop's stores are made before it, beside those of its loads.
        return sum(standing.values()) + kept + stored + max(most, exchanged)
    return sum(standing.values()) + max(most, stored, exchanged)


@once
def _places(
    program: TileProgram,
) -> tuple[dict[int, Loops], dict[tuple[int, tuple[int, ...]], Evaluation]]:
    """The loops around each value, the last ones where several loops evaluate it; and each by value
    and loops."""
    steps = []
    single = {id(each): _is_single(program, each) for each in _all_loops(program)}
    for each, loops in program.evaluations():
        if any(single[id(loop)] for loop in loops[1:]):
            loops = _kept(program, each.value, loops, single)
        steps.append((each, loops))
    known = {(each.value, tuple(map(id, loops))): each for each, loops in steps}
    return {each.value: loops for each, loops in steps}, known


@by_body
def _all_loops(program: TileProgram) -> list[TileLoop]:
    every = {id(loop): loop for _, loops in program.evaluations() for loop in loops}
    return list(every.values())


def _kept(program: TileProgram, value: int, loops: Loops, single: Mapping[int, bool]) -> Loops:
    """The loops that Triton leaves around a value. One of a single turn becomes a part of the loop
    around it; what then is the same in each turn of that is evaluated before it. single: by the id
    of a loop, whether it has a single turn."""
    kept = loops[:1] + tuple(each for each in loops[1:] if not single[id(each)])
    return kept if kept[-1].axis in program.nest.live[value] else kept[:-1]


def _is_single(program: TileProgram, loop: TileLoop) -> bool:
    """Whether a loop is known to have one turn."""
    extent, limits = program.nest.axes[loop.axis].extent, program.nest.limits.get(loop.axis)
    return not varies(extent) and not limits and program.blocks.count(loop.axis) == 1


def _stages(program: TileProgram, loop: TileLoop) -> int:
    """Turns of a loop whose loads are under way at once: where the loops in it have a single turn,
    it is the innermost one."""
    inner = _inner_loops(loop)
    if not all(_is_single(program, each) for each in inner):
        return loop.stages
    return max(loop.stages, *(each.stages for each in inner), 1)


@by_identity(64)
def _inner_loops(loop: TileLoop) -> list[TileLoop]:
    return [each for each in loop.body if isinstance(each, TileLoop)]


def _taking_part(program: TileProgram, mma: Mma, inside: tuple[int, ...]) -> dict[int, int]:
    """Bytes of the loads of a loop from which an operand of an mma is computed in it, behind sums
    too. Triton begins all of them ahead that it can copy, 4 bytes of a thread at least."""
    (_, known), found = _places(program), dict[int, int]()
    alike_of, widths = alignments(program.nest), dict[object, int]()
    left = [mma.source, mma.times]
    seen = set(left)
    while left:
        value = left.pop()
        each = known.get((value, inside))
        if each is None:
            continue
        if not isinstance(each, TileLoad):
            reads = program.nest.values[value].reads
            left += (read for read in reads if read not in seen)
            seen.update(reads)
        elif program.elements(value) > 1:
            size, own = itemsize(each.access.type.dtype), id(each.access)
            alike = alike_of.get(own, own)
            if alike not in widths:
                widths[alike], _ = vector_width(each.access, program.blocks)
            if widths[alike] * size >= LEAST_COPY:
                found[value] = program.elements(value) * size
    return found


def _moved_within(
    program: TileProgram, run: StagingNeeds, begun: frozenset[int]
) -> tuple[int, int]:
    """Bytes of the tiles that loops store by descriptors (those of one shape and type share a
    place), and the most through which threads exchange a tile, because memory is read and written
    by other threads than an mma gives it to. begun: loads that shared memory has a place for. An
    outer loop is taken as run as one with its inner loop: operands of the next turn are under way
    while results are stored."""
    stored: dict[tuple[int, ...], int] = {}
    exchanged, beside = 0, _beside_mmas(program)
    for each, loops in program.walk():
        if not (loops or run.walks) or not isinstance(each, (TileLoad, TileStore)):
            continue
        tile = program.blocks.dims(each.access.axes)
        if len(tile) < 2:
            continue
        parts = run.subtiles if not loops and isinstance(each, TileStore) else 1
        elements = program.blocks.elements(tile) // parts
        size = itemsize(each.access.type.dtype)
        if _is_described(program, run, each):
            stored[(*tile, size)] = elements * size
        elif (value := _value(program, each)) in beside and value not in begun:
            exchanged = max(exchanged, _exchanged(elements, size, run.num_warps))
    return sum(stored.values()), exchanged


def _is_described(program: TileProgram, run: StagingNeeds, moved: TileLoad | TileStore) -> bool:
    if not run.described or not isinstance(moved, TileStore):
        return False
    return describes_store(program, moved, program.blocks) is not None


@by_body
def _beside_mmas(program: TileProgram) -> set[int]:
    """The values computed from results of mmas, and the loads that they are computed with."""
    found = set(program.mmas)
    for value in program.nest.values:
        if isinstance(value.kind, (values.Compute, values.Choice)) and found & {*value.reads}:
            found |= {value.id} | _behind(program.nest, value.id)
    return found


def _value(program: TileProgram, moved: TileLoad | TileStore) -> int:
    return moved.value if isinstance(moved, TileLoad) else program.nest.outputs[moved.output].value


def _exchanged(elements: int, size: int, num_warps: int) -> int:
    """Bytes through which threads exchange a tile: as many as it has elements, but 64 of each
    thread at least, if it has so many. Of 112 kernels compiled by Triton 3.6 none takes over 1,040
    more."""
    threads = 32 * num_warps
    return max(elements, min(elements * size, 64 * threads))


@once
def stored_bytes(program: TileProgram, subtiles: int) -> int:
    """Shared memory through which the results of mmas are stored, when all else has left it: tiles
    that a thread does not hold in rows."""
    stored = 0
    for each in program.body:
        if isinstance(each, TileStore) and len(each.access.axes) > 1:
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
        for load in _behind(nest, operand):
            if program.elements(load) == whole:
                found[load] = whole * itemsize(nest.loads[load].type.dtype)
    return found


def _copied(program: TileProgram, mma: Mma, within: Mapping[int, Loops]) -> int:
    """Bytes of computed operands. The left one may be read from the registers that it was computed
    in: not where each warp has other columns of it, nor where its own product had a loop inside."""
    nest = program.nest
    sides = [mma.right]
    apart = any(
        len(within[c]) > len(within[mma.value])
        for c in nest.contractions
        if c != mma.value and c in within
    )
    if not mma.suits_warpgroup or apart:
        sides.append(mma.left)
    computed = [v for v in sides if v not in nest.loads]
    return sum(map(program.elements, computed)) * itemsize(nest.fold(mma.value).operand)


def _behind(nest: Nest, value: int) -> frozenset[int]:
    """The loads that a value is computed from, without sums between."""
    known = _known_behind(nest)
    if value not in known:
        found: set[int] = set()
        left, seen = [value], {value}
        while left:
            this = nest.values[left.pop()]
            if isinstance(this.kind, values.Load):
                found.add(this.id)
            elif isinstance(this.kind, (values.Compute, values.Choice)):
                left += (each for each in this.reads if each not in seen)
                seen.update(this.reads)
        known[value] = frozenset(found)
    return known[value]


@by_identity(64)
def _known_behind(nest: Nest) -> dict[int, frozenset[int]]:
    return {}


def of_warp(m: int, n: int, num_warps: int) -> tuple[float, float]:
    """Rows and columns of a tile of a product that each warp multiplies by itself."""
    down = across = 1
    while down * across < num_warps:
        if m * across >= n * down and down * 16 < m:
            down *= 2
        else:
            across *= 2
    return max(16, m / down), max(8, n / across)
