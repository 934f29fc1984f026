"""Tiles that many configs share, and what was counted of them.

Configs of one nest mostly differ in what leaves its tiles as they are: warps, stages, how operands
are read. Here tiles of the same blocks are the same object, and what is counted of them is kept.
Not for text: a kernel that is written has its own `Numbers`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from ..codegen.access import Tiles
from ..config import Config
from ..memo import by_identity
from ..nests.nest import Nest

_MOST = 1 << 12

More = ParamSpec("More")
Result = TypeVar("Result")


def tiles_of(nest: Nest, config: Config) -> Tiles:
    """As `Tiles.of`, the same object for the same blocks."""
    known = _tiles(nest)
    found = known.get(config.blocks)
    if found is None:
        if len(known) >= _MOST:
            known.clear()
        found = known[config.blocks] = Tiles.of(nest, config)
    return found


def once(
    function: Callable[Concatenate[Nest, Tiles, More], Result],
) -> Callable[Concatenate[Nest, Tiles, More], Result]:
    """A function of a nest, tiles of it, and numbers, asked once for each of them."""

    @wraps(function)
    def look_up(nest: Nest, tiles: Tiles, *more: More.args, **none: More.kwargs) -> Result:
        assert not none, "what is asked is told by position"
        known, asked = _counted(tiles), (function, *more)
        if asked not in known:
            known[asked] = function(nest, tiles, *more, **none)
        found: Result = known[asked]
        return found

    return cast(Callable[Concatenate[Nest, Tiles, More], Result], look_up)


@by_identity(64)
def _tiles(nest: Nest) -> dict[tuple[tuple[str, int], ...], Tiles]:
    return {}


@by_identity(64)
def _counted(tiles: Tiles) -> dict[Any, Any]:
    return {}
