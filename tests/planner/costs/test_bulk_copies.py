"""Rows that descriptors copy: below 128 bytes they take as long as whole lines."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fusionplan.planner.costs.bulk_copies import short_rows
from fusionplan.planner.costs.cost import estimate
from fusionplan.planner.costs.device import H200
from fusionplan.planner.costs.tile_cache import placed
from fusionplan.planner.graph.graph import Graph
from graphs import Builder
from tile_programs import config_of, nest_of


def product(rows: int, columns: int, summed: int) -> Graph:
    b = Builder()
    x, w = b.input(rows, summed, dtype="bfloat16"), b.input(summed, columns, dtype="bfloat16")
    return b.graph(b.op("mm.default", x, w, shape=(rows, columns), dtype="bfloat16"))


@pytest.mark.parametrize(
    "columns, summed, lacking",
    [
        (256, 24, 128 * (1 - 48 / 128)),  # The rows of the result and of the matrix are long.
        (256, 64, 0.0),
        (48, 64, (64 + 128) * 0.25),  # 64 rows of the matrix, 128 of the result.
        (256, 20, 0.0),  # 40 bytes are no multiple of 16.
    ],
)
def test_rows_below_a_line_are_counted(columns: int, summed: int, lacking: float) -> None:
    config = config_of(reduction="loop", stages=3, x0=128, x1=64, r0=64)
    nest = nest_of(product(4096, columns, summed), config.layout)
    assert short_rows(placed(nest, config)) == pytest.approx(lacking)


def test_short_rows_are_read_by_pointers() -> None:
    """200,704 places of an image, 24 channels in and 144 out (EfficientNet-B0, 64 images)."""
    graph = product(200704, 144, 24)
    config = config_of(x0=256, x1=32)
    nest = nest_of(graph, config.layout)
    by_pointers = estimate(nest, config, H200).seconds
    assert 1.2 * by_pointers < estimate(nest, replace(config, access="descriptor"), H200).seconds
