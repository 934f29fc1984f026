"""Give the blocks of work to programs: one each, or several to a persistent one."""

from __future__ import annotations

import math
from dataclasses import replace

from ...graph.sizes import varies
from ...nests.linear_forms import Role
from ..instructions import Grid, TileLoop
from ..program import TileProgram, by_body


def assign_programs(
    program: TileProgram, *, programs: int, num_stages: int, group: int
) -> TileProgram:
    """The grid."""
    return replace(program, grid=grid_of(program, programs, num_stages, group))


def grid_of(program: TileProgram, programs: int, num_stages: int, group: int) -> Grid:
    """Triton begins the loads of a persistent program's next tiles, that feed no mma, only where
    the walk over the tiles says so; with a loop inside it does not. For the arguments see
    `Config`."""
    tiles = tiles_in_all(program)
    started = min(tiles, programs or tiles)
    # Where sizes vary, their number does not decide which kernel it is.
    most = 0 if varies(tiles) else tiles
    return Grid(
        tiles=tiles,
        programs=started,
        persistent=programs > 0 and most != started,
        step=programs if varies(tiles) else started,
        stages=num_stages if programs and not _has_loop(program) else 1,
        stripe=group,
    )


@by_body
def _has_loop(program: TileProgram) -> bool:
    return any(isinstance(each, TileLoop) for each in program.body)


def tiles_in_all(program: TileProgram) -> int:
    """Blocks of work."""
    return math.prod(program.blocks.count(a) for a in program.nest.with_role(Role.GRID))
