"""Walk every second sweep of an axis backwards: the caches still hold what was read last."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from ...graph.sizes import varies
from ..instructions import Body, Instruction, TileLoop, TileScan, Welford
from ..program import TileProgram


def reverse_second_sweep(program: TileProgram, *, later: bool) -> TileProgram:
    """later: a kernel comes before this one. It starts with the last tile then, because that one
    read it last, and L2 still has it."""
    walked: Counter[int] = Counter()
    body = tuple(_turned(each, walked) for each in program.body)
    grid = program.grid
    assert grid is not None, "tiles are given to programs before"
    if later and (grid.tiles > 1 or varies(grid.tiles)):
        grid = replace(grid, reverse=True)
    return replace(program, body=body, grid=grid)


def _turned(each: Instruction, walked: Counter[int]) -> Instruction:
    if not isinstance(each, TileLoop):
        return each
    back = walked[each.axis] % 2 == 1 and not _counts_turns(each)
    if any(isinstance(inner, TileScan) and inner.carried for inner in each.body):
        back = each.reverse  # A scan has its own direction.
    walked[each.axis] += 1
    body: Body = tuple(_turned(inner, walked) for inner in each.body)
    return replace(each, body=body, reverse=back)


def _counts_turns(loop: TileLoop) -> bool:
    """Whether a state depends on how many turns came before, so that full blocks come first."""
    return any(isinstance(each, Welford) and each.carried for each in loop.body)
