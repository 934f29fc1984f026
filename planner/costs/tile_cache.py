"""A cache of what was counted of tile programs that many configs share (see `tiles.tile.tiled`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from ..config import Config
from ..memo import by_identity
from ..nests.nest import Nest
from ..tiles.passes.assign_programs import grid_of
from ..tiles.passes.keep_operands_shared import keep_operands_shared
from ..tiles.passes.split_epilogue import split_epilogue
from ..tiles.program import TileProgram
from ..tiles.tile import tiled

More = ParamSpec("More")
Result = TypeVar("Result")

_UNASKED = object()


def placed(nest: Nest, config: Config) -> TileProgram:
    """The program as far as block sizes decide it: the same object for the same ones. Raises
    Refused when the config names no block for an axis."""
    return tiled(nest, config, keep_operands_shared)


def scheduled(nest: Nest, config: Config) -> TileProgram:
    """The program as far as warps, stages and parts decide it too, where there are mmas; without
    them nothing is counted that depends on those. Raises Refused when the config does not fit."""
    program = placed(nest, config)
    return tiled(nest, config, split_epilogue) if program.mmas else program


def once(
    function: Callable[Concatenate[TileProgram, More], Result],
) -> Callable[Concatenate[TileProgram, More], Result]:
    """A function of a program and numbers, asked once for each of them."""

    @wraps(function)
    def look_up(program: TileProgram, *more: More.args, **none: More.kwargs) -> Result:
        assert not none, "what is asked is told by position"
        known, asked = _counted(program), (function, *more) if more else function
        found = known.get(asked, _UNASKED)
        if found is _UNASKED:
            found = known[asked] = function(program, *more, **none)
        return cast(Result, found)

    return cast(Callable[Concatenate[TileProgram, More], Result], look_up)


grid = once(grid_of)
"""How blocks of work are given to programs; for the arguments see `assign_programs.grid_of`."""


@by_identity(64)
def _counted(program: TileProgram) -> dict[Any, Any]:
    return {}
