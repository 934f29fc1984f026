"""Tile programs of graphs written by hand: what each pass decides, and what holds after it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from fusionplan.planner.config import NATURAL, Config, Layout
from fusionplan.planner.errors import Refused
from fusionplan.planner.graph.graph import Graph, Ref, Symbol
from fusionplan.planner.graph.sizes import size
from fusionplan.planner.nests.nest import Nest, schedule
from fusionplan.planner.tiles.instructions import (
    BitField,
    EndLanes,
    EndLoads,
    EpilogueSubtiles,
    LaunchNext,
    Mma,
    MmaUnit,
    OnesMma,
    Prefetch,
    Reduce,
    RowEnds,
    SelectedLoad,
    TileCompute,
    TileLoad,
    TileLoop,
    TilePlace,
    TileStore,
    Wait,
    Welford,
)
from fusionplan.planner.tiles.passes.keep_operands_shared import keep_operands_shared
from fusionplan.planner.tiles.passes.part_ends import part_ends
from fusionplan.planner.tiles.passes.repeat_ends import repeat_ends
from fusionplan.planner.tiles.program import TileProgram
from fusionplan.planner.tiles.tile import PASSES, Around, passed, tile, tiled
from fusionplan.planner.tiles.verify import verify
from fusionplan.planner.values.values import At
from graphs import Builder, dense, product

HALF = "bfloat16"


def softmax(b: Builder, x: Ref, rows: int) -> Ref:
    top = b.op("amax.default", x, (1,), True, shape=(rows, 1))
    e = b.op("exp.default", b.op("sub.Tensor", x, top))
    total = b.op("sum.dim_IntList", e, (1,), True, shape=(rows, 1))
    return b.op("div.Tensor", e, total)


def rows() -> Graph:
    b = Builder()
    return b.graph(softmax(b, b.input(64, 4096), 64))


def odd_rows(length: int = 32771) -> Graph:
    """Rows that begin anywhere, times a weight."""
    b = Builder()
    return b.graph(b.op("mul.Tensor", softmax(b, b.input(4096, length), 4096), b.input(length)))


def any_rows() -> Graph:
    """The same of a length that varies."""
    return odd_rows(size(1001, (1009, 2027)))


def two_sums() -> Graph:
    b = Builder()
    x, y = b.input(64, 1024), b.input(64, 1024)
    first = b.op("sum.dim_IntList", x, (1,), shape=(64,))
    return b.graph(first, b.op("sum.dim_IntList", b.op("mul.Tensor", x, y), (1,), shape=(64,)))


def centred() -> Graph:
    """The sum of a row, and the sum of |x - sum|."""
    b = Builder()
    x = b.input(64, 1024)
    total = b.op("sum.dim_IntList", x, (1,), True, shape=(64, 1))
    apart = b.op("abs.default", b.op("sub.Tensor", x, total))
    return b.graph(b.op("sum.dim_IntList", apart, (1,), shape=(64,)))


def linear() -> Graph:
    b = Builder()
    x, w = b.input(512, 256, dtype=HALF), b.input(256, 512, dtype=HALF)
    y = b.op("mm.default", x, w, shape=(512, 512))
    return b.graph(b.op("relu.default", b.op("add.Tensor", y, b.input(512, dtype=HALF))))


def few_rows() -> Graph:
    """Five rows times a matrix."""
    b = Builder()
    x, w = b.input(5, 1024, dtype=HALF), b.input(512, 1024, dtype=HALF)
    turned = b.op("permute.default", w, (1, 0), shape=(1024, 512))
    return b.graph(b.op("mm.default", x, turned, shape=(5, 512)))


def beside() -> Graph:
    """x.t() @ y, and the sum of x over the same axis."""
    b = Builder()
    x, y = b.input(256, 128, dtype=HALF), b.input(256, 128, dtype=HALF)
    turned = b.op("permute.default", x, (1, 0), shape=(128, 256))
    product = b.op("mm.default", turned, y, shape=(128, 128))
    return b.graph(product, b.op("sum.dim_IntList", x, (0,), shape=(128,)))


def stored_too() -> Graph:
    """x @ w, and twice x."""
    b = Builder()
    x, w = b.input(512, 256, dtype=HALF), b.input(256, 64, dtype=HALF)
    return b.graph(b.op("mm.default", x, w, shape=(512, 64)), b.op("mul.Tensor", x, 2.0))


def cast(b: Builder, x: Ref, dtype: str) -> Ref:
    shape = b.nodes[x.node].type.shape
    kwargs = (("dtype", Symbol("dtype", dtype)),)
    return b.node("aten._to_copy.default", (x,), dense(*shape, dtype=dtype), kwargs)


def unpacked(shift: int = 4, mask: int = 0, between: str = "int8", less: int = 8) -> Graph:
    """The sums of numbers of some bits of a byte."""
    b = Builder()
    x = b.input(64, 1024, dtype="uint8")
    x = b.op("__rshift__.Scalar", x, shift) if shift else x
    x = b.op("bitwise_and.Scalar", x, mask) if mask else x
    x = cast(b, x, between) if between else x
    x = b.op("sub.Tensor", x, less) if less else x
    return b.graph(b.op("sum.dim_IntList", cast(b, x, "float32"), (1,), shape=(64,)))


def by_groups(groups: int = 16, each: int = 64, apart: int = 0) -> Graph:
    """Sums of groups of neighbours, each times its scale, added up. apart: elements between two
    groups."""
    b = Builder()
    row = each + apart
    x = b.input(64, groups, each, stride=(groups * row, row, 1))
    sums = b.op("sum.dim_IntList", x, (2,), shape=(64, groups))
    scaled = b.op("mul.Tensor", sums, b.input(64, groups))
    return b.graph(b.op("sum.dim_IntList", scaled, (1,), shape=(64,)))


def nest_of(graph: Graph, layout: Layout = NATURAL) -> Nest:
    found = schedule(graph, layout)
    assert isinstance(found, Nest), found
    return found


def config_of(warps: int = 4, stages: int = 1, reduction: str = "held", **blocks: int) -> Config:
    named = tuple(sorted(blocks.items()))
    return Config(named, num_warps=warps, num_stages=stages, reduction=reduction)


LOOP = config_of(warps=8, stages=3, reduction="loop", x0=128, x1=128, r0=64)
CASES: dict[str, tuple[Callable[[], Graph], Config]] = {
    "held": (rows, config_of(x0=2)),
    "loop": (rows, config_of(stages=2, reduction="loop", x0=2, r0=512)),
    "odd": (odd_rows, config_of(warps=8, reduction="loop", x0=1, r0=2048)),
    "odd_held": (partial(odd_rows, 1001), config_of(x0=1)),
    "any": (any_rows, config_of(warps=8, reduction="loop", x0=1, r0=2048)),
    "any_held": (any_rows, config_of(x0=1, r0=2048)),
    "two_sums": (two_sums, config_of(x0=4)),
    "centred": (centred, config_of(x0=4)),
    "linear": (linear, LOOP),
    "parts": (linear, replace(LOOP, subtiles=2, access="descriptor", group=8)),
    "persistent": (linear, replace(LOOP, programs=4, eviction="both")),
    "narrow": (linear, config_of(reduction="loop", x0=8, x1=128, r0=64)),
    "few": (few_rows, config_of(stages=4, reduction="loop", x0=32, x1=8, r0=256)),
    "beside": (beside, config_of(stages=2, reduction="loop", x0=64, x1=64, r0=64)),
    "by_groups": (by_groups, config_of(x0=4)),
    "unpacked": (unpacked, config_of(x0=2)),
    "stored_too": (stored_too, config_of(stages=3, reduction="loop", x0=128, x1=64, r0=64)),
}


def program_of(name: str, **changes: object) -> TileProgram:
    graph, config = CASES[name]
    return tile(nest_of(graph(), config.layout), replace(config, **changes))


def only(program: TileProgram, kind: type) -> object:
    (found,) = (each for each, _ in program.walk() if isinstance(each, kind))
    return found


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


def joined_in(graph: Graph, config: Config = CASES["by_groups"][1]) -> list[list[str] | None]:
    """The axes that each load takes as one."""
    program = tile(nest_of(graph, config.layout), config)
    verify(program)
    name = [axis.name for axis in program.nest.axes]
    loads = (TileLoad, SelectedLoad)
    found = [each.joined for each, _ in program.walk() if isinstance(each, loads)]
    return [joined and [name[axis] for axis in joined] for joined in found]


def test_short_rows_that_follow_each_other_are_loaded_as_one() -> None:
    assert joined_in(by_groups()) == [["r0", "r1"], None]


@pytest.mark.parametrize(
    "graph, config",
    [
        (by_groups(each=128), config_of(x0=4)),  # As long as a warp loads at once.
        (by_groups(apart=8), config_of(x0=4)),
        (by_groups(groups=12), config_of(x0=4)),  # Not whole in a tile, which is padded.
        (by_groups(), config_of(reduction="nested", x0=4, r0=4, r1=64)),
    ],
    ids=["long", "apart", "padded", "walked"],
)
def test_other_rows_are_loaded_along_their_axes(graph: Graph, config: Config) -> None:
    assert joined_in(graph, config) == [None, None]


def halves(along: int) -> Graph:
    """The sums of short rows of a tensor whose halves along an axis have changed places."""
    b = Builder()
    x = b.input(64, 16, 64)
    shape = [64, 16, 64]
    shape[along] //= 2
    low, high = (
        b.op("slice.Tensor", x, along, start, start + shape[along], shape=tuple(shape))
        for start in (0, shape[along])
    )
    turned = b.op("cat.default", (high, low), along, shape=(64, 16, 64))
    sums = b.op("sum.dim_IntList", turned, (2,), shape=(64, 16))
    scaled = b.op("mul.Tensor", sums, b.input(64, 16))
    return b.graph(b.op("sum.dim_IntList", scaled, (1,), shape=(64,)))


@pytest.mark.parametrize("along, wanted", [(0, ["r0", "r1"]), (1, None), (2, None)])
def test_rows_that_are_chosen_along_themselves_stay_apart(
    along: int, wanted: list[str] | None
) -> None:
    *found, _ = joined_in(halves(along))
    assert found
    assert all(joined == wanted for joined in found)


def fields(graph: Graph, config: Config = CASES["unpacked"][1]) -> list[BitField | None]:
    """Of what a program computes the bits of a byte that it converts."""
    program = tile(nest_of(graph), config)
    verify(program)
    return [each.bits for each, _ in program.walk() if isinstance(each, TileCompute)]


@pytest.mark.parametrize(
    "graph, wanted",
    [
        (unpacked(), BitField(0, 4, 4, 8)),
        (unpacked(0, 15), BitField(0, 0, 4, 8)),
        (unpacked(2, 3, less=0), BitField(0, 2, 2, 0)),
        (unpacked(0, between="int16", less=128), BitField(0, 0, 8, 128)),
        (unpacked(1, between="", less=0), BitField(0, 1, 7, 0)),
    ],
    ids=["high", "low", "two", "whole", "unsigned"],
)
def test_bits_of_a_byte_are_converted_at_once(graph: Graph, wanted: BitField) -> None:
    """Nothing else is computed of them."""
    assert fields(graph) == [wanted]


@pytest.mark.parametrize(
    "graph",
    [
        unpacked(0, 10),  # Bits apart.
        unpacked(0),  # Half of the bytes are no int8.
        unpacked(between="", less=8),  # Less than 0 wraps around.
        unpacked(between="int16", less=256),
        unpacked(less=-8),
    ],
    ids=["apart", "int8", "uint8", "far", "more"],
)
def test_other_integers_are_converted_as_they_are(graph: Graph) -> None:
    assert BitField not in map(type, fields(graph))


def test_what_others_read_of_unpacked_bits_is_computed_too() -> None:
    b = Builder()
    x = b.op("__rshift__.Scalar", b.input(64, 1024, dtype="uint8"), 4)
    high = b.op("sum.dim_IntList", cast(b, x, "float32"), (1,), shape=(64,))
    assert fields(b.graph(high, x)) == [None, BitField(0, 4, 4, 0)]


def test_what_kernels_around_change() -> None:
    graph, config = CASES["held"]
    config, nest = replace(config, eviction="last"), nest_of(graph())
    alone = tile(nest, config)
    later = tile(nest, config, Around(later=True, again=frozenset({0})))
    assert alone.head[-1] == Wait()
    assert (alone.grid.reverse, later.grid.reverse) == (False, True)
    assert [only(p, TileLoad).hint for p in (alone, later)] == ["", "last"]


def scaled(at: bool = False) -> Graph:
    """Rows times a row that is the sum of a table's, or the rows of a table by an index."""
    b = Builder()
    x, w = b.input(64, 1024), b.input(64, 1024)
    if at:
        index = b.node("input", (), dense(64, dtype="int64"))
        w = b.op("index_select.default", w, 0, index)
    return b.graph(b.op("sum.dim_IntList", b.op("mul.Tensor", x, w), (1,), shape=(64,)))


EARLY = Config((("x0", 2),), num_warps=4, num_stages=1)


def early_of(graph: Graph, config: Config, *unwritten: int) -> TileProgram:
    program = tile(nest_of(graph, config.layout), config, Around(unwritten=frozenset(unwritten)))
    verify(program)
    return program


def test_what_nobody_writes_is_loaded_before_the_wait() -> None:
    program = early_of(scaled(), EARLY, 1)
    assert [type(each) for each in program.head] == [LaunchNext, TileLoad, Wait]
    assert [each.input for each in program.head if isinstance(each, TileLoad)] == [1]
    assert [i.input for i, _ in program.walk() if isinstance(i, TileLoad)] == [0]
    lines = str(program).splitlines()
    assert lines.index("wait") == lines.index("launch next") + 2


def test_what_an_index_finds_is_loaded_after_the_wait() -> None:
    """The index itself may be loaded early; where it leads is computed after that."""
    program = early_of(scaled(at=True), EARLY, 1, 2)
    assert [each.input for each in program.head if isinstance(each, TileLoad)] == [2]


@pytest.mark.parametrize(
    "config",
    [
        replace(EARLY, blocks=(("x0", 64),), num_warps=1),  # More than registers hold.
        replace(EARLY, programs=16, num_stages=3),  # A program waits once and loads many tiles.
        Config((("r0", 256), ("x0", 2)), num_stages=2, reduction="loop"),
    ],
)
def test_what_is_not_loaded_at_once_waits(config: Config) -> None:
    assert early_of(scaled(), config, 0, 1).head == (LaunchNext(), Wait())


ROWS = config_of(warps=4, stages=4, reduction="loop", x0=64, x1=16, r0=128)


def fetched(graph: Graph, config: Config = ROWS) -> list[Prefetch]:
    return [each for each in early_of(graph, config, 1).head if isinstance(each, Prefetch)]


@pytest.mark.parametrize("access", ["pointer", "descriptor"])
def test_the_first_turns_of_a_stream_are_prefetched(access: str) -> None:
    program = early_of(
        product(8, 2048, 1024, turned=(False, True)), replace(ROWS, access=access), 1
    )
    assert [type(each) for each in program.head] == [LaunchNext, Prefetch, Wait]
    (found,) = (each for each in program.head if isinstance(each, Prefetch))
    assert (found.input, found.count, found.line) == (1, 8, 64)
    assert "prefetch in1, 8 lines along r0" in str(program).splitlines()


def test_what_several_programs_read_or_is_small_or_lies_across_is_not_prefetched() -> None:
    assert fetched(product(8, 2048, 1024, turned=(False, True)))
    assert not fetched(product(32, 2048, 1024, turned=(False, True)))
    assert not fetched(product(8, 2048, 128, turned=(False, True)))
    assert not fetched(product(8, 2048, 1024))


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
