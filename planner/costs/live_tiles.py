"""Registers of a kernel that multiplies or reduces what it has multiplied: tiles alive at once.

A tile waits whole where all warps meet: results of products while others run, what was loaded for
what follows, and what is read behind the next meeting. Between meetings the compiler works through
a tile a few elements at a time, so that little of its intermediate results is alive.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from ..graph.dtypes import itemsize
from ..graph.op import Op
from ..tiles.instructions import REDUCTIONS, EpilogueSubtiles, Evaluation, Loops, Mma
from ..tiles.program import TileProgram, by_body
from ..values.values import Choice, Compute, Load
from .chains import feed_each_other, repeated
from .tile_cache import once

Steps: TypeAlias = Sequence[tuple[Evaluation, Loops]]

# Rounded from least absolute errors of 748 kernels compiled for sm_90 by Triton 3.6, of 160 groups
# with several products or sums of one; those that spill count by what they spill. Of 392 of them
# that were timed 56% are within 15% or 8 registers, 44% by what was counted before; spills are
# expected of 12 that spill nothing, not of 38, and of 19 of 35 that spill over 128 bytes, not 22.
_BASE, _PERSISTENT = 30.0, 16.0
_OPERAND, _BEFORE = 0.3, 1.4  # What is computed for a product, in its loop and without one.
_LOADED, _LOADED_IN_LOOP = 0.63, 1.35  # What else is loaded, from then to its last use.
_WAITING = 0.78  # What is computed before all warps meet, and read later.
_PASSING = 0.4  # Other intermediate results.
_UNIT = 8  # What is nearer each other is the same: registers are given out by so many.
_PIECES = 3.0  # Of what a warp without a group reads for a product at once.
# Of vectors along the columns of a product that its results are computed with, such as a bias or
# the scale of a batch norm: a lane of a warp has a fourth of the columns. And of a result that a
# function of many steps is computed of, GELU say. Of 256 kernels of several products timed on an
# H100 59% of the registers are right, 55% without, and a spill is foreseen of 11 of the 18 that
# spill over 100 bytes, without of 2.
_COLUMNS, _MOST_COLUMNS, _COSTLY = 0.25, 96.0, 0.25
_LANES_OF_ROWS = 4  # Lanes of a warp that share a row's columns.
# Of an operand that a program which walks computes before the loop of its products: the loops over
# a tile and over tiles are one, so what is computed for the next tile waits beside what is in use.
# Of seven kernels of convolutions, batch norm and residual between, timed on an H100, six want 46
# to 105 registers more than without it was expected, and spill.
_NEXT_OPERAND = 1.5
# A convolution that a product multiplies: all neighbours are loaded at once, and the weights of
# each tap stay. Of three kernels of MobileViT's first block compiled for sm_90 that spill 2,496 to
# 2,928 bytes a thread none was foreseen; with six kernels of convolutions alone it took five times
# as long on an H200 as the model said.
TAPS, _OF_VECTOR = 9, 8.0


def registers(program: TileProgram, num_warps: int, persistent: bool) -> float:
    """Registers that a thread wants. persistent: its program walks over several tiles."""
    steps, count = program.evaluations(), len(program.evaluations())
    change = [0.0] * (count + 1)
    for begin, end, words in _alive(program, num_warps):
        change[begin] += words
        change[min(end, count - 1) + 1] -= words
    alive = most = 0.0
    for place, (each, _) in enumerate(steps):
        alive += change[place]
        beside = _pieces(program, each, num_warps) if isinstance(each, Mma) else 0.0
        most = max(most, alive + _PIECES * beside)
    if feed_each_other(program):
        most += _COLUMNS * min(_MOST_COLUMNS, _columns(program))
        most += _COSTLY * _costly(program) / (32 * num_warps)
        most += _NEXT_OPERAND * persistent * _before_loops(program) / (32 * num_warps)
    return _UNIT * round((_BASE + _PERSISTENT * persistent + most) / _UNIT)


def of_neighbours(program: TileProgram, num_warps: int) -> float:
    """Registers of a thread where a product multiplies a convolution of many taps; else 0."""
    neighbours = loaded_neighbours(program)
    if len(neighbours) < TAPS:
        return 0.0
    tiles = sum(map(program.tile, (*neighbours, *program.mmas)))
    return _BASE + tiles / (32 * num_warps) + _OF_VECTOR * _vectors(program)


@once
def loaded_neighbours(program: TileProgram) -> tuple[int, ...]:
    """The tiles that are loaded of the one input that most are loaded of, operands left out: the
    neighbours of a convolution that a product multiplies."""
    by_input: dict[int, list[int]] = {}
    nest, blocks = program.nest, program.blocks
    for value, source in _loaded_in_loops(program):
        if value not in program.operands and len(blocks.dims(nest.live[value])) > 1:
            by_input.setdefault(source, []).append(value)
    most: list[int] = []
    for found in by_input.values():
        most = max(most, found, key=len)
    return tuple(most)


@once
def _vectors(program: TileProgram) -> int:
    """Values along one axis that are loaded in loops: a tap's weights, a batch norm's scale."""
    nest, blocks = program.nest, program.blocks
    loaded = (nest.live[value] for value, _ in _loaded_in_loops(program))
    return sum(len(blocks.dims(axes)) == 1 for axes in loaded)


@by_body
def _loaded_in_loops(program: TileProgram) -> list[tuple[int, int]]:
    """What is loaded in loops, each with the input that it is loaded of."""
    found = []
    for each, loops in program.evaluations():
        kind = program.nest.values[each.value].kind
        if loops and isinstance(kind, Load):
            found.append((each.value, kind.input))
    return found


@once
def _columns(program: TileProgram) -> float:
    """Elements of vectors along columns that a lane has: those that tiles are computed with."""
    live, blocks, values = program.nest.live, program.blocks, program.nest.values
    rows = {mma.m for mma in program.mmas.values()}
    steps = program.evaluations()
    tiles = {axes: len(blocks.dims(axes)) > 1 for axes in {live[each.value] for each, _ in steps}}
    read = {r for each, _ in steps if tiles[live[each.value]] for r in values[each.value].reads}
    axes = (blocks.dims(live[source]) for source in read if source not in program.operands)
    own = (blocks.sizes[found[0]] for found in axes if len(found) == 1 and found[0] not in rows)
    return sum(own) / _LANES_OF_ROWS


@once
def _costly(program: TileProgram) -> int:
    """Elements of the largest tile of a function of many steps."""
    sizes = (
        program.tile(each.value)
        for each, _ in program.evaluations()
        if isinstance(kind := program.nest.values[each.value].kind, Compute)
        and kind.cost in ("sfu", "libdevice", "div")
        and len(program.blocks.dims(program.nest.live[each.value])) > 1
    )
    return max(sizes, default=0)


@once
def _before_loops(program: TileProgram) -> int:
    """Elements of operands that are computed outside of loops for products inside, where nothing
    else is reduced."""
    steps, values = program.evaluations(), program.nest.values
    if len(program.reductions) > len(program.mmas):
        return 0
    looped = {s for e, loops in steps if loops and isinstance(e, Mma) for s in (e.source, e.times)}
    return sum(
        program.tile(each.value)
        for each, loops in steps
        if not loops and each.value in looped and isinstance(values[each.value].kind, Compute)
    )


class _Lifetime(NamedTuple):
    """Of a value the first and the last step at which it is alive. axes: of its tile; weight: the
    part of that which is in registers; size: words of an element."""

    value: int
    axes: frozenset[int]
    begin: int
    end: int
    weight: float
    size: float
    share: float
    """What an epilogue in parts has of the tile at once."""


def _alive(program: TileProgram, num_warps: int) -> Iterator[tuple[int, int, float]]:
    """Of every value the first and the last step at which it is alive, and its words."""
    threads, copies = 32 * num_warps, _copies(program, num_warps)
    lifetimes = _lifetimes(program)
    tiles = {each.axes: program.blocks.elements(each.axes) for each in lifetimes}
    for own, axes, begin, end, weight, size, share in lifetimes:
        words = copies.get(own, 1.0) * tiles[axes] / threads * share
        yield begin, end, weight * words * size


@by_body
def _lifetimes(program: TileProgram) -> list[_Lifetime]:
    """Of the values that take registers, whatever their tiles are."""
    nest, mmas, steps = program.nest, program.mmas, program.evaluations()
    last = {r: place for place, (i, _) in enumerate(steps) for r in nest.values[i.value].reads}
    places = {i.value: place for place, (i, _) in enumerate(steps)}
    for output in nest.outputs:
        last[output.value] = max(last.get(output.value, -1), places[output.value] + 1)
    meetings = [place for place, (i, _) in enumerate(steps) if isinstance(i, REDUCTIONS)]
    of_part = _share_of_part(program)
    handed = _handed_on(program, steps)
    read_by: dict[int, int] = {}
    for product, mma in mmas.items():
        for operand in (mma.source, mma.times):
            read_by.setdefault(operand, product)
    begun: dict[int, int] = {}
    for place, (each, loops) in enumerate(steps):
        for value in (*(c for loop in loops for c in loop.carries), each.value):
            begun.setdefault(value, place)
    found: list[_Lifetime] = []
    for place, (each, loops) in enumerate(steps):
        own, kind, axes = each.value, nest.values[each.value].kind, program.tile_axes(each.value)
        end, share = last.get(own, -1), of_part(each)
        if own in mmas:
            end = places[handed[own]] - 1 if own in handed else end
            found.append(_Lifetime(own, axes, begun[own], max(end, begun[own]), 1.0, 1.0, 1.0))
        elif isinstance(kind, Load):
            if own not in program.operands:
                weight = _LOADED_IN_LOOP if loops else _LOADED
                size = max(0.5, itemsize(kind.dtype) / 4)
                found.append(_Lifetime(own, axes, place, max(end, place), weight, size, share))
        elif isinstance(kind, (Compute, Choice)) and nest.values[own].dtype != "bool":
            if own in read_by:
                size = itemsize(nest.fold(read_by[own]).operand) / 4
                weight = _OPERAND if loops else _BEFORE
                found.append(_Lifetime(own, axes, place, max(end, place), weight, size, share))
            elif any(place < meeting < end for meeting in meetings):
                found.append(_Lifetime(own, axes, place, end, _WAITING, 1.0, share))
            elif end > place:
                found.append(_Lifetime(own, axes, place, end - 1, _PASSING, 1.0, share))
    return found


def _handed_on(program: TileProgram, steps: Steps) -> Mapping[int, int]:
    """Products without a loop that Triton begins the next with, as the two are added."""
    values, found = program.nest.values, dict[int, int]()
    straight = {i.value for i, loops in steps if isinstance(i, Mma) and not loops}
    readers = Counter(r for each in values for r in each.reads)
    for each in values:
        added = isinstance(each.kind, Compute) and each.kind.op is Op.ADD
        if added and len(each.reads) == 2 and straight.issuperset(each.reads):
            first, then = sorted(each.reads)
            if first != then and readers[first] == 1:
                found[first] = then
    return found


def _share_of_part(program: TileProgram) -> Callable[[Evaluation], float]:
    """What an epilogue in parts has of a tile at once."""
    epilogue = program.body[-1]
    if not isinstance(epilogue, EpilogueSubtiles):
        return lambda each: 1.0
    behind, share = set(map(id, epilogue.bodies[0])), 1.0 / len(epilogue.bodies)
    return lambda each: share if id(each) in behind else 1.0


def _copies(program: TileProgram, num_warps: int) -> Mapping[int, float]:
    """How many warps hold the same part of a value: of a product, and of what is computed of it."""
    depth, computed = _depths(program)
    found = {value: repeated(program, num_warps, depth, value) for value in program.mmas}
    for value, reads in computed:
        found[value] = max((found.get(read, 1.0) for read in reads), default=1.0)
    return found


@by_body
def _depths(program: TileProgram) -> tuple[dict[int, int], list[tuple[int, tuple[int, ...]]]]:
    """The loops around each value; and the computed values, with what they read."""
    values, steps = program.nest.values, program.evaluations()
    own = (values[each.value] for each, _ in steps)
    computed = [(each.id, each.reads) for each in own if isinstance(each.kind, Compute)]
    return {each.value: len(loops) for each, loops in steps}, computed


def _pieces(program: TileProgram, mma: Mma, num_warps: int) -> float:
    """The parts of operands that a warp without a group loads at once, in words."""
    if mma.suits_warpgroup:
        return 0.0
    sizes = program.blocks.sizes
    return (min(sizes[mma.m], 64) + sizes[mma.n]) * 16 / (64 * num_warps)
