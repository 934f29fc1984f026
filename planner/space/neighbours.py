"""Configs next to a config: with blocks or warps larger or smaller by a factor."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace

from ..config import Config
from .points import WARPS

_Blocks = tuple[tuple[str, int], ...]

_TRADED = (2, 4, 8, 16, 32, 64)
"""Factors by which one block grows while another shrinks. What lies between a tile of rows and one
of columns is often worse than both: of 90 groups without products the best that steps by 2 lead to
takes up to 1.23 times the best of 400 configs, with these factors up to 1.02."""


def beside(config: Config, limits: Mapping[str, int]) -> Iterator[Config]:
    """Those with one block or the warps twice or half as large, or both in step. limits: the
    largest block of each axis."""
    for factor in (2, 0.5):
        for blocks in _resized(config, limits, factor):
            yield replace(config, blocks=blocks)
        yield from in_step(config, limits, factor)
        if config.num_warps * factor in WARPS:
            yield replace(config, num_warps=int(config.num_warps * factor))


def in_step(config: Config, limits: Mapping[str, int], factor: float) -> Iterator[Config]:
    """Those with one block and the warps larger by a factor: a thread has as many elements."""
    if config.num_warps * factor in WARPS:
        for blocks in _resized(config, limits, factor):
            yield replace(config, blocks=blocks, num_warps=int(config.num_warps * factor))


def traded(config: Config, limits: Mapping[str, int]) -> Iterator[Config]:
    """Those with one block larger and another smaller by the same factor: tiles of the same size
    and of another shape."""
    sizes = dict(config.blocks)
    for larger, smaller in itertools.permutations(sizes, 2):
        for factor in _TRADED:
            grown, shrunk = sizes[larger] * factor, sizes[smaller] // factor
            if grown <= limits[larger] and shrunk >= 1:
                changed = sizes | {larger: grown, smaller: shrunk}
                yield replace(config, blocks=tuple(changed.items()))


def _resized(config: Config, limits: Mapping[str, int], factor: float) -> Iterator[_Blocks]:
    """The blocks with one of them larger by a factor."""
    for place, (name, size) in enumerate(config.blocks):
        if 1 <= size * factor <= limits[name]:
            changed = ((name, int(size * factor)),)
            yield config.blocks[:place] + changed + config.blocks[place + 1 :]
