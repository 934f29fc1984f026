"""The lines of the L1 cache that a warp's lanes touch at once.

A load or store of a warp is done line by line: neighbours side by side take one line of 128 bytes
together, lanes that each lie in a row of their own take 32. The compiler lays a tile over the
threads so that each has some elements that lie side by side in one of the tensors, at most 16
bytes; of a tensor that is read in strides each of them is an instruction of its own, and its
lanes lie as far apart as those of the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..graph.dtypes import itemsize
from ..nests.linear_forms import Access, Term
from ..tiles.alignment import is_apart, is_copied, is_dense
from ..tiles.blocks import Blocks
from ..tiles.program import TileProgram
from .tile_cache import once
from .traffic import AccessSite, readings, turns, widths

LINE, _LANES = 128, 32  # Bytes, threads of a warp.


@dataclass(slots=True)
class _Site:
    """Accesses of one class in the same loops. tile: the axes of their tile, that along which
    neighbours belong to one thread first; alike: elements that one instruction may move for a
    thread; narrow: it moves one. of_axis: of each of these axes its elements, its terms, those
    that step slowest last, and whether an index decides where neighbours along it lie."""

    access: Access
    first: int | None
    width: int
    alike: int
    narrow: bool
    elements: int
    times: float
    of_axis: list[tuple[int, int, list[Term], bool]]


@once
def _sites(program: TileProgram) -> tuple[list[_Site], list[int]]:
    """The sites of a program, and of each of its `readings` the number of its site."""
    blocks, every = program.blocks, readings(program)
    of_class = {each.number: _tile(each, blocks) for each in {e.number: e for e in every}.values()}
    tiles = [of_class[each.number] for each in every]
    most = dict[tuple[tuple[int, ...], int | None], int]()
    for tile, (width, axis) in zip(tiles, widths(program), strict=True):
        most[tile, axis] = max(width, most.get((tile, axis), 1))
    sites, numbers, known = list[_Site](), list[int](), dict[tuple[int, int], int]()
    for each, tile, (width, axis) in zip(every, tiles, widths(program), strict=True):
        kind = each.number, id(each.loops)
        if kind not in known:
            known[kind] = len(sites)
            # Triton's order where nothing lies side by side: the first axis of the tile.
            first = axis if axis is not None or not tile else tile[0]
            alike = max(most.get((tile, first), 1), most.get((tile, None), 1))
            sites.append(
                _Site(
                    each.access,
                    first,
                    width,
                    alike,
                    axis is not None and _is_narrow(each.access, axis, blocks),
                    math.prod(blocks.sizes[a] for a in tile),
                    turns(each.loops, blocks),
                    _of_axes(each.access, tile, first, blocks),
                )
            )
        numbers.append(known[kind])
    return sites, numbers


def _of_axes(
    access: Access, tile: Sequence[int], first: int | None, blocks: Blocks
) -> list[tuple[int, int, list[Term], bool]]:
    found = []
    for axis in sorted(tile, key=lambda axis: (axis != first, axis)):
        terms = sorted((t for t in access.offset.terms if t.axis == axis), key=lambda t: t.div)
        indexed = axis in access.along and not any(is_dense(term, access) for term in terms)
        found.append((axis, blocks.sizes[axis], terms, indexed))
    return found


@once
def lines_touched(program: TileProgram, num_warps: int) -> float:
    """Lines that the loads and stores of one program touch, each instruction's counted alone."""
    sites, numbers = _sites(program)
    lines = [_lines(site, num_warps) * site.times for site in sites]
    found = 0.0
    for number in numbers:
        found += lines[number]
    return found


@once
def widest(program: TileProgram) -> tuple[int, int | None]:
    """Of what one access moves at once for a thread, most elements; and the axis along which they
    lie, None where none lie side by side."""
    return max(widths(program), key=lambda each: each[0], default=(1, None))


def _is_narrow(access: Access, axis: int, blocks: Blocks) -> bool:
    return is_apart(access, axis, blocks) and not is_copied(access, axis, blocks)


def _tile(each: AccessSite, blocks: Blocks) -> tuple[int, ...]:
    return tuple(a for a in sorted(each.access.axes) if blocks.sizes[a] > 1)


def _lines(site: _Site, num_warps: int) -> float:
    """Of all instructions of one tile."""
    # Elements along the first axis that belong to one thread.
    together = min(site.alike, max(1, site.elements // (_LANES * num_warps)))
    if site.narrow:
        together = 1
    width = min(site.width, together)  # Elements that one instruction moves for a thread.
    instructions = max(1.0, site.elements / (_LANES * width))
    size = itemsize(site.access.type.dtype)
    left, steps = _LANES, list[tuple[int, int]]()
    for axis, extent, terms, indexed in site.of_axis:
        own = together if axis == site.first else 1
        lanes = min(left, max(1, extent // own))
        if indexed:  # rows that an index names, or what lies near
            steps.append((own if site.access.near else LINE, lanes))
        else:
            _add_steps(steps, terms, own, lanes)
        left //= lanes
    run, stretches = width * size, 1
    for step, lanes in sorted([(abs(scale) * size, lanes) for scale, lanes in steps]):
        if step <= max(run, LINE // 2):
            run += step * (lanes - 1)
        else:
            stretches *= lanes
    return instructions * stretches * max(1.0, math.ceil(run / LINE))


def _add_steps(steps: list[tuple[int, int]], terms: Sequence[Term], own: int, lanes: int) -> None:
    """How far neighbours lie apart, in elements, and how many they are: lanes along an axis of
    these terms that each have so many indices of their `own`."""
    for term in terms:
        # Lanes of which several read the same, or that leave the term's range, are fewer.
        lanes = max(1, lanes * own // max(own, term.div))
        most = max(1, term.mod * term.div // max(own, term.div)) if term.mod else lanes
        if min(lanes, most) > 1:
            steps.append((term.scale * max(1, own // term.div), min(lanes, most)))
        own, lanes = max(own, term.div) * min(lanes, most), -(-lanes // most)
