"""Sums of exponentials of rows in which all is minus infinity: NaN, as in eager."""

from __future__ import annotations

import pytest
import torch
from corpus import graph_of, tensor
from fusionplan.planner.codegen.source import Program
from fusionplan.planner.config import Config
from fusionplan.planner.lower import lower
from oracle import DEVICE, check, whole_group

pytestmark = pytest.mark.dynamo

LOOP = Config((("r0", 512), ("x0", 2)), 1, 1, reduction="loop")
SPLIT = Config((("x0", 1), ("y0", 1), ("y1", 1)), 4, 1, split=4)
SPLIT_LOOP = Config((("r0", 256), *SPLIT.blocks), 4, 1, reduction="loop", split=4)


def log_sum(x: torch.Tensor) -> list[torch.Tensor]:
    """As the forward pass of a cross-entropy keeps it."""
    top = x.amax(-1, keepdim=True)
    return [top, (x - top).exp().sum(-1, keepdim=True).log()]


def the_sum(x: torch.Tensor) -> torch.Tensor:
    return (x - x.amax(-1, keepdim=True)).exp().sum(-1)


def one_over(x: torch.Tensor) -> torch.Tensor:
    return 1 / (x - x.amax(-1, keepdim=True)).exp().sum(-1)


def below_the_least(x: torch.Tensor) -> torch.Tensor:
    return (x.amin(-1, keepdim=True) - x).exp().sum(-1)


def chosen(x: torch.Tensor) -> torch.Tensor:
    """The largest of such a row stands as 0: minus infinity, not NaN."""
    return torch.logsumexp(x, -1)


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


def safe(x: torch.Tensor) -> torch.Tensor:
    """0 where all is masked, by the user's own choice."""
    e = torch.where(x == -torch.inf, 0.0, (x - x.amax(-1, keepdim=True)).exp())
    return e.sum(-1)


def masked() -> torch.Tensor:
    """Parts of a row are, too."""
    x = torch.randn(6, 4096, generator=torch.Generator().manual_seed(2))
    x[1], x[2, :2500], x[3, 7] = -torch.inf, -torch.inf, torch.inf
    x[4, 3], x[5] = torch.nan, torch.inf
    return x.to(DEVICE)


@pytest.mark.parametrize(
    "function", [log_sum, the_sum, one_over, below_the_least, chosen, softmax, safe]
)
def test_a_row_of_minus_infinity_sums_to_nan(function) -> None:
    assert check(function, [masked()], [LOOP]) == 1


@pytest.mark.parametrize("config", [SPLIT, SPLIT_LOOP], ids=["held", "loop"])
@pytest.mark.parametrize("function", [log_sum, below_the_least, chosen, safe])
def test_so_do_its_parts(function, config) -> None:
    assert check(function, [masked()], [config]) == 2


def text(function) -> str:
    found = lower(whole_group(graph_of(function, [tensor(6, 4096)])).graph, LOOP)
    assert isinstance(found, Program), found
    return found.kernels[0].text


def test_quotients_are_left_alone() -> None:
    assert 'float("inf")' in text(the_sum).replace('float("-inf")', "")
    assert 'float("inf")' not in text(softmax).replace('float("-inf")', "")
