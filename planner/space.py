"""The search space of one group, as data: dimensions, and the model's judgement of each point."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from .codegen.access import power_of_two
from .config import Config
from .cost import Cost, estimate, floor_s
from .device import DeviceProfile
from .errors import Refusal, Refused
from .graph import Graph
from .nest import Nest, Role, schedule

Value = str | int | bool

_LAYOUTS = {"natural": ("natural", "held"), "flat": ("flat", "held"), "loop": ("natural", "loop")}
_WARPS = (1, 2, 4, 8, 16, 32)
_STAGES = (1, 2)
_LARGEST_TILE = 1 << 16
_MOST_PER_THREAD = 128
_MOST_SPILLED = 512
_ENUMERATED = 2000


@dataclass(frozen=True, slots=True)
class Dimension:
    """One number to choose; `layouts` are those in which it has a meaning."""

    name: str
    values: tuple[Value, ...]
    layouts: frozenset[str]


@dataclass(frozen=True, slots=True)
class Space:
    """`nests` holds the nest of every layout the group has; `refusals` why it lacks the others."""

    device: DeviceProfile
    nests: Mapping[str, Nest]
    refusals: Mapping[str, Refusal]
    dimensions: tuple[Dimension, ...]

    def config(self, choice: Mapping[str, Any]) -> Config:
        """The config of a choice by dimension name; dimensions its layout lacks are ignored."""
        layout = str(choice["layout"])
        tiling, reduction = _LAYOUTS[layout]
        blocks = [
            (axis.name, int(choice[axis.name]))
            for axis in self.nests[layout].axes
            if axis.role is not Role.HELD
        ]
        return Config(
            tuple(sorted(blocks)),
            num_warps=int(choice["num_warps"]),
            num_stages=int(choice["num_stages"]) if layout == "loop" else 1,
            tiling=tiling,  # type: ignore[arg-type]
            reduction=reduction,  # type: ignore[arg-type]
            streaming=bool(choice["streaming"]),
        )

    def choice(self, config: Config) -> dict[str, Value]:
        """The choice that gives a config; inverse of `config`."""
        layout = _layout(config)
        return {
            "layout": layout,
            **dict(config.blocks),
            "num_warps": config.num_warps,
            "num_stages": config.num_stages,
            "streaming": config.streaming,
        }

    def judge(self, config: Config) -> Cost | Refusal:
        """The predicted cost, or why the config never reaches the compiler."""
        layout = _layout(config)
        if layout not in self.nests:
            return self.refusals[layout]
        nest = self.nests[layout]
        refusal = _hopeless_tile(nest, config)
        if refusal is not None:
            return refusal
        try:
            cost = estimate(nest, config, self.device)
        except Refused as refused:
            return refused.refusal
        if cost.spill_bytes > _MOST_SPILLED:
            return Refusal("spills", f"about {cost.spill_bytes} bytes a thread would spill")
        return cost

    def ranked(self, limit: int) -> list[tuple[Config, Cost]]:
        """The model's best configs, best first."""
        judged = [(c, self.judge(c)) for c in self.enumerate()]
        good = [(c, cost) for c, cost in judged if isinstance(cost, Cost)]
        good.sort(key=lambda item: (item[1].seconds, str(item[0])))
        return good[:limit]

    def quick(self) -> Cost | None:
        """The model's cost of the best of a few usual configs: enough to compare groups."""
        costs = []
        for layout in self.nests:
            for config in itertools.islice(self._of_layout(layout), 6):
                costs.append(self.judge(config))
        return min((c for c in costs if isinstance(c, Cost)), key=lambda c: c.seconds, default=None)

    def enumerate(self) -> Iterator[Config]:
        """Configs of every layout, plain cache hints; bounded for groups of many axes."""
        for layout in self.nests:
            yield from itertools.islice(self._of_layout(layout), _ENUMERATED // len(self.nests))

    def _of_layout(self, layout: str) -> Iterator[Config]:
        nest = self.nests[layout]
        tiled = [a for a in nest.axes if a.role is not Role.HELD]
        held = 1
        for axis in nest.axes:
            held *= power_of_two(axis.extent) if axis.role is Role.HELD else 1
        for blocks in _blocks([power_of_two(a.extent) for a in tiled], held):
            tile = held
            for block in blocks:
                tile *= block
            for warps in _WARPS:
                if 2 <= tile / (32 * warps) <= 64 or (tile < 64 and warps == 1):
                    chosen = dict(zip((a.name for a in tiled), blocks, strict=True))
                    rest = {"num_warps": warps, "num_stages": 1, "streaming": False}
                    yield self.config({"layout": layout, **chosen, **rest})

    def floor_s(self) -> float:
        """Seconds that no config can beat: compulsory traffic at full bandwidth."""
        return min(floor_s(nest, self.device) for nest in self.nests.values())


def space_of(group: Graph, device: DeviceProfile) -> Space | Refusal:
    """The space of a group, or why it cannot be one kernel."""
    nests: dict[str, Nest] = {}
    refusals: dict[str, Refusal] = {}
    for layout, (tiling, reduction) in _LAYOUTS.items():
        nest = schedule(group, tiling, reduction)
        if isinstance(nest, Refusal):
            refusals[layout] = nest
        elif layout == "flat" and [a.extents for a in nest.axes] == [
            a.extents for a in nests["natural"].axes
        ]:
            refusals[layout] = Refusal("flat", "the natural tiling is flat already")
        elif reduction == "held" and _held(nest) > _LARGEST_TILE:
            refusals[layout] = Refusal("held", f"a tile of {_held(nest)} elements is too large")
        else:
            nests[layout] = nest
    if not nests:
        return refusals["natural"]
    return Space(device, nests, refusals, _dimensions(nests))


def _dimensions(nests: Mapping[str, Nest]) -> tuple[Dimension, ...]:
    layouts = frozenset(nests)
    found = [Dimension("layout", tuple(nests), layouts)]
    extents: dict[str, int] = {}
    used: dict[str, set[str]] = {}
    for layout, nest in nests.items():
        for axis in nest.axes:
            if axis.role is not Role.HELD:
                extents[axis.name] = max(extents.get(axis.name, 1), axis.extent)
                used.setdefault(axis.name, set()).add(layout)
    for name, extent in sorted(extents.items()):
        most = min(power_of_two(extent), 1 << 14)
        values = tuple(1 << p for p in range(most.bit_length()))
        found.append(Dimension(name, values, frozenset(used[name])))
    found.append(Dimension("num_warps", _WARPS, layouts))
    if "loop" in nests:
        found.append(Dimension("num_stages", _STAGES, frozenset({"loop"})))
    found.append(Dimension("streaming", (False, True), layouts))
    return tuple(found)


def _layout(config: Config) -> str:
    wanted = (config.tiling, config.reduction)
    return next(name for name, layout in _LAYOUTS.items() if layout == wanted)


def _held(nest: Nest) -> int:
    tile = 1
    for axis in nest.axes:
        if axis.role is Role.HELD:
            tile *= power_of_two(axis.extent)
    return tile


def _hopeless_tile(nest: Nest, config: Config) -> Refusal | None:
    tile = _held(nest)
    blocks = dict(config.blocks)
    for axis in nest.axes:
        if axis.role is not Role.HELD:
            tile *= min(blocks.get(axis.name, 1), power_of_two(axis.extent))
    if tile > _LARGEST_TILE:
        return Refusal("tile", f"a tile of {tile} elements is over {_LARGEST_TILE}")
    each = tile / (32 * config.num_warps)
    if each > _MOST_PER_THREAD:
        return Refusal("tile", f"{each:.0f} elements a thread are over {_MOST_PER_THREAD}")
    return None


@lru_cache(maxsize=256)
def _blocks_cached(limits: tuple[int, ...], held: int) -> tuple[tuple[int, ...], ...]:
    choices = [tuple(1 << p for p in range(min(limit, 8192).bit_length())) for limit in limits]
    found = []
    for blocks in itertools.product(*choices):
        tile = held
        for block in blocks:
            tile *= block
        if tile <= max(16384, held):
            found.append(blocks)

    # Near a tile of 2048 elements first, long inner blocks before long outer ones.
    def preference(blocks: tuple[int, ...]) -> tuple[float, ...]:
        tile = held
        for block in blocks:
            tile *= block
        return (abs(tile.bit_length() - 12), *(-float(b) for b in reversed(blocks)))

    return tuple(sorted(found, key=preference))


def _blocks(limits: list[int], held: int) -> tuple[tuple[int, ...], ...]:
    return _blocks_cached(tuple(limits), held)
