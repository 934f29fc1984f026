"""Products of numbers of 16 bits that are computed in their own type."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from corpus import graph_of, tensor
from fusionplan.planner.codegen.source import Program
from fusionplan.planner.config import Config
from fusionplan.planner.lower import lower, tile_programs
from fusionplan.planner.tiles.instructions import TileCompute
from fusionplan.planner.tiles.passes.multiply_in_pairs import multiply_in_pairs
from oracle import DEVICE, check, whole_group

pytestmark = pytest.mark.dynamo

CONFIG = Config((("x0", 2),), 2, 1)


def scaled(x: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)


def norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """As models have it: rounded, times the weight."""
    return w * scaled(x).to(x.dtype)


def wide_weight(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return norm(x, w.float()).to(x.dtype)


def unrounded(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (scaled(x) * w.float()).to(x.dtype)


def read_again(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    product = norm(x, w)
    return product + product.sum(-1, keepdim=True)


def rounding_read_again(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
    rounded = scaled(x).to(x.dtype)
    return [rounded * w, rounded.float() + 1]


def given(dtype: torch.dtype, columns: int = 64) -> list[torch.Tensor]:
    return [tensor(6, columns, dtype=dtype), tensor(columns, dtype=dtype)]


def narrow(function: Callable[..., object], dtype: torch.dtype) -> list[str]:
    """The types of what is computed in 16 bits."""
    group = whole_group(graph_of(function, given(dtype))).graph
    found = tile_programs(group, CONFIG, multiply_in_pairs)
    assert isinstance(found, list), found
    steps = [each for program in found for each in program.body if isinstance(each, TileCompute)]
    return [each.narrow for each in steps if each.narrow]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_rounded_row_times_a_weight_takes_two_numbers_an_instruction(dtype: torch.dtype) -> None:
    name = str(dtype).removeprefix("torch.")
    assert narrow(norm, dtype) == [name, name]  # the rounding, and the product
    found = lower(whole_group(graph_of(norm, given(dtype))).graph, CONFIG)
    assert isinstance(found, Program)
    assert f".to(tl.{name}) * (" in found.kernels[0].text


@pytest.mark.parametrize("function", [wide_weight, unrounded, read_again])
def test_what_is_read_wider_is_computed_so(function: Callable[..., object]) -> None:
    assert narrow(function, torch.bfloat16) == []


def test_what_others_read_too_is_rounded_for_all() -> None:
    assert narrow(rounding_read_again, torch.bfloat16) == ["bfloat16"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_its_numbers_are_those_of_eager(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    x, w = (
        (torch.randn(shape, generator=generator) * 10).to(DEVICE, dtype) for shape in ((6, 83), 83)
    )
    assert check(norm, [x, w], [CONFIG]) == 1
