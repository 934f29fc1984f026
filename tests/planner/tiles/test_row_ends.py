"""Rows that begin anywhere: unmasked blocks in their middle, and lanes for their two ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from fusionplan.planner.config import NATURAL, Config
from fusionplan.planner.graph.graph import Graph
from fusionplan.planner.graph.sizes import size
from fusionplan.planner.tiles.instructions import (
    EndLanes,
    EndLoads,
    Reduce,
    RowEnds,
    TileLoad,
    TileLoop,
    TileStore,
    Welford,
)
from fusionplan.planner.tiles.passes.part_ends import part_ends
from fusionplan.planner.tiles.passes.repeat_ends import repeat_ends
from fusionplan.planner.tiles.program import TileProgram
from fusionplan.planner.tiles.tile import tile
from fusionplan.planner.tiles.verify import verify
from fusionplan.planner.values.values import At
from graphs import Builder
from tile_programs import (
    CASES,
    config_of,
    nest_of,
    only,
    program_of,
)


def test_the_middle_of_an_odd_row_is_unmasked_and_its_weight_copied() -> None:
    """Of 32771 elements 16 blocks of 2048 and 3 more; lanes before the row take up to 3."""
    program = program_of("odd")
    loops = [each for each in program.body if isinstance(each, TileLoop)]
    assert [loop.inner for loop in loops] == [(1, 16)] * len(loops)
    loads = [each for each, _ in program.walk() if isinstance(each, TileLoad)]
    assert {each.rows for each in loads} == {"aligned", "copied"}
    few = program_of("odd", num_stages=3)
    assert all(each.inner is None for each in few.body if isinstance(each, TileLoop))


def test_a_program_without_such_blocks_does_not_hold_together() -> None:
    program = program_of("odd")
    (*rest, loop, ends) = program.body
    assert isinstance(loop, TileLoop)
    broken = replace(program, body=(*rest, replace(loop, inner=(1, 99)), ends))
    with pytest.raises(ValueError, match="no blocks"):
        verify(broken)


def test_a_row_whose_length_varies_has_unmasked_blocks_too() -> None:
    loops = [each for each in program_of("any").body if isinstance(each, TileLoop)]
    assert [loop.inner for loop in loops] == [(1, 0)] * len(loops)  # Of this length there is none.


def squares(length: int) -> Graph:
    """How far the elements of rows lie from their mean, by the sum of its squares."""
    b = Builder()
    x = b.input(64, length)
    total = b.op("sum.dim_IntList", x, (1,), True, shape=(64, 1))
    apart = b.op("sub.Tensor", x, b.op("div.Tensor", total, length))
    sums = b.op("sum.dim_IntList", b.op("mul.Tensor", apart, apart), (1,), True, shape=(64, 1))
    return b.graph(b.op("mul.Tensor", apart, b.op("rsqrt.default", sums)))


@pytest.mark.parametrize("block, is_split", [(512, False), (1024, True)])
def test_a_short_loop_over_squares_stays_in_one_piece(block: int, is_split: bool) -> None:
    """With one vector for a thread, where the length varies; the loop that stores is split."""
    config = config_of(reduction="loop", x0=1, r0=block)
    program = tile(nest_of(squares(size(5001, (1009, 2027))), config.layout), config)
    loops = [each for each in program.body if isinstance(each, TileLoop)]
    own = [any(isinstance(each, Welford) for each in loop.body) for loop in loops]
    assert own == [True, False]
    assert [loop.inner is not None for loop in loops] == [is_split, True]


def test_tiles_of_a_loop_leave_both_ends_of_a_row() -> None:
    """Four lanes for each end of a row of float32 compute them again. What only computes what is
    stored reads whole vectors alone; what reduces a row reads all of it."""
    for name in ("odd", "any"):
        program = program_of(name)
        ends = program.body[-1]
        assert isinstance(ends, RowEnds)
        assert ends.lanes == EndLanes(1, 4, "both")
        assert [type(each) for each in ends.body].count(TileLoad) == 2  # The row and its weight.
        assert isinstance(ends.body[-1], TileStore)
        reducing, storing = (each for each in program.body if isinstance(each, TileLoop))
        assert [each.ends for each in reducing.body if isinstance(each, TileLoad)] == [""]
        left = [each for each in storing.body if isinstance(each, (TileLoad, TileStore))]
        assert all((each.ends == "both") == (each.rows == "aligned") for each in left)


def test_where_the_length_varies_the_ends_are_under_way_before_the_row_is_read() -> None:
    for name in ("any", "any_held"):
        first, ends = program_of(name).body[0], program_of(name).body[-1]
        assert isinstance(first, EndLoads)
        assert isinstance(ends, RowEnds)
        assert first.lanes == ends.lanes
        assert len(first.loads) == 2  # Of the row and its weight.
    assert not any(isinstance(each, EndLoads) for each in program_of("odd").body)


def once_more(name: str) -> TileProgram:
    """With the ends of rows within the tiles."""
    graph, config = CASES[name]
    return tile(nest_of(graph(), config.layout), config, without=[part_ends])


@pytest.mark.parametrize("name, left", [("odd_held", "both"), ("any_held", "last")])
def test_a_held_row_leaves_its_last_end_and_the_first_if_its_length_is_known(
    name: str, left: str
) -> None:
    program = once_more(name)
    ends = program.body[-1]
    assert isinstance(ends, RowEnds)
    assert (ends.lanes.ends, ends.lanes.each, ends.apart) == (left, 4, False)
    assert only(program, TileStore).ends == left  # type: ignore[attr-defined]


def test_where_the_length_varies_the_ends_of_a_held_row_are_reduced_apart() -> None:
    """Each sum takes in what the ends gave, and of zeros it masks none."""
    program = program_of("any_held")
    parts = [each for each in program.body if isinstance(each, RowEnds)]
    sums = [each for each, _ in program.walk() if isinstance(each, Reduce)]
    assert all(each.apart and each.lanes == EndLanes(1, 4, "both") for each in parts)
    assert [each.part for each in sums] == ["rest"] * (len(parts) - 1)
    assert [step.part for part in parts for step in part.body if isinstance(step, Reduce)] == [
        "ends" for _ in sums
    ]
    assert [each.ends for each, _ in program.walk() if isinstance(each, TileLoad)] == ["both"] * 2
    less = tuple(each for each in program.body if each is not parts[0])
    with pytest.raises(ValueError, match="takes in the ends of rows, which were not reduced"):
        verify(replace(program, body=less))


def any_softmax() -> Graph:
    b = Builder()
    x = b.input(64, size(1001, (1009, 2027)))
    top = b.op("amax.default", x, (1,), True, shape=(64, 1))
    e = b.op("exp.default", b.op("sub.Tensor", x, top))
    return b.graph(b.op("div.Tensor", e, b.op("sum.dim_IntList", e, (1,), True, shape=(64, 1))))


def test_a_softmax_of_varying_length_masks_nothing_or_its_maximum_alone() -> None:
    """-inf is read, or filled in, where there is no row; its exponential is 0."""
    nest = nest_of(any_softmax(), NATURAL)

    def beyond(*blocks: tuple[str, int]) -> tuple[bool, list[str]]:
        program = tile(nest, Config(blocks, num_stages=1))
        load = only(program, TileLoad)
        assert isinstance(load, TileLoad)
        return load.lowest, [e.beyond for e, _ in program.walk() if isinstance(e, Reduce)]

    assert beyond(("r0", 2048), ("x0", 1)) == (True, ["neutral", "neutral"])
    assert beyond(("r0", 1024), ("x0", 4)) == (False, ["filled", "neutral"])


def test_a_kernel_that_writes_into_what_it_reads_repeats_nothing() -> None:
    program = program_of("any_held")
    (access,) = program.nest.stores.values()
    written = replace(access, at=(At(0, 1, 8, False),))
    nest = replace(program.nest, stores={0: written})
    broken = TileProgram(nest, program.blocks, program.body, program.head, program.grid)
    with pytest.raises(ValueError, match="writes into what it reads"):
        verify(broken)
    before = tuple(i for i in program.body if not isinstance(i, (EndLoads, RowEnds)))
    own = TileProgram(nest, program.blocks, before)
    assert part_ends(own) is own
    assert repeat_ends(own) is own


BOTH = EndLanes(1, 4, "both")


@pytest.mark.parametrize(
    "broken, message",
    [
        (lambda body: body[:-1], "stores leave the ends"),
        (lambda body: (*body[:-1], replace(body[-1], lanes=BOTH)), "stores leave the ends"),
        (lambda body: (replace(body[0], lanes=BOTH), *body[1:]), "do not need it"),
        (lambda body: (*body[:-1], replace(body[-1], body=body[-1].body[-1:])), "stored before"),
    ],
)
def test_ends_that_nobody_stores_are_named(broken: Callable, message: str) -> None:
    program = once_more("any_held")
    with pytest.raises(ValueError, match=message):
        verify(replace(program, body=broken(program.body)))
