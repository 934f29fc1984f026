"""Products of one row with weights of 4 bits: sums on tensor cores, and the row's halves loaded
together."""

from __future__ import annotations

import pytest
import torch
from corpus import graph_of, tensor
from fusionplan.planner.codegen.source import Program
from fusionplan.planner.config import Config
from fusionplan.planner.lower import lower, tile_programs
from fusionplan.planner.tiles.instructions import QuadSum, TileCompute, TileLoad
from fusionplan.planner.tiles.passes.load_pairs import load_pairs
from fusionplan.planner.tiles.program import TileProgram
from fusionplan.planner.tiles.verify import verify
from oracle import DEVICE, check, whole_group

pytestmark = pytest.mark.dynamo

ROWS, EACH = 32, 128
"""Rows of weights, and how many share a scale."""


def product(x: torch.Tensor, w: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """As `split_packed_sums` leaves it."""
    sums = []
    for place, part in enumerate((w & 15, w >> 4)):
        weights = (part.to(torch.int8) - 8).view(ROWS, -1, EACH // 2).to(x.dtype).float()
        row = x[:, place::2].view(-1, 1, EACH // 2).float()
        sums.append(torch.bmm(row, weights.permute(1, 2, 0)))
    total = sums[0] + sums[1]
    return (total * scales.t()[:, None]).sum(0).to(x.dtype)


def given(columns: int, dtype: torch.dtype = torch.bfloat16) -> list[torch.Tensor]:
    w = tensor(ROWS, columns // 2, dtype=torch.uint8)
    return [tensor(1, columns, dtype=dtype), w, tensor(ROWS, columns // EACH, dtype=dtype)]


def program_of(
    columns: int, rows: int, warps: int, dtype: torch.dtype = torch.bfloat16
) -> TileProgram:
    group = whole_group(graph_of(product, given(columns, dtype))).graph
    found = tile_programs(group, Config((("x0", rows),), warps, 1), load_pairs)
    assert isinstance(found, list), found
    (program,) = found
    verify(program)
    return program


@pytest.mark.parametrize(
    "columns, rows, warps, vectors", [(2048, 8, 4, 1), (8192, 4, 4, 2), (2048, 4, 2, 1)]
)
def test_bits_are_multiplied_by_quads_and_the_row_is_loaded_once(
    columns: int, rows: int, warps: int, vectors: int
) -> None:
    program = program_of(columns, rows, warps)
    (one,) = (each for each in program.body if isinstance(each, QuadSum))
    assert ([shift for shift, _ in one.parts], one.width, one.offset) == ([0, 4], 4, 8)
    assert one.vectors == vectors
    assert not any(isinstance(each, TileCompute) and each.bits for each in program.body)
    halves = [e for e in program.body if isinstance(e, TileLoad) and e.between is not None]
    assert len(halves) == 1
    assert f"those between as v{halves[0].between}" in str(program)
    assert "by bits 0 to 3 * v" in str(program)


@pytest.mark.parametrize(
    "columns, rows, warps, dtype",
    [
        (2048, 8, 4, torch.float32),  # A tensor core would round the row.
        (2048, 2, 4, torch.bfloat16),  # A lane has one row.
        (512, 8, 4, torch.bfloat16),  # The lanes of a warp have several.
    ],
)
def test_other_products_go_one_by_one(
    columns: int, rows: int, warps: int, dtype: torch.dtype
) -> None:
    program = program_of(columns, rows, warps, dtype)
    assert not any(isinstance(each, QuadSum) for each in program.body)


@pytest.mark.interpreter
def test_the_kernel_has_a_plain_one_beside_it_and_its_numbers_are_eagers() -> None:
    group = whole_group(graph_of(product, given(2048))).graph
    config = Config((("x0", 8),), 4, 1)
    found = lower(group, config)
    assert isinstance(found, Program), found
    (kernel,) = found.kernels
    assert "quad_sums_4_8_1_at_0_at_4(tl.reshape(" in kernel.text
    assert kernel.plain is not None
    assert "quad_sums" not in kernel.plain.text
    assert kernel.plain.buffers == kernel.buffers
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(1, 2048, generator=generator)
    w = torch.randint(0, 256, (ROWS, 1024), generator=generator, dtype=torch.uint8)
    scales = torch.rand(ROWS, 2048 // EACH, generator=generator)
    inputs = [x.to(DEVICE, torch.bfloat16), w.to(DEVICE), scales.to(DEVICE, torch.bfloat16)]
    assert check(product, inputs, [config]) == 1
