"""End programs at once to which masks leave nothing of what they would sum."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ...graph.sizes import varies
from ...nests.linear_forms import Role
from ...nests.mask_bounds import Limit
from ..instructions import (
    EndEmpty,
    Head,
    LaunchNext,
    TileLoad,
    TileLoop,
    TileRepeat,
    TileStore,
    Wait,
)
from ..program import TileProgram


def end_empty_programs(program: TileProgram) -> TileProgram:
    """Of a loop that the grid divides, the parts beyond a position that lies in a tensor end before
    they load anything else: in a cache of 2,048 keys at position 160 they are 29 of 32 parts, which
    otherwise load queries, norms and tables with the others, and lie where the next kernels could
    begin. Where a later kernel reads their results all the same, they store what no element gives.
    Steps on an H200, launches overlapping: Llama-3.2-1B, one sequence, 704 us before, 698 if they
    store and 694 if not; eight sequences 1,000, 954 and 937; Qwen3-0.6B 557, 528 and 525;
    Gemma-2-2B 1,615, 1,585 and 1,570. At position 2,040 Qwen3-0.6B takes 597 and not 580."""
    grid = program.grid
    if grid is None or grid.persistent or program.blocks.aligned is not None:
        return program
    ending = [(loop, _limits(program, loop)) for loop in program.body if isinstance(loop, TileLoop)]
    ending = [(loop, limits) for loop, limits in ending if limits]
    if len(ending) != 1:
        return program
    ((loop, limits),) = ending
    stores = _stores(program, loop)
    axes = [t.axis for limit in limits for t in limit.rest.terms]
    along = [axis for axis in dict.fromkeys(axes) if _divides(program, axis, loop, stores)]
    given = {value for limit in limits for value, _ in limit.values}
    known = {each.value for each in program.head if isinstance(each, TileLoad)}
    loads = [each for each in _before(program, loop) if each.value in given - known]
    if not along or not stores or not given <= known | {each.value for each in loads}:
        return program
    if program.nest.are_chosen:
        stores = ()  # Nobody reads them.
    waits = bool(stores) and not loads and any(isinstance(each, Wait) for each in program.head)
    end = EndEmpty(loop.axis, limits, along[0], stores, waits)
    body = tuple(each for each in program.body if each not in loads)
    return replace(program.having(body), head=_with_end(program.head, end, given, loads))


def _limits(program: TileProgram, loop: TileLoop) -> tuple[Limit, ...]:
    """Those by a position in a tensor of which a program knows all else when it begins."""
    known = {*program.nest.with_role(Role.GRID), *program.nest.with_role(Role.HELD)}
    found = program.nest.limits.get(loop.axis, ())
    fixed = not varies(program.nest.axes[loop.axis].extent)
    return tuple(
        limit
        for limit in found
        if limit.values
        and (limit.scale > 0 or fixed)
        and known.issuperset(term.axis for term in limit.rest.terms)
    )


def _stores(program: TileProgram, loop: TileLoop) -> tuple[TileStore, ...]:
    """Those of what the loop carries; none where something else becomes of one."""
    stores = [each for each, _ in program.walk() if isinstance(each, TileStore)]
    of = {each: program.nest.outputs[each.output].value for each in stores}
    found = tuple(each for each in stores if of[each] in loop.carries)
    plain = all(each.via is None and not each.access.at for each in found)
    return found if plain and {of[each] for each in found} == {*loop.carries} else ()


def _divides(
    program: TileProgram, axis: int, loop: TileLoop, stores: tuple[TileStore, ...]
) -> bool:
    """Whether programs along an axis of the grid have parts of the loop, and only the first of them
    stores anything else."""
    every = [each for each, _ in program.walk() if isinstance(each, TileStore)]
    return (
        axis in program.nest.with_role(Role.GRID)
        and program.blocks.count(axis) > 1
        and all((each in stores) == (axis in each.access.axes) for each in every)
    )


def _before(program: TileProgram, loop: TileLoop) -> Iterator[TileLoad]:
    """The loads before the loop and whatever else is no simple instruction, of which the place is
    known at once."""
    for each in program.body:
        if each is loop or isinstance(each, (TileLoop, TileRepeat, TileStore)):
            return
        if isinstance(each, TileLoad) and not (each.access.at or each.via or each.twice):
            yield each


def _with_end(head: Head, end: EndEmpty, given: set[int], loads: Sequence[TileLoad]) -> Head:
    """Behind the wait if what it reads is not loaded before, else before whatever else is."""
    if loads:
        place = 1 + max((i for i, each in enumerate(head) if isinstance(each, Wait)), default=-1)
        return (*head[:place], *loads, end, *head[place:])
    first = tuple(each for each in head if isinstance(each, TileLoad) and each.value in given)
    rest = tuple(each for each in head if each not in first)
    place = 1 if rest and isinstance(rest[0], LaunchNext) else 0
    return (*rest[:place], *first, end, *rest[place:])
