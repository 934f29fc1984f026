"""Loops of which the compiler makes several turns one: their loads are under way together."""

from __future__ import annotations

import pytest
import torch
from fusionplan.planner.config import Config
from fusionplan.planner.graph.graph import Graph
from fusionplan.planner.lower import lower
from fusionplan.planner.tiles.instructions import TileLoop
from fusionplan.planner.tiles.tile import tile
from fusionplan.planner.tiles.verify import verify
from graphs import Builder
from oracle import DEVICE, captured, check, whole_group
from tile_programs import config_of, nest_of, softmax

COLUMNS = config_of(reduction="loop", r0=16, x0=1, x1=64)


def column_sums(columns: int, rows: int = 784, dtype: str = "bfloat16") -> Graph:
    b = Builder()
    x = b.input(8, rows, columns, dtype=dtype)
    return b.graph(b.op("sum.dim_IntList", x, (1,), shape=(8, columns), dtype=dtype))


def unrolled(graph: Graph, config: Config) -> list[int]:
    program = tile(nest_of(graph, config.layout), config)
    verify(program)
    return [each.unroll for each in program.body if isinstance(each, TileLoop)]


@pytest.mark.parametrize(
    "graph, config, turns",
    [
        (column_sums(144), COLUMNS, 4),  # The last block of columns is masked.
        (column_sums(128), COLUMNS, 1),  # No masks: the compiler does it.
        (column_sums(144), config_of(reduction="loop", r0=32, x0=1, x1=64), 2),
        (column_sums(144), config_of(reduction="loop", r0=64, x0=1, x1=64), 1),
        (column_sums(144, rows=16), COLUMNS, 1),  # One turn.
        (column_sums(144), config_of(reduction="loop", r0=16, x0=1, x1=64, stages=3), 1),
    ],
    ids=["masked", "unmasked", "two_loads", "four_loads", "one_turn", "ahead"],
)
def test_four_loads_of_a_thread_are_under_way(graph: Graph, config: Config, turns: int) -> None:
    assert unrolled(graph, config) == [turns]


def test_turns_that_wait_for_the_last_stay_apart() -> None:
    b = Builder()
    graph = b.graph(softmax(b, b.input(64, 5000), 64))
    config = config_of(reduction="loop", r0=128, x0=1)
    assert {*unrolled(graph, config)} == {1}


@pytest.mark.dynamo
@pytest.mark.parametrize("rows", [112, 128, 797], ids=["seven", "eight", "ragged"])
def test_sums_are_those_of_all_turns(rows: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(8, rows, 144, device=DEVICE)
    found, _ = captured(column_sum, [x])
    (kernel,) = lower(whole_group(found.graph).graph, COLUMNS).kernels
    assert "loop_unroll_factor=2" in kernel.text  # Two loads of a turn.
    assert check(column_sum, [x], [COLUMNS]) == 1


def column_sum(x: torch.Tensor) -> torch.Tensor:
    return x.sum(1)
