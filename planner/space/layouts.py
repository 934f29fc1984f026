"""Layouts worth a try: how a group's grid is tiled and how its reductions are walked."""

from __future__ import annotations

from collections.abc import Mapping

from ..config import FLAT, LOOP, NATURAL, NESTED, Layout
from ..costs.device import DeviceProfile
from ..errors import Refusal
from ..graph.graph import Graph
from ..graph.sizes import varies
from ..nests.group_nests import Schedule, schedule_group
from ..nests.linear_forms import Role
from ..nests.nest import Nest
from ..stream.split_reduction import SMALLEST
from ..tiles.blocks import LEAST_MMA
from ..values.values import Fold
from .points import dot_sides, least_blocks

LARGEST_TILE = 1 << 16
_FEW_PARTS = 1 << 5, 1 << 12  # Where an odd axis is cut: least parts, of so many elements; most.
_NEIGHBOURS = 64  # Elements side by side that one program takes at least.
_LONG = 1 << 16  # Elements of a row from which it may be held in parts,
_PARTS = (1 << 13, 1 << 14, 1 << 15)  # each of this size.
# Of the SMs, what the parts of a reduction keep busy at least, and elements of the shortest part.
_CUT_ROWS, _CUT_PRODUCTS = (0.9, 256), (0.5, 128)
_MANY = 8  # Folds from which half as much is looked at: each config takes all of them.
_ROWS = (128, 64, 256)  # Of a tile of a product, which are summed down its columns as well.


def schedules_of(
    group: Graph, device: DeviceProfile
) -> tuple[dict[Layout, Schedule], dict[Layout, Refusal]]:
    """The kernels of every layout that the group has, and why it lacks the others."""
    schedules: dict[Layout, Schedule] = {}
    refusals: dict[Layout, Refusal] = {}
    for layout in layouts(group, device):
        found = schedule_group(group, layout)
        if not isinstance(found, Refusal):
            found = _sensible(layout, found, schedules)
        if isinstance(found, Refusal):
            refusals[layout] = found
        else:
            schedules[layout] = found
    return schedules, refusals


def layouts(group: Graph, device: DeviceProfile) -> list[Layout]:
    """The layouts worth a try. A reduction is cut only where whole rows leave the device idle."""
    found = [NATURAL, FLAT, LOOP, NESTED]
    plain = schedule_group(group, LOOP)
    nested = isinstance(plain, Refusal)
    if isinstance(plain, Refusal):
        # Rows and columns of which neither can be held beside a loop: two loops have the same axes.
        plain = schedule_group(group, NESTED)
    if isinstance(plain, Refusal) or (nested and plain.kernels[0].nest.contractions):
        return found
    nest = plain.kernels[0].nest
    sides = dot_sides(nest)
    summed = _summed_rows(nest, sides)
    if summed:
        return found + [Layout("natural", "loop", summed // n) for n in _ROWS if not summed % n]
    rows, length, longest = 1, 1, 1
    for number, axis in enumerate(nest.axes):
        if axis.role is not Role.GRID:
            length *= axis.extent
            longest = max(longest, axis.extent)
        elif sides.get(number):
            rows *= -(-axis.extent // 128)
        else:
            rows *= -(-axis.extent // _NEIGHBOURS) if _is_adjacent(nest, number) else axis.extent
    if rows < (device.sm_count if sides else 4 * device.sm_count) and length >= 2 * SMALLEST:
        busy, shortest = _CUT_PRODUCTS if sides else _CUT_ROWS
        least, most = busy * device.sm_count, 16 * device.sm_count
        powers = (1 << e for e in range(1, 13))
        wanted = [p for p in powers if least <= rows * p <= most and length // p >= shortest]
        if has_many_folds(nest):
            wanted = wanted[::2]
        if rows == 1 and longest == length and length % (1 << 7):
            wanted = _divisors(length)
        if sides:  # A part of what is cut is at least as long as an mma.
            wanted = [p for p in wanted if longest // p >= LEAST_MMA]
        for number in wanted:
            found += [Layout("natural", "held", number), Layout("natural", "loop", number)]
            found += [Layout("natural", "nested", number)] if sides else []
    if length >= _LONG and not sides:
        held = [Layout("natural", "held", length // n) for n in _PARTS if not length % n]
        found += [layout for layout in held if layout not in found]
    return found


def has_many_folds(nest: Nest) -> bool:
    """Whether it folds so much that every other number of parts is left out, and half of the usual
    configs of a layout: each takes the time of all folds."""
    return sum(isinstance(value.kind, Fold) for value in nest.values) > _MANY


def _summed_rows(nest: Nest, sides: Mapping[int, str]) -> int:
    """Rows of a product that is stored and whose columns are summed as well; 0 of any other. Cut
    into rows of tiles it runs as it would without the sums, of which each tile writes its part."""
    for number, axis in enumerate(nest.axes):
        if axis.role is Role.GRID or sides.get(number) != "result" or varies(axis.extent):
            continue
        terms = (term for access in nest.stores.values() for term in access.offset.terms)
        if any(term.axis == number and term.scale != 1 for term in terms):
            return axis.extent
    return 0


def _divisors(length: int) -> list[int]:
    """Numbers of equal parts of one long axis that powers of two do not divide, one of each size:
    fewer than would keep a device busy, or shorter ones, are better than a single program."""
    if varies(length):
        return []
    most = min(_FEW_PARTS[1], length // _FEW_PARTS[0])
    found = (d for d in range(_FEW_PARTS[0], most + 1) if length % d == 0)
    return sorted({d.bit_length(): d for d in found}.values())


def _is_adjacent(nest: Nest, axis: int) -> bool:
    """Whether the elements of an axis lie side by side in the largest input: one program takes
    many of them."""
    largest = max(nest.loads.values(), key=lambda access: access.type.nbytes, default=None)
    return largest is not None and any(
        t.axis == axis and t.scale == 1 for t in largest.offset.terms
    )


def _sensible(
    layout: Layout, found: Schedule, others: Mapping[Layout, Schedule]
) -> Schedule | Refusal:
    nest = found.kernels[0].nest
    if layout == FLAT and NATURAL in others:
        natural = others[NATURAL].kernels[0].nest
        if [a.extents for a in nest.axes] == [a.extents for a in natural.axes]:
            return Refusal("flat", "the natural tiling is flat already")
    for kernel in found.kernels:
        held = kernel.nest.largest_tile(least_blocks(kernel.nest))
        if held > LARGEST_TILE:
            return Refusal("held", f"a tile of {held} elements is too large")
    return found
