"""Seconds of products whose programs walk over several tiles, as an H100 took them: GELU behind a
linear layer in bfloat16 (torch 2.11, Triton 3.6, medians of 12 calls)."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from corpus import graph_of
from fusionplan.planner.config import Config
from fusionplan.planner.costs.cost import Cost, estimate
from fusionplan.planner.costs.device import H100
from fusionplan.planner.space.space import Space, space_of

pytestmark = pytest.mark.dynamo

Size = tuple[int, int, int]

WIDE, SQUARE = (128, 256, 8), (128, 128, 4)
"""Rows and columns of a tile, and warps."""

MEASURED: dict[Size, dict[tuple[tuple[int, int, int], int], float]] = {
    (12608, 768, 3072): {(SQUARE, 2): 105.9, (WIDE, 1): 111.1, (SQUARE, 0): 126.0},
    (6304, 1024, 4096): {(SQUARE, 2): 96.4, (WIDE, 1): 103.7, (SQUARE, 0): 108.2},
    (8192, 4096, 14336): {(WIDE, 1): 1283.3, (SQUARE, 2): 1376.7, (SQUARE, 0): 1674.4},
}
"""Microseconds by tile and programs an SM (0: one for each tile), the fastest first."""


RESIDUAL: dict[Size, float] = {
    (16384, 384, 1536): 87.1,
    (12608, 768, 3072): 180.5,
    (8192, 2048, 2048): 152.5,
}
"""Microseconds of a residual added behind the linear layer: one program of 128 x 128 an SM."""


@functools.cache
def space(size: Size) -> Space:
    rows, summed, columns = size
    shapes = (rows, summed), (columns, summed), (columns,)
    given = [torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in shapes]
    found = space_of(graph_of(lambda x, w, b: F.gelu(F.linear(x, w, b)), given), H100)
    assert isinstance(found, Space)
    return found


def config(tile: tuple[int, int, int], programs: int) -> Config:
    rows, columns, warps = tile
    return Config(
        (("r0", 64), ("x0", rows), ("x1", columns)),
        warps,
        3,
        reduction="loop",
        group=4 if programs == 2 else 8,
        programs=programs * H100.sm_count,
        access="descriptor",
        subtiles=2,
    )


@pytest.mark.parametrize("size", MEASURED, ids=str)
def test_the_model_says_what_was_measured(size: Size) -> None:
    for (tile, programs), us in MEASURED[size].items():
        cost = space(size).judge(config(tile, programs))
        assert isinstance(cost, Cost)
        assert cost.seconds == pytest.approx(us * 1e-6, rel=0.12)


@pytest.mark.parametrize("size", MEASURED, ids=str)
def test_the_model_chooses_the_fastest(size: Size) -> None:
    (best, _), *_ = space(size).ranked(1)
    assert best == config(*next(iter(MEASURED[size])))


@pytest.mark.parametrize("size", RESIDUAL, ids=str)
def test_what_is_read_behind_the_products_is_not_hidden(size: Size) -> None:
    rows, summed, columns = size
    shapes = (rows, summed), (columns, summed), (columns,), (rows, columns)
    given = [torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in shapes]
    found = space_of(graph_of(lambda x, w, b, r: F.linear(x, w, b) + r, given), H100)
    assert isinstance(found, Space)
    cost = found.judge(config((128, 128, 8), 1))
    assert isinstance(cost, Cost)
    assert cost.seconds == pytest.approx(RESIDUAL[size] * 1e-6, rel=0.1)


NESTED = Config(
    (("r0", 128), ("r1", 64), ("x0", 64)), 8, 3, reduction="nested", group=8, flatten=True
)
"""A program walks down the rows of its columns, a product for each block of them."""


def gelu_gradient(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    found = torch.ops.aten.gelu_backward(x @ w, y)
    return found, found.sum(0)


def test_what_moves_between_the_products_of_an_outer_loop_is_not_hidden() -> None:
    """GELU's gradient behind a product, and its sum by columns: measured, 546 us."""
    shapes = (4096, 2048), (2048, 8192), (4096, 8192)
    given = [torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in shapes]
    found = space_of(graph_of(gelu_gradient, given), H100)
    assert isinstance(found, Space)
    (kernel,) = found.schedules[NESTED.layout].kernels
    cost = estimate(kernel.nest, NESTED, H100)
    assert cost.seconds == pytest.approx(546e-6, rel=0.1)
    (best, ranked), *_ = found.ranked(1)
    assert best.layout != NESTED.layout
    assert ranked.seconds < 300e-6


SHORT: dict[tuple[tuple[int, int, int], int, int], float] = {
    (WIDE, 1, 64): 203.8,
    (WIDE, 1, 32): 295.4,
    (SQUARE, 2, 64): 210.4,
    (SQUARE, 2, 32): 288.9,
}
"""Microseconds of SiLU behind 4096 x 2048 x 8192 by tile, programs an SM, and what is summed in a
turn of the loop."""


def test_a_turn_takes_its_time_however_little_it_multiplies() -> None:
    shapes = (4096, 2048), (2048, 8192)
    given = [torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in shapes]
    found = space_of(graph_of(lambda x, w: F.silu(x @ w), given), H100)
    assert isinstance(found, Space)
    expected = dict[tuple[tuple[int, int, int], int, int], float]()
    for (tile, programs, summed), us in SHORT.items():
        usual = config(tile, programs)
        blocks = tuple((name, summed if name == "r0" else n) for name, n in usual.blocks)
        cost = found.judge(replace(usual, blocks=blocks))
        assert isinstance(cost, Cost)
        assert cost.seconds == pytest.approx(us * 1e-6, rel=0.15)
        expected[tile, programs, summed] = cost.seconds
    for tile, programs in ((WIDE, 1), (SQUARE, 2)):
        assert expected[tile, programs, 32] > 1.25 * expected[tile, programs, 64]


def batch_norm_residual(
    x: torch.Tensor, w: torch.Tensor, r: torch.Tensor, *norm: torch.Tensor
) -> torch.Tensor:
    mean, variance, scale, shift = (n.float() for n in norm)
    found = F.linear(x, w).float()
    found = (found - mean) * torch.rsqrt(variance + 1e-5) * scale + shift
    return F.relu(found.to(x.dtype) + r)


FEW_TURNS: dict[tuple[tuple[int, int, int], int, int], float] = {
    ((128, 64, 4), 0, 64): 35.4,
    ((128, 128, 8), 0, 64): 35.5,
    ((128, 64, 4), 2, 64): 41.6,
    ((128, 128, 8), 2, 32): 41.8,
    ((128, 128, 4), 2, 32): 44.3,
}
"""Microseconds of a bottleneck's last layer in ResNet, 12544 x 256 x 1024 with batch norm and
residual, by tile, programs an SM, and what is summed in a turn: its loop has 4 or 8 turns."""


def test_a_short_loop_hides_little_of_what_stands_between_tiles() -> None:
    vector = torch.empty(1024, dtype=torch.bfloat16, device="meta")
    shapes = (12544, 256), (1024, 256), (12544, 1024)
    given = [torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in shapes]
    found = space_of(graph_of(batch_norm_residual, [*given, *[vector] * 4]), H100)
    assert isinstance(found, Space)
    expected = dict[int, list[float]]()
    for (tile, programs, summed), us in FEW_TURNS.items():
        usual = config(tile, programs)
        blocks = tuple((name, summed if name == "r0" else n) for name, n in usual.blocks)
        of_parts = usual.subtiles if programs else 1
        cost = found.judge(replace(usual, blocks=blocks, subtiles=of_parts))
        assert isinstance(cost, Cost)
        assert cost.seconds == pytest.approx(us * 1e-6, rel=0.12)
        expected.setdefault(programs, []).append(cost.seconds)
    assert max(expected[0]) < min(expected[2])
    (best, _), *_ = found.ranked(1)
    assert not best.programs
