"""Depthwise convolutions that give several channels of each: one axis, whose neighbours share what
is loaded."""

from __future__ import annotations

import pytest
from fusionplan.planner.codegen.source import Program
from fusionplan.planner.config import NATURAL
from fusionplan.planner.costs.cost import Cost
from fusionplan.planner.costs.device import H200
from fusionplan.planner.graph.graph import Graph, TensorType, contiguous
from fusionplan.planner.lower import lower
from fusionplan.planner.nests.group_nests import Schedule, schedule_group
from fusionplan.planner.space.space import Space, space_of
from fusionplan.planner.tiles.tile import tile
from fusionplan.planner.tiles.verify import verify
from graphs import Builder

BATCH, CHANNELS, SIZE = 64, 48, 64


def convolution(times: int) -> Graph:
    """7 x 7 in steps of two, as `channels_last` writes it."""
    b = Builder()
    rows, wide = (BATCH, SIZE, SIZE), CHANNELS * times
    x = b.input(*rows, CHANNELS, dtype="bfloat16")
    w = b.input(wide, 1, 7, 7, dtype="bfloat16")
    x = b.op("unsqueeze.default", x, 4, shape=(*rows, CHANNELS, 1), dtype="bfloat16")
    shape, stride = (*rows, CHANNELS, times), contiguous((*rows, CHANNELS))
    kind = TensorType(shape, (*stride, 0), "bfloat16")
    x = b.node("aten.expand.default", (x, shape), kind)
    x = b.op("reshape.default", x, (*rows, wide), shape=(*rows, wide), dtype="bfloat16")

    def image(size: int) -> TensorType:
        return TensorType(
            (BATCH, wide, size, size), (size * size * wide, 1, size * wide, wide), "bfloat16"
        )

    x = b.node("aten.permute.default", (x, (0, 3, 1, 2)), image(SIZE))
    how = ((2, 2), (3, 3), (1, 1), False, (0, 0), wide)
    return b.graph(b.node("aten.convolution.default", (x, w, None, *how), image(SIZE // 2)))


def best(graph: Graph) -> tuple[str, Cost]:
    """The text of the best kernel, and its cost."""
    found = space_of(graph, H200)
    assert isinstance(found, Space), found
    config, cost = next(iter(found.ranked(1)))
    program = lower(graph, config)
    assert isinstance(program, Program), program
    schedule = schedule_group(graph, NATURAL)
    assert isinstance(schedule, Schedule)
    verify(tile(schedule.kernels[0].nest, config))
    return program.kernels[-1].text, cost


@pytest.mark.parametrize("times", [2, 4])
def test_channels_of_one_channel_load_its_pixels_once(times: int) -> None:
    text, cost = best(convolution(times))
    twice = "each_twice(" * (times // 2)
    assert f"= {twice}from_pairs(tl.load(lap0 + " in text
    assert f"tl.arange(0, {32 // times})  # {times} neighbours each" in text
    assert f" // {times}" not in text
    bytes_once = BATCH * CHANNELS * SIZE * SIZE * 2 * (1 + times / 4)
    assert cost.hbm_bytes == pytest.approx(bytes_once, rel=0.02)


def test_three_channels_of_one_are_an_axis_of_their_own() -> None:
    text, _ = best(convolution(3))
    assert "each_twice" not in text
    assert "grid axis of 3\n" in text
