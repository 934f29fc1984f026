"""The search space of one group, as data: dimensions, and the model's judgement of each point."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from .codegen.access import block_size, power_of_two
from .config import Config
from .cost import Cost, estimate, floor_s, total
from .device import DeviceProfile
from .errors import Refusal, Refused
from .graph import Graph
from .nest import Nest, Role, TileAxis
from .schedule import Schedule, schedule_group
from .split import SMALLEST

Value = str | int | bool
_Judged = tuple[Config, Cost]

_WARPS = (1, 2, 4, 8, 16, 32)
_STAGES = (1, 2)
_EVICTIONS = ("none", "first", "last")
_BLOCKED = 4  # Innermost axes that the enumeration gives blocks; further out they stay 1.
_LARGEST_TILE = 1 << 16
_MOST_PER_THREAD = 128
_MOST_SPILLED = 512
_ENUMERATED = 2000
_HOPELESS = 2.0  # Times the seconds of a usual config: the model errs by less.
_NOISE_S = 10e-6  # What the model does not tell apart in kernels that take no time.


@dataclass(frozen=True, slots=True)
class Dimension:
    """One number to choose; `layouts` are those in which it has a meaning."""

    name: str
    values: tuple[Value, ...]
    layouts: frozenset[str]


@dataclass(frozen=True, slots=True)
class Layout:
    """What decides the nests: tiling, how reductions are walked, and their parts."""

    tiling: Literal["natural", "flat"]
    reduction: Literal["held", "loop"]
    split: int = 1

    @property
    def name(self) -> str:
        base = self.tiling if self.reduction == "held" else "loop"
        return base if self.split == 1 else f"{base}/{self.split}"


@dataclass(frozen=True, slots=True)
class Space:
    """`schedules` holds the kernels of every layout the group has; `refusals` why it lacks the
    others. Configs that the model puts above `hopeless_s` seconds never reach the compiler."""

    device: DeviceProfile
    schedules: Mapping[Layout, Schedule]
    refusals: Mapping[Layout, Refusal]
    dimensions: tuple[Dimension, ...]
    group: Graph
    hopeless_s: float = math.inf

    def floor_s(self) -> float:
        """Seconds that no config can beat: compulsory traffic at full bandwidth."""
        return floor_s(self.group, self.device)

    def config(self, choice: Mapping[str, Any]) -> Config:
        """The config of a choice by dimension name; dimensions its layout lacks are ignored."""
        layout = next(layout for layout in self.schedules if layout.name == choice["layout"])
        blocks = [(axis.name, int(choice[axis.name])) for axis in _tiled(self.schedules[layout])]
        return Config(
            tuple(sorted(blocks)),
            num_warps=int(choice["num_warps"]),
            num_stages=int(choice["num_stages"]) if layout.reduction == "loop" else 1,
            tiling=layout.tiling,
            reduction=layout.reduction,
            split=layout.split,
            eviction=choice["eviction"],
        )

    def choice(self, config: Config) -> dict[str, Value]:
        """The choice that gives a config; inverse of `config`."""
        return {
            "layout": _layout(config).name,
            **dict(config.blocks),
            "num_warps": config.num_warps,
            "num_stages": config.num_stages,
            "eviction": config.eviction,
        }

    def judge(self, config: Config) -> Cost | Refusal:
        """The predicted cost, or why the config never reaches the compiler."""
        layout = _layout(config)
        if layout not in self.schedules:
            known = self.refusals.get(layout)
            return known or Refusal("layout", f"the group has no layout {layout.name}")
        costs = []
        for kernel in self.schedules[layout].kernels:
            try:
                refusal = _hopeless(kernel.nest, config)
                if refusal is not None:
                    return refusal
                costs.append(estimate(kernel.nest, config, self.device))
            except Refused as refused:
                return refused.refusal
        cost = total(costs)
        if cost.spill_bytes > _MOST_SPILLED:
            return Refusal("spills", f"about {cost.spill_bytes} bytes a thread would spill")
        if cost.seconds > self.hopeless_s:
            return Refusal("slow", f"the model expects {cost.seconds * 1e6:.0f} us")
        return cost

    def quick(self) -> Cost | None:
        """The model's cost of the best of a few usual configs: enough to compare groups."""
        judged = [
            self.judge(config)
            for layout in self.schedules
            for config in itertools.islice(self._of_layout(layout), 6)
        ]
        return min(
            (c for c in judged if isinstance(c, Cost)), key=lambda c: c.seconds, default=None
        )

    def ranked(self, limit: int) -> list[tuple[Config, Cost]]:
        """The model's best configs, best first."""
        judged = [(c, self.judge(c)) for c in self.enumerate()]
        good = [(c, cost) for c, cost in judged if isinstance(cost, Cost)]
        good.sort(key=lambda item: (item[1].seconds, str(item[0])))
        return good[:limit]

    def seeds(self, limit: int) -> list[tuple[Config, Cost]]:
        """The model's best configs of every layout and number of warps, in turns: it ranks like
        configs well, but layouts against each other less surely."""
        classes: dict[tuple[Layout, int], list[tuple[Config, Cost]]] = {}
        for config, cost in self.ranked(_ENUMERATED):
            classes.setdefault((_layout(config), config.num_warps), []).append((config, cost))
        turns = itertools.zip_longest(*classes.values())
        found = [item for turn in turns for item in turn if item is not None]
        hinted = [
            self._hinted(config, hint) for config, _ in found[:4] for hint in ("last", "first")
        ]
        found[6:6] = [item for item in hinted if item is not None]
        return found[:limit]

    def _hinted(self, config: Config, eviction: Literal["last", "first"]) -> _Judged | None:
        changed = replace(config, eviction=eviction)
        cost = self.judge(changed)
        return (changed, cost) if isinstance(cost, Cost) else None

    def enumerate(self) -> Iterator[Config]:
        """Configs of every layout, plain cache hints; bounded for groups of many axes."""
        for layout in self.schedules:
            each = _ENUMERATED // len(self.schedules)
            yield from itertools.islice(self._of_layout(layout), each)

    def _of_layout(self, layout: Layout) -> Iterator[Config]:
        kernels = self.schedules[layout].kernels
        for warps, chosen in _points(kernels[0].nest):
            rest: dict[str, Value] = {"num_warps": warps, "num_stages": 1, "eviction": "none"}
            following: dict[str, Value] = {}
            for kernel in kernels[1:]:
                # The later kernels of a split go by the first point of a like size.
                points = (blocks for w, blocks in _points(kernel.nest) if w == warps)
                following |= next(points, {a.name: 1 for a in _loose(kernel.nest)})
            yield self.config({"layout": layout.name, **chosen, **following, **rest})


def space_of(group: Graph, device: DeviceProfile) -> Space | Refusal:
    """The space of a group, or why it cannot be one kernel."""
    schedules: dict[Layout, Schedule] = {}
    refusals: dict[Layout, Refusal] = {}
    for layout in _layouts(group, device):
        found = schedule_group(group, layout.tiling, layout.reduction, layout.split)
        if not isinstance(found, Refusal):
            found = _sensible(layout, found, schedules)
        if isinstance(found, Refusal):
            refusals[layout] = found
        else:
            schedules[layout] = found
    if not schedules:
        return refusals[_NATURAL]
    space = Space(device, schedules, refusals, _dimensions(schedules), group)
    usual = space.quick()
    return replace(space, hopeless_s=_HOPELESS * usual.seconds + _NOISE_S) if usual else space


_NATURAL, _FLAT = Layout("natural", "held"), Layout("flat", "held")
_LOOP = Layout("natural", "loop")


def _layouts(group: Graph, device: DeviceProfile) -> list[Layout]:
    """The layouts worth a try. A reduction is cut only where whole rows leave the device idle."""
    found = [_NATURAL, _FLAT, _LOOP]
    plain = schedule_group(group, "natural", "loop")
    if isinstance(plain, Refusal):
        return found
    axes = plain.kernels[0].nest.axes
    rows = math.prod(a.extent for a in axes if a.role is Role.GRID)
    length = math.prod(a.extent for a in axes if a.role is not Role.GRID)
    if rows < 4 * device.sm_count and length >= 2 * SMALLEST:
        wanted = [p for p in (1 << e for e in range(1, 13)) if _fills(p, rows, length, device)]
        for parts in wanted:
            found += [Layout("natural", "held", parts), Layout("natural", "loop", parts)]
    return found


def _fills(parts: int, rows: int, length: int, device: DeviceProfile) -> bool:
    return device.sm_count <= rows * parts <= 16 * device.sm_count and length // parts >= 256


def _sensible(
    layout: Layout, found: Schedule, others: Mapping[Layout, Schedule]
) -> Schedule | Refusal:
    nest = found.kernels[0].nest
    if layout == _FLAT and _NATURAL in others:
        natural = others[_NATURAL].kernels[0].nest
        if [a.extents for a in nest.axes] == [a.extents for a in natural.axes]:
            return Refusal("flat", "the natural tiling is flat already")
    for kernel in found.kernels:
        held = kernel.nest.largest_tile(_least_blocks(kernel.nest))
        if held > _LARGEST_TILE:
            return Refusal("held", f"a tile of {held} elements is too large")
    return found


def _dimensions(schedules: Mapping[Layout, Schedule]) -> tuple[Dimension, ...]:
    layouts = frozenset(layout.name for layout in schedules)
    found = [Dimension("layout", tuple(layout.name for layout in schedules), layouts)]
    extents: dict[str, int] = {}
    used: dict[str, set[str]] = {}
    for layout, schedule in schedules.items():
        for axis in _tiled(schedule):
            extents[axis.name] = max(extents.get(axis.name, 1), axis.extent)
            used.setdefault(axis.name, set()).add(layout.name)
    for name, extent in sorted(extents.items()):
        most = min(power_of_two(extent), 1 << 14)
        values = tuple(1 << p for p in range(most.bit_length()))
        found.append(Dimension(name, values, frozenset(used[name])))
    found.append(Dimension("num_warps", _WARPS, layouts))
    looping = frozenset(layout.name for layout in schedules if layout.reduction == "loop")
    if looping:
        found.append(Dimension("num_stages", _STAGES, looping))
    found.append(Dimension("eviction", _EVICTIONS, layouts))
    return tuple(found)


def _layout(config: Config) -> Layout:
    return Layout(config.tiling, config.reduction, config.split)


def _loose(nest: Nest) -> list[TileAxis]:
    """The axes whose block is to be chosen."""
    return [a for a in nest.axes if a.role is not Role.HELD]


def _tiled(schedule: Schedule) -> list[TileAxis]:
    return [a for kernel in schedule.kernels for a in _loose(kernel.nest)]


def _least_blocks(nest: Nest) -> list[int]:
    return [power_of_two(a.extent) if a.role is Role.HELD else 1 for a in nest.axes]


def _hopeless(nest: Nest, config: Config) -> Refusal | None:
    tile = nest.largest_tile([block_size(a, config) for a in nest.axes])
    if tile > _LARGEST_TILE:
        return Refusal("tile", f"a tile of {tile} elements is over {_LARGEST_TILE}")
    each = tile / (32 * config.num_warps)
    if each > _MOST_PER_THREAD:
        return Refusal("tile", f"{each:.0f} elements a thread are over {_MOST_PER_THREAD}")
    return None


def _points(nest: Nest) -> Iterator[tuple[int, dict[str, Value]]]:
    """Warps and blocks of one kernel, the usual tile sizes first."""
    loose = [i for i, a in enumerate(nest.axes) if a.role is not Role.HELD]
    least = _least_blocks(nest)
    # A value's tile: what it holds whole times the blocks of its other axes, by their position.
    tiles = {
        (
            math.prod(least[a] for a in live),
            tuple(place for place, a in enumerate(loose) if a in live),
        )
        for live in nest.live
    }
    limits = tuple(power_of_two(nest.axes[a].extent) for a in loose)
    names = [nest.axes[a].name for a in loose]
    for tile, blocks in _blocks(limits, tuple(sorted(tiles))):
        for warps in _WARPS:
            if 2 <= tile / (32 * warps) <= 64 or (tile < 64 and warps == 1):
                yield warps, dict(zip(names, blocks, strict=True))


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
