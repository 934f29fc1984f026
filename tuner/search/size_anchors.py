"""Anchors: a group at some of the sizes that it may have, and the configs looked at there."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from ...planner.config import Config
from ...planner.costs.cost import Cost
from ...planner.errors import Refusal
from ...planner.graph.graph import Graph
from ...planner.graph.sizes import rounded_up
from ...planner.graph.varying import of_any_sizes
from ...planner.memo import by_identity
from ...planner.space.space import Space, space_of
from ...planner.tiles.alignment import aligned_rows
from ...planner.tiles.blocks import Blocks
from .size_trees import Sizes

_LOOKED_AT = 48
"""Configs of each layout that the model judges at an anchor: the usual ones."""

_TILED, _TILES = 3000, 6
"""Configs of each layout of matrix products among which it looks for the best tiles and numbers of
warps, and how many of these it keeps."""

NEAR = 1.7
"""Times the seconds of the best layout's best usual config, up to which a layout is looked at."""

UNSURE = 2.2
"""Times the model's seconds of the best at an anchor, up to which configs for several rows that
begin anywhere are looked at: of narrow reads the model thinks that they take up to twice as long as
they do (rows of 113: 12 us, measured 6.7)."""

_SMALL = 1024
"""Elements of a tile of several rows that begin anywhere, at most: they are not loaded as whole
vectors."""


@dataclass(frozen=True, slots=True)
class Anchor:
    """A group at some sizes, with what is known of configs there."""

    sizes: Sizes
    graph: Graph
    space: Space
    odd: bool = False
    """Whether rows begin anywhere."""
    known: dict[Config, float] = field(default_factory=dict, compare=False, repr=False)
    """The model's seconds of what was asked about: most configs are, several times."""

    def modelled(self, config: Config) -> float:
        """The model's seconds of a config here, infinite where it cannot be."""
        if config not in self.known:
            self.known[config] = self._modelled(config)
        return self.known[config]

    def _modelled(self, config: Config) -> float:
        space = self.space if self.odd or not config.anywhere else _of_any_length(self.space)
        cost = space if isinstance(space, Refusal) else space.judge(config)
        return cost.seconds if isinstance(cost, Cost) else math.inf

    def best(self, count: int) -> list[Config]:
        """The model's best configs among the usual ones, and among the best loops by smaller
        blocks."""
        usual = list(self._usual())
        judged = {config: self.modelled(config) for config in usual}
        loops = [c for c in usual if c.layout.loops_once and not self._is_of_products]
        loops.sort(key=lambda c: judged[c])
        smaller = [half for each in loops[:count] for half in _halved(each)]
        judged |= {config: self.modelled(config) for config in smaller}
        best = sorted((s, str(config), config) for config, s in judged.items() if s < math.inf)
        return [config for _, _, config in best[:count]]

    def together(self) -> list[Config]:
        """Where rows begin anywhere, the model's best config that works on several of them, if it
        is not far behind."""
        if not self.odd:
            return []
        judged = [(self.modelled(c), str(c), c) for c in self._usual()]
        several = [each for each in judged if 1 < rows_of(each[-1]) <= self._most_rows()]
        best = min(several, default=None)
        return [best[-1]] if best and best[0] <= UNSURE * min(judged)[0] else []

    @property
    def has_rows_anywhere(self) -> bool:
        """Whether its best kernels read rows that begin anywhere by blocks from vectors on."""
        for config in self.best(1):
            kernels = self.space.schedules[config.layout].kernels
            if any(aligned_rows(Blocks.of(k.nest, config.blocks)) is not None for k in kernels):
                return True
        return False

    @property
    def _is_of_products(self) -> bool:
        return any(dimension.name == "group" for dimension in self.space.dimensions)

    def _most_rows(self) -> int:
        """Rows of that length of which a tile is small."""
        return max(1, _SMALL // rounded_up(max(self.sizes)))

    def _usual(self) -> Iterator[Config]:
        """Of matrix products all configs of a few tiles, those that are fastest when they are run
        in the first way that is possible: a tile can be run in dozens of ways."""
        if not self._is_of_products:
            yield from self.space.enumerate(_LOOKED_AT * len(self.space.schedules))
            return
        near = self.space.near(NEAR)
        tiles: dict[object, list[Config]] = {}
        for config in self.space.enumerate(_TILED * len(near), near):
            tile = config.layout, config.blocks, config.num_warps
            tiles.setdefault(tile, []).append(config)

        def first(ways: Sequence[Config]) -> float:
            return next((s for s in map(self.modelled, ways) if s < math.inf), math.inf)

        for ways in heapq.nsmallest(_TILES, tiles.values(), key=first):
            yield from ways


@by_identity(64)
def _of_any_length(space: Space) -> Space | Refusal:
    """Of kernels that do not know what divides their sizes."""
    return space_of(of_any_sizes(space.group), space.device)


def _halved(config: Config) -> list[Config]:
    """The same by half the block, and by fewer rows at a time, of as many fewer warps."""
    found = []
    for name, size in config.blocks:
        if size > 1:
            blocks = tuple((n, s // 2 if n == name else s) for n, s in config.blocks)
            found.append(replace(config, blocks=blocks, num_warps=max(1, config.num_warps // 2)))
    return found


def rows_of(config: Config) -> int:
    """The number of rows that a program works on at a time."""
    return math.prod(size for name, size in config.blocks if name.startswith("x"))
