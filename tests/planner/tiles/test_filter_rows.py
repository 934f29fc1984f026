"""Rows of a depthwise filter as turns of a loop, weights from a copy that lies side by side, and
pixels that are converted two at a time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fusionplan.planner.codegen.source import Program
from fusionplan.planner.config import NATURAL, Config
from fusionplan.planner.costs.device import H200
from fusionplan.planner.graph.graph import Graph
from fusionplan.planner.lower import lower
from fusionplan.planner.nests.group_nests import Schedule, schedule_group
from fusionplan.planner.space.space import Space, space_of
from fusionplan.planner.tiles.instructions import TileCompute, TileRepeat
from fusionplan.planner.tiles.program import TileProgram
from fusionplan.planner.tiles.tile import tile
from fusionplan.planner.tiles.verify import verify
from test_depthwise_plans import convolution


def config(graph: Graph) -> Config:
    found = space_of(graph, H200)
    assert isinstance(found, Space), found
    return next(iter(found.enumerate()))


def programs(graph: Graph) -> Iterator[TileProgram]:
    found = schedule_group(graph, NATURAL)
    assert isinstance(found, Schedule), found
    for kernel in found.kernels:
        yield tile(kernel.nest, config(graph))


def repeats(graph: Graph) -> list[TileRepeat]:
    (program,) = programs(graph)
    verify(program)
    return [each for each in program.body if isinstance(each, TileRepeat)]


@pytest.mark.parametrize(
    "shape, pixels",
    [
        ((32, 28, 7), 14),
        ((32, 14, 5), 14),
        ((32, 7, 7), 7),
        ((32, 56, 5, 2), 14),
        ((32, 14, 11), 14),
    ],
    ids=str,
)
def test_rows_of_a_filter_are_turns_of_a_loop(shape: tuple[int, ...], pixels: int) -> None:
    (found,) = repeats(convolution(*shape))
    assert found.turns == shape[2]
    assert len(found.sums) == pixels
    own = sum(isinstance(each, TileCompute) for each in found.body)
    reach = shape[2] // 2
    outside = reach * (reach + 1) * (shape[1] == pixels)  # taps that see padding alone
    assert own == pixels * shape[2] - outside


def test_the_tap_in_the_middle_reads_what_its_neighbours_read() -> None:
    """Of a view it is a load of the tensor behind it, and once made the text six times as long."""
    (found,) = repeats(convolution(32, 28, 7, viewed=True))
    (image,) = repeats(convolution(32, 28, 7))
    assert len(found.body) == len(image.body)


@pytest.mark.parametrize(
    "graph",
    [convolution(32, 28, 3), convolution(32, 28, 7, planes=True)],
    ids=["three rows", "neighbours in rows"],
)
def test_other_taps_are_written_out(graph: Graph) -> None:
    assert repeats(graph) == []


def kernels(graph: Graph, interpreted: bool = False) -> Program:
    found = lower(graph, config(graph), interpreted=interpreted)
    assert isinstance(found, Program), found
    return found


def test_weights_are_laid_side_by_side_where_many_read_them() -> None:
    first, last = kernels(convolution(384, 14, 7)).kernels
    assert first.name == f"{last.name}_vectors"
    assert [(b.kind, b.index) for b in first.buffers] == [("in", 1), ("tmp", 0)]
    assert [b.kind for b in last.buffers] == ["in", "in", "tmp", "out"]


def test_weights_that_few_read_stay_where_they_are() -> None:
    (only,) = kernels(convolution(8, 14, 7)).kernels
    assert "row" not in only.text


def test_a_repeat_says_so() -> None:
    (program,) = programs(convolution(8, 14, 7))
    text = str(program)
    assert "repeat 7 turns" in text
    assert "in pairs, 112 further in each turn" in text


def test_pixels_are_converted_in_pairs() -> None:
    graph = convolution(8, 14, 7)
    assert "from_pairs(tl.load(in0" not in kernels(graph).kernels[0].text
    assert "from_pairs(tl.load(lap0" in kernels(graph).kernels[0].text
    assert "from_pairs" not in kernels(graph, interpreted=True).kernels[0].text
    assert "from_pairs" not in kernels(convolution(8, 14, 7, dtype="float16")).kernels[0].text
