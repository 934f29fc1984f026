"""The lines of the L1 cache that a warp's lanes touch at once.

A load or store of a warp is done line by line: neighbours side by side take one line of 128 bytes
together, lanes that each lie in a row of their own take 32. The compiler lays a tile over the
threads so that each has some elements that lie side by side in one of the tensors, at most 16
bytes; of a tensor that is read in strides each of them is an instruction of its own, and its
lanes lie as far apart as those of the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ..graph.dtypes import itemsize
from ..nests.linear_forms import Access
from ..tiles.alignment import is_apart, is_copied, is_dense
from ..tiles.blocks import Blocks
from ..tiles.program import TileProgram
from .tile_cache import once
from .traffic import AccessSite, readings, turns, widths

LINE, _LANES = 128, 32  # Bytes, threads of a warp.


@once
def lines_touched(program: TileProgram, num_warps: int) -> float:
    """Lines that the loads and stores of one program touch, each instruction's counted alone."""
    blocks, every = program.blocks, readings(program)
    of_class = {each.number: _tile(each, blocks) for each in {e.number: e for e in every}.values()}
    tiles = [of_class[each.number] for each in every]
    most = dict[tuple[tuple[int, ...], int | None], int]()
    for tile, (width, axis) in zip(tiles, widths(program), strict=True):
        most[tile, axis] = max(width, most.get((tile, axis), 1))
    found, known = 0.0, dict[tuple[int, int], float]()
    for each, tile, (width, axis) in zip(every, tiles, widths(program), strict=True):
        kind = each.number, id(each.loops)
        if kind not in known:
            # Triton's order where nothing lies side by side: the first axis of the tile.
            first = axis if axis is not None or not tile else tile[0]
            alike = max(most.get((tile, first), 1), most.get((tile, None), 1))
            a_thread = max(1, math.prod(blocks.sizes[a] for a in tile) // (_LANES * num_warps))
            together = min(alike, a_thread)
            if axis is not None and _is_narrow(each.access, axis, blocks):
                together = 1
            known[kind] = _lines(each.access, blocks, tile, first, width, together) * turns(
                each.loops, blocks
            )
        found += known[kind]
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


def _lines(
    access: Access,
    blocks: Blocks,
    tile: Sequence[int],
    first: int | None,
    width: int,
    together: int,
) -> float:
    """Of all instructions of one tile. first: the axis along which so many elements `together`
    belong to one thread; width: elements that one instruction moves for it."""
    elements = math.prod(blocks.sizes[a] for a in tile)
    width = min(width, together)
    instructions = max(1.0, elements / (_LANES * width))
    size = itemsize(access.type.dtype)
    order = sorted(tile, key=lambda axis: (axis != first, axis))
    left, steps = _LANES, list[tuple[int, int]]()
    for axis in order:
        own = together if axis == first else 1
        lanes = min(left, max(1, blocks.sizes[axis] // own))
        dense = any(t.axis == axis and is_dense(t, access) for t in access.offset.terms)
        if axis in access.along and not dense:  # rows that an index names, or what lies near
            steps.append((own if access.near else LINE, lanes))
        else:
            steps += _steps(access, axis, own, lanes)
        left //= lanes
    run, stretches = width * size, 1
    for step, lanes in sorted((abs(scale) * size, lanes) for scale, lanes in steps):
        if step <= max(run, LINE // 2):
            run += step * (lanes - 1)
        else:
            stretches *= lanes
    return instructions * stretches * max(1.0, math.ceil(run / LINE))


def _steps(access: Access, axis: int, own: int, lanes: int) -> Iterator[tuple[int, int]]:
    """How far neighbours lie apart, in elements, and how many they are: lanes along an axis that
    each have so many indices of their `own`."""
    terms = sorted((t for t in access.offset.terms if t.axis == axis), key=lambda t: t.div)
    for term in terms:
        # Lanes of which several read the same, or that leave the term's range, are fewer.
        lanes = max(1, lanes * own // max(own, term.div))
        most = max(1, term.mod * term.div // max(own, term.div)) if term.mod else lanes
        if min(lanes, most) > 1:
            yield term.scale * max(1, own // term.div), min(lanes, most)
        own, lanes = max(own, term.div) * min(lanes, most), -(-lanes // most)
