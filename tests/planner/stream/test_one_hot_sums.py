"""The one element that an index selects is read by that index."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from corpus import graph_of, tensor
from fusionplan.planner.config import Config
from fusionplan.planner.trace.trace import trace
from fusionplan.planner.values.values import Fold, Load
from oracle import DEVICE, check, whole_group

pytestmark = pytest.mark.dynamo

HELD = Config((("x0", 2),), num_warps=1, num_stages=1)
LOOP = Config((("r0", 16), ("x0", 2)), num_warps=1, num_stages=1, reduction="loop")


def target_loss(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x, target, reduction="none")


def affine(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    here = torch.arange(x.shape[1], device=x.device) == i[:, None]
    return torch.where(here, x * 2 + x[:, :1], 0.0).sum(1)


def rows(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    """Along the outer dimension, of a part of it."""
    part = x[1:]
    here = torch.arange(len(part), device=x.device)[:, None] == i
    return torch.where(here, part, 0.0).sum(0)


def places(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    """What is selected is made of the index itself."""
    j = torch.arange(x.shape[1], device=x.device)
    return torch.where(j == i[:, None], x + j, 0.0).sum(1)


def folds(function: Callable[..., object], *inputs: torch.Tensor) -> int:
    values = trace(whole_group(graph_of(function, inputs)).graph)
    assert all(len(v.kind.at) == 1 for v in values.values if isinstance(v.kind, Load) and v.kind.at)
    return sum(isinstance(v.kind, Fold) for v in values.values)


def given(columns: int, count: int, limit: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(count, columns, generator=generator)
    return [x.to(DEVICE), (torch.arange(limit) * 7 % columns).to(DEVICE)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_cross_entropy_reads_its_target(dtype: torch.dtype) -> None:
    assert folds(target_loss, tensor(6, 83, dtype=dtype), tensor(6, dtype=torch.int64)) == 2
    x, target = given(83, 6, 6)
    target[2] = -100
    for config in (HELD, LOOP):
        assert check(target_loss, [x.to(dtype), target], [config]) == 1


@pytest.mark.parametrize("function", [affine, places])
def test_what_is_computed_from_memory_is_computed_of_one_element(
    function: Callable[..., object],
) -> None:
    assert folds(function, tensor(6, 83), tensor(6, dtype=torch.int64)) == 0
    x, i = given(83, 6, 6)
    i[1], i[4] = -1, 83  # Outside: nothing is selected, nothing is read.
    assert check(function, [x, i], [HELD]) == 1


def test_the_axis_may_be_an_outer_one_and_begin_later() -> None:
    assert folds(rows, tensor(9, 5), tensor(5, dtype=torch.int64)) == 0
    x, _ = given(5, 9, 5)
    i = torch.tensor([0, 7, 8, -1, 3], device=DEVICE)
    assert check(rows, [x, i], [Config((("x0", 4),), num_warps=1, num_stages=1)]) == 1


def test_infinities_beside_the_element_do_not_matter() -> None:
    x, i = given(83, 6, 6)
    x[:, 50:], x[3, 21] = float("-inf"), float("inf")
    assert check(affine, [x, i], [HELD]) == 1


def test_what_is_not_in_memory_is_summed_as_before() -> None:
    def several(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        later = torch.arange(x.shape[1], device=x.device) >= i[:, None]
        return torch.where(later, x, 0.0).sum(1)

    def product(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        here = torch.arange(x.shape[0], device=x.device) == i[:, None]
        return torch.where(here, x @ x.T, 0.0).sum(1)

    def a_part(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        here = (torch.arange(x.shape[1], device=x.device) + 1) == i[:, None]
        return torch.where(here, x, 0.0).sum(1)

    assert folds(several, tensor(6, 83), tensor(6, dtype=torch.int64)) == 1
    assert folds(product, tensor(6, 83), tensor(6, dtype=torch.int64)) == 2
    assert folds(a_part, tensor(6, 83), tensor(6, dtype=torch.int64)) == 1


def test_a_long_chain_of_operations_is_computed_of_one_element() -> None:
    def chain(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        here = torch.arange(x.shape[1], device=x.device) == i[:, None]
        y = x
        for _ in range(1200):
            y = y * 0.5
        return torch.where(here, y, 0.0).sum(1)

    assert folds(chain, tensor(6, 83), tensor(6, dtype=torch.int64)) == 0
