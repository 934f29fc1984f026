"""Blocks and warps worth a try for one kernel, the usual ones first."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from ..graph.dtypes import NARROW
from ..nests.linear_forms import Role, TileAxis
from ..nests.nest import Nest
from ..tiles.blocks import LEAST_COLUMNS, LEAST_MMA, largest_block, power_of_two
from ..values.values import ancestors

WARPS = (1, 2, 4, 8, 16, 32)
_BLOCKED = 4  # Innermost axes that the enumeration gives blocks; further out they stay 1.
_RESULT = (128, 64, 256, 32, 16)
_SUMMED = (64, 128, 32, 16)
_USUAL = 160  # Between 128 x 128 and 128 x 256.
_DOT_WARPS = (8, 4)
_UNROLLED = 96  # Points where an axis is unrolled, which takes long to count and to compile.
_EACH, _INNER = 64, 32  # Of a thread, and of a block along memory, where an axis is unrolled.
_LEAST_ROWS = 2  # Rows from which a product is padded to an mma; those of one warp each are
_FEW_WARPS = (4, 1, 2, 8)  # run by fewer warps, which would all do the same.
_FEW_ROWS, _FEW_USUAL = 32, 48  # As few as to be read as a whole are multiplied by few columns.


def loose(nest: Nest) -> list[TileAxis]:
    """The axes whose block is to be chosen."""
    return [a for a in nest.axes if a.role is not Role.HELD]


def least_blocks(nest: Nest) -> list[int]:
    return [power_of_two(a.extent) if a.role is Role.HELD else 1 for a in nest.axes]


def points(nest: Nest) -> Iterator[tuple[int, dict[str, int]]]:
    """Warps and blocks of one kernel, the usual tile sizes first."""
    sides = dot_sides(nest)
    if sides:
        yield from _dot_points(nest, sides)
        return
    free = [i for i, a in enumerate(nest.axes) if a.role is not Role.HELD]
    least = least_blocks(nest)
    # A value's tile: what it holds whole times the blocks of its other axes, by their position.
    tiles = {
        (
            math.prod(least[a] for a in live),
            tuple(place for place, a in enumerate(free) if a in live),
        )
        for live in _tile_axes(nest)
    }
    limits = tuple(power_of_two(nest.axes[a].extent) for a in free)
    names = [nest.axes[a].name for a in free]
    found: Iterable[tuple[int, int, tuple[int, ...]]] = (
        (tile, warps, blocks)
        for tile, blocks in _blocks(limits, tuple(sorted(tiles)))
        for warps in WARPS
        if 2 <= tile / (32 * warps) <= 64 or (tile < 64 and warps == 1)
    )
    if any(output.part is not None for output in nest.outputs):
        found = _unrolled(found, [nest.axes[a].extent for a in free], _neighbours(nest))
    for _, warps, blocks in found:
        yield warps, dict(zip(names, blocks, strict=True))


def _unrolled(
    found: Iterable[tuple[int, int, tuple[int, ...]]], extents: Sequence[int], neighbours: int
) -> list[tuple[int, int, tuple[int, ...]]]:
    """Points of a nest in which neighbours along an axis are values of their own: of all of them a
    thread has at most 64 elements, for more spill. Of 60 kernels of eight depthwise convolutions
    timed on an H200 the best have blocks of 32 channels, cut no axis unevenly and have 4 warps."""

    def unusual(point: tuple[int, int, tuple[int, ...]]) -> tuple[float, ...]:
        tile, warps, blocks = point
        padded = math.prod(-(-n // b) * b / n for n, b in zip(extents, blocks, strict=True))
        inner = math.log2(blocks[-1] / _INNER) if blocks else 0.0
        return each * 32 * warps / tile, padded, abs(inner), abs(math.log2(warps / 4))

    each = 1 << max(1, _EACH // neighbours).bit_length() - 1
    least = min(_INNER, power_of_two(extents[-1])) if extents else 1
    few = (p for p in found if p[0] <= each * 32 * p[1] and (not p[2] or p[2][-1] >= least))
    return sorted(few, key=unusual)[:_UNROLLED]


def _neighbours(nest: Nest) -> int:
    """Stores of one result at most."""
    return max(Counter(output.result for output in nest.outputs).values())


def _tile_axes(nest: Nest) -> Iterator[frozenset[int]]:
    """The axes of every tile: of each value, and of the products that a contraction sums."""
    yield from nest.live
    for fold in nest.contractions:
        yield frozenset[int]().union(*(nest.live[r] for r in nest.values[fold].reads))


def dot_sides(nest: Nest) -> dict[int, str]:
    """The axes of which matrix products of tiles take more than one element at a time: "result"
    and "summed". Empty where no contraction can be such a product. One side may be shorter than an
    mma, which pads it: so a few rows share one read of what they are multiplied by."""
    found: dict[int, str] = {}
    together = _batches(nest)
    for value in nest.contractions:
        fold = nest.fold(value)
        assert fold.times is not None
        left, right = (nest.live[v] - together for v in (fold.source, fold.times))
        summed = set(nest.reduced(fold))
        # Of float32 in full precision the padding would be arithmetic for nothing.
        least = _LEAST_ROWS if fold.operand in NARROW else LEAST_MMA
        sides = [_longest(axes - summed, nest, least) for axes in (left - right, right - left)]
        both = [a for a in sides if a is not None]
        extents = [max((nest.axes[a].extent for a in both), default=0)]
        extents += [nest.axes[a].extent for a in summed]
        if len(both) == 2 and min(extents) >= LEAST_MMA:
            found |= dict.fromkeys(both, "result")
            for axis in summed:
                found.setdefault(axis, "summed")
    return found


def _batches(nest: Nest) -> frozenset[int]:
    """The axes along which some contraction only repeats: the parts of divided keys are columns of
    the scores, and yet each part of the values is multiplied by its own."""
    found = frozenset[int]()
    for value in nest.contractions:
        fold = nest.fold(value)
        assert fold.times is not None
        found |= nest.live[fold.source] & nest.live[fold.times] - {*nest.reduced(fold)}
    return found


def _longest(axes: frozenset[int], nest: Nest, least: int) -> int | None:
    """The innermost of the axes that is long enough for one side of a product, the short ones
    padded where a tile can be."""
    long = [
        a
        for a in sorted(axes)
        if nest.axes[a].extent >= least and largest_block(nest.axes[a]) >= LEAST_MMA
    ]
    return max(long, key=lambda a: (min(nest.axes[a].extent, 128), a), default=None)


_STREAMED = (
    (16, 512, 4),
    (16, 256, 4),
    (64, 128, 4),
    (64, 256, 4),
    (32, 256, 2),
    (16, 256, 1),
    (32, 256, 4),
    (32, 128, 4),
    (128, 64, 4),
    (64, 64, 4),
    (16, 128, 4),
)
"""Columns, summed elements and warps of products of a few rows: those that were among the best of
37 to 65 of a product (`costs.matrix`)."""


def streamed_axes(nest: Nest, sides: Mapping[int, str]) -> tuple[int, int, int] | None:
    """Of products of a few rows by matrices, none of another's result, the axes of the rows, of the
    matrices' columns and of the sums; None of others."""
    if not nest.contractions:
        return None
    known, axes = ancestors(nest.values), set[tuple[int, int, int]]()
    fed = {source for value in nest.contractions for source in nest.values[value].reads}
    behind = frozenset[int]().union(*(known[source] for source in fed))
    for value in nest.contractions:
        fold = nest.fold(value)
        own = [a for a in nest.live[value] if sides.get(a) == "result"]
        summed = [a for a in nest.reduced(fold) if nest.axes[a].role is Role.LOOP]
        if len(own) != 2 or len(summed) != 1 or value in behind or fold.operand not in NARROW:
            return None
        rows, columns = sorted(own, key=lambda a: nest.axes[a].extent)
        axes.add((rows, columns, summed[0]))
    if len(axes) != 1:
        return None
    rows, columns, summed_axis = axes.pop()
    few, many = nest.axes[rows].extent, nest.axes[columns].extent
    return (rows, columns, summed_axis) if few <= _FEW_ROWS < many else None


def _stream_points(nest: Nest, axes: tuple[int, int, int]) -> Iterator[tuple[int, dict[str, int]]]:
    rows, columns, summed = (nest.axes[a] for a in axes)
    few = max(LEAST_COLUMNS, power_of_two(rows.extent))
    others = {a.name: 1 for a in loose(nest) if a not in (rows, columns, summed)}
    seen = set[tuple[int, int, int]]()
    for wide, long, warps in _STREAMED:
        sizes = min(wide, largest_block(columns)), min(long, largest_block(summed))
        if (*sizes, warps) not in seen:
            seen.add((*sizes, warps))
            chosen = {rows.name: few, columns.name: sizes[0], summed.name: sizes[1]}
            yield warps, others | chosen


def _dot_points(nest: Nest, sides: dict[int, str]) -> Iterator[tuple[int, dict[str, int]]]:
    streamed = streamed_axes(nest, sides)
    if streamed is not None:
        yield from _stream_points(nest, streamed)
        return
    free = [i for i, a in enumerate(nest.axes) if a.role is not Role.HELD]
    choices = [block_sizes(nest.axes[a], sides.get(a, "")) for a in free]
    result = [place for place, a in enumerate(free) if sides.get(a) == "result"]
    usual = _USUAL ** len(result)
    rows = min((max(choices[place]) for place in result), default=_USUAL)
    if rows <= _FEW_ROWS:
        usual = rows * _FEW_USUAL
        for place, a in enumerate(free):
            if sides.get(a) == "summed":
                choices[place] = sorted(choices[place], reverse=True)

    def unusual(blocks: tuple[int, ...]) -> float:
        return abs(math.log2(math.prod(blocks[place] for place in result) / usual))

    for blocks in sorted(itertools.product(*choices), key=unusual):
        chosen = {nest.axes[a].name: size for a, size in zip(free, blocks, strict=True)}
        few = any(blocks[place] == LEAST_MMA for place in result)
        for warps in _FEW_WARPS if few else _DOT_WARPS:
            yield warps, chosen


_WALKED = ((128, 256, 64, 8), (128, 128, 64, 4))
"""Rows, columns and summed elements of a product's tile, and warps, where programs walk over tiles,
one on an SM and two: the best of 57 kernels (`costs.matrix`)."""


def walking_points(nest: Nest) -> Iterator[tuple[int, dict[str, int]]]:
    """Warps and blocks of a product whose programs walk over its tiles, by how many of them an SM
    has; none of several products, or without a loop."""
    sides = dot_sides(nest)
    results = [axis for number, axis in enumerate(nest.axes) if sides.get(number) == "result"]
    summed = [axis for number, axis in enumerate(nest.axes) if sides.get(number) == "summed"]
    looped = len(summed) == 1 and summed[0].role is Role.LOOP
    if len(nest.contractions) != 1 or len(results) != 2 or not looped:
        return
    if streamed_axes(nest, sides) is None:
        for *tile, warps in _WALKED:
            own = zip((*results, *summed), tile, strict=True)
            sizes = {a.name: min(n, largest_block(a)) for a, n in own if a.role is not Role.HELD}
            yield warps, sizes


def block_sizes(axis: TileAxis, side: str) -> Sequence[int]:
    """Block sizes of an axis beside matrix products, the usual ones first (see `dot_sides`)."""
    most = largest_block(axis) if side else power_of_two(axis.extent)
    usual = {"result": _RESULT, "summed": _SUMMED, "": (1,)}[side]
    return [size for size in usual if size <= most] or [most]


@lru_cache(maxsize=256)
def _blocks(
    limits: tuple[int, ...], tiles: tuple[tuple[int, tuple[int, ...]], ...]
) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Block sizes under limits with the size of their largest tile: those near 2048 elements
    first, long inner blocks before long outer ones."""
    outer = max(0, len(limits) - _BLOCKED)
    choices = [
        tuple(1 << p for p in range(min(limit, 8192).bit_length())) if place >= outer else (1,)
        for place, limit in enumerate(limits)
    ]
    most = max(16384, *(held for held, _ in tiles))
    found = []
    for blocks in itertools.product(*choices):
        tile = max(held * math.prod(blocks[place] for place in places) for held, places in tiles)
        if tile <= most:
            order = (abs(tile.bit_length() - 12), *(-b for b in reversed(blocks)))
            found.append((order, tile, blocks))
    return tuple((tile, blocks) for _, tile, blocks in sorted(found))
