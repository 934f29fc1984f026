"""Tile programs of graphs written by hand: what each pass decides, and what holds after it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from fusionplan.planner.errors import Refused
from fusionplan.planner.tiles.instructions import (
    EpilogueSubtiles,
    Mma,
    MmaUnit,
    OnesMma,
    Reduce,
    TileLoad,
    TileLoop,
    TilePlace,
    TileStore,
    Wait,
)
from fusionplan.planner.tiles.passes.keep_operands_shared import keep_operands_shared
from fusionplan.planner.tiles.tile import PASSES, Around, passed, tile, tiled
from fusionplan.planner.tiles.verify import verify
from graphs import Builder, dense
from tile_programs import (
    CASES,
    HALF,
    LOOP,
    linear,
    nest_of,
    only,
    program_of,
)


@pytest.mark.parametrize("name", CASES)
def test_every_pass_leaves_a_program_that_holds_together(name: str) -> None:
    graph, config = CASES[name]
    names = []
    for one, program in passed(nest_of(graph(), config.layout), config):
        verify(program)
        assert str(program).count("store output") >= len(program.nest.outputs)
        names.append(one)
    assert names == list(PASSES)


def test_every_pass_has_a_file_of_its_name() -> None:
    assert [one.__module__.rpartition(".")[2] for one in PASSES] == [p.__name__ for p in PASSES]
    folder = Path(inspect.getfile(PASSES[0])).parent
    files = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    assert files == {one.__name__ for one in PASSES}


def test_a_product_is_an_mma_where_its_tile_is_large_enough() -> None:
    mma = only(program_of("linear"), Mma)
    assert isinstance(mma, Mma)
    assert (mma.unit, mma.carried) == (MmaUnit.WARPGROUP, True)
    assert only(program_of("narrow"), Reduce)
    with pytest.raises(ValueError, match="not enough values"):
        only(program_of("narrow"), Mma)


def test_of_a_few_rows_the_matrix_gives_the_rows_and_each_warp_a_slice_of_the_sum() -> None:
    mma = only(program_of("few"), Mma)
    assert isinstance(mma, Mma)
    assert (mma.few, mma.swapped, mma.slices) == (True, False, 4)
    sizes = program_of("few").blocks.sizes
    assert (sizes[mma.rows], sizes[mma.columns]) == (32, 8)
    for changes, slices in (({"num_warps": 2}, 1), ({"num_warps": 1}, 1), ({"num_warps": 8}, 8)):
        mma = only(program_of("few", **changes), Mma)
        assert isinstance(mma, Mma)
        assert mma.slices == slices, changes
    assert not only(program_of("linear"), Mma).few  # type: ignore[attr-defined]


def test_each_warp_multiplies_alone_where_too_few_go_together() -> None:
    mma = only(program_of("linear", num_warps=2), Mma)
    assert isinstance(mma, Mma)
    assert mma.unit is MmaUnit.WARP


def test_a_sum_beside_an_mma_is_by_ones_and_its_tile_stays_in_shared_memory() -> None:
    program = program_of("beside")
    ones = only(program, OnesMma)
    assert isinstance(ones, OnesMma)
    places = {i.value: i.place for i, _ in program.walk() if isinstance(i, TileLoad)}
    assert places[ones.source] is TilePlace.SHARED


def test_a_tile_that_others_read_is_loaded_twice_in_a_pipelined_loop() -> None:
    loads = [i for i, _ in program_of("stored_too").walk() if isinstance(i, TileLoad)]
    assert {(i.place, i.twice) for i in loads} == {
        (TilePlace.BOTH, True),
        (TilePlace.SHARED, False),
    }
    once = program_of("stored_too", num_stages=1)
    assert not any(i.twice for i, _ in once.walk() if isinstance(i, TileLoad))


def test_sums_that_do_not_need_each_other_are_reduced_at_once() -> None:
    reduce = only(program_of("two_sums"), Reduce)
    assert isinstance(reduce, Reduce)
    assert len(reduce.joined) == 1


def test_a_sum_that_needs_another_is_reduced_after_it() -> None:
    reduces = [i for i, _ in program_of("held").walk() if isinstance(i, Reduce)]
    sums = [i for i, _ in program_of("centred").walk() if isinstance(i, Reduce)]
    assert [len(i.joined) for i in (*reduces, *sums)] == [0, 0, 0, 0]


def test_an_epilogue_in_parts_stores_each_part_by_its_own_descriptor() -> None:
    program = program_of("parts")
    parts = program.body[-1]
    assert isinstance(parts, EpilogueSubtiles)
    stores = [i for body in parts.bodies for i in body if isinstance(i, TileStore)]
    assert [store.via.descriptor.block for store in stores if store.via] == [(128, 64)] * 2
    with pytest.raises(Refused, match="too few for 16 parts"):
        program_of("parts", subtiles=16)


def test_truth_values_are_stored_by_pointers() -> None:
    """Of one bit each to Triton, they are no block that a descriptor can copy."""
    b = Builder()
    x, w = b.input(512, 256, dtype=HALF), b.input(256, 512, dtype=HALF)
    y = b.op("mm.default", x, w, shape=(512, 512))
    positive = b.node("aten.gt.Scalar", (y, 0.0), dense(512, 512, dtype="bool"))
    found = tile(nest_of(b.graph(y, positive)), replace(LOOP, access="descriptor"))
    stores = [each for each, _ in found.walk() if isinstance(each, TileStore)]
    assert [each.via is not None for each in stores] == [True, False]


def test_the_second_walk_of_a_row_goes_backwards() -> None:
    loops = [each for each in program_of("loop").body if isinstance(each, TileLoop)]
    assert [loop.reverse for loop in loops] == [False, True]
    assert [loop.stages for loop in loops] == [2, 2]


def test_what_kernels_around_change() -> None:
    graph, config = CASES["held"]
    config, nest = replace(config, eviction="last"), nest_of(graph())
    alone = tile(nest, config)
    later = tile(nest, config, Around(later=True, again=frozenset({0})))
    assert alone.head[-1] == Wait()
    assert (alone.grid.reverse, later.grid.reverse) == (False, True)
    assert [only(p, TileLoad).hint for p in (alone, later)] == ["", "last"]


def test_programs_that_agree_in_what_was_read_are_the_same_object() -> None:
    nest = nest_of(linear(), LOOP.layout)
    first = tiled(nest, LOOP, keep_operands_shared)
    assert tiled(nest, replace(LOOP, num_warps=4, num_stages=2), keep_operands_shared) is first
    wider = replace(LOOP, blocks=(("r0", 32), ("x0", 128), ("x1", 128)))
    other = tiled(nest, wider, keep_operands_shared)
    assert other is not first
    assert other.body is first.body  # It chose the same.


@pytest.mark.parametrize(
    "name, broken, message",
    [
        ("linear", lambda body: body[::-1], "stored before it is there"),
        ("held", lambda body: body[1:], "v1 reads v0 before it is there"),
        ("linear", lambda body: body[:-1], "are stored never"),
        ("loop", lambda body: (replace(body[0], carries=()), *body[1:]), "carries ()"),
        ("two_sums", lambda body: (*body, body[-1]), "is stored 2 times"),
        ("linear", lambda body: (replace(body[0], body=()), *body[1:]), "but takes"),
    ],
)
def test_what_cannot_be_is_named(name: str, broken: Callable, message: str) -> None:
    program = program_of(name)
    with pytest.raises(ValueError, match=message.replace("(", r"\(").replace(")", r"\)")):
        verify(replace(program, body=broken(program.body)))
