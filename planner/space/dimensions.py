"""Dimensions of a search space: the numbers of a config, and the values that each may have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ..config import NESTED, Layout
from ..costs.device import DeviceProfile
from ..nests.group_nests import Schedule
from ..nests.linear_forms import Role, TileAxis
from ..tiles.blocks import power_of_two
from .points import WARPS, block_sizes, dot_sides

ParameterValue = str | int | bool

STAGES = (1, 3)
DOT_STAGES = (3, 4, 2, 1)
STREAM_STAGES = (4, 3, 6, 2)
DESCRIPTORS = 90  # Compute capability from which a GPU copies blocks by descriptors.
GROUPS = (8, 4, 1)
SUBTILES = (1, 2, 4)
WIDENED = (1, 2, 4)
EVICTIONS: tuple[Literal["none", "first", "last", "both"], ...] = ("none", "first", "last", "both")
RESIDENT = (1, 2)  # Programs of an SM that walk over several tiles.


@dataclass(frozen=True, slots=True)
class Dimension:
    """One number to choose; `layouts` are those in which it has a meaning."""

    name: str
    values: tuple[ParameterValue, ...]
    layouts: frozenset[str]


def dimensions_of(
    schedules: Mapping[Layout, Schedule], device: DeviceProfile
) -> tuple[Dimension, ...]:
    layouts = frozenset(layout.name for layout in schedules)
    found = [Dimension("layout", tuple(layout.name for layout in schedules), layouts)]
    sizes: dict[str, set[int]] = {}
    used: dict[str, set[str]] = {}
    by_dots: set[str] = set()
    for layout, schedule in schedules.items():
        for kernel in schedule.kernels:
            sides = dot_sides(kernel.nest)
            by_dots |= {layout.name} if sides else set()
            for number, axis in enumerate(kernel.nest.axes):
                if axis.role is not Role.HELD:
                    own = block_sizes(axis, sides.get(number, "")) if sides else _powers(axis)
                    sizes.setdefault(axis.name, set()).update(own)
                    used.setdefault(axis.name, set()).add(layout.name)
    for name in sorted(sizes):
        found.append(Dimension(name, tuple(sorted(sizes[name])), frozenset(used[name])))
    found.append(Dimension("num_warps", WARPS, layouts))
    looping = frozenset(layout.name for layout in schedules if not layout.holds)
    if looping:
        stages = (*STAGES, *DOT_STAGES, *STREAM_STAGES, 5) if looping & by_dots else STAGES
        found.append(Dimension("num_stages", tuple(sorted(set(stages))), looping))
    found.append(Dimension("eviction", EVICTIONS, layouts))
    walked = frozenset(layout.name for layout in schedules if layout.loops_once)
    if walked - by_dots:
        found.append(Dimension("widen", WIDENED, walked - by_dots))
    held = frozenset(layout.name for layout in schedules if layout.holds)
    counts = (0, *(each * device.sm_count for each in RESIDENT))
    if not by_dots and held:
        found.append(Dimension("programs", counts, held))
    if by_dots:
        found.append(Dimension("group", GROUPS, frozenset(by_dots)))
        found.append(Dimension("programs", counts, frozenset(by_dots)))
        found.append(Dimension("flatten", (False, True), frozenset(by_dots & {NESTED.name})))
        found.append(Dimension("subtiles", SUBTILES, frozenset(by_dots)))
        if device.capability >= DESCRIPTORS:
            found.append(Dimension("access", ("pointer", "descriptor"), frozenset(by_dots)))
    return tuple(found)


def _powers(axis: TileAxis) -> tuple[int, ...]:
    most = min(power_of_two(axis.extent), 1 << 14)
    return tuple(1 << p for p in range(most.bit_length()))
