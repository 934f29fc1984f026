"""How tiles are loaded: rows as one, bits of a byte, and before the wait for the kernel before."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fusionplan.planner.config import Config
from fusionplan.planner.graph.graph import Graph
from fusionplan.planner.tiles.instructions import (
    BitField,
    LaunchNext,
    Prefetch,
    SelectedLoad,
    TileCompute,
    TileLoad,
    Wait,
)
from fusionplan.planner.tiles.program import TileProgram
from fusionplan.planner.tiles.tile import Around, tile
from fusionplan.planner.tiles.verify import verify
from graphs import Builder, dense, product
from tile_programs import (
    CASES,
    by_groups,
    cast,
    config_of,
    nest_of,
    unpacked,
)


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
