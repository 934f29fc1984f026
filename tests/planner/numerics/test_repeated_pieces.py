"""Concatenations of one piece again and again: the index says which piece, and all are the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from oracle import check, data, space

pytestmark = [pytest.mark.dynamo, pytest.mark.interpreter]


def twice(x: torch.Tensor) -> torch.Tensor:
    """Two pieces of length 1."""
    return torch.cat([x[:1, :8], x[:1, :8]]).exp()


def thrice(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x[:1, :8]] * 3).exp()


def expanded(x: torch.Tensor) -> torch.Tensor:
    """Two pieces of three rows that are one row in memory."""
    return torch.cat([x.as_strided((3, 8), (0, 1))] * 2).exp()


def constants(x: torch.Tensor) -> torch.Tensor:
    """Two pieces of equal numbers."""
    ones = torch.cat([torch.ones(2, device=x.device), torch.ones(3, device=x.device)])
    return ones[:, None] * x[0, 0] + torch.zeros(5, 8, device=x.device)


REDUCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda x: x.sum(0),
    "sum of all": lambda x: x.sum(),
    "mean": lambda x: x.mean(0),
    "product": lambda x: x.prod(0),
    "maximum": lambda x: x.amax(0),
    "softmax": lambda x: torch.softmax(x, 0),
    "logsumexp": lambda x: torch.logsumexp(x, 0),
    "running sum": lambda x: x.cumsum(0),
}


@pytest.mark.parametrize("reduce", REDUCTIONS.values(), ids=REDUCTIONS)
@pytest.mark.parametrize("pieces", [twice, thrice, expanded, constants])
def test_each_piece_counts(pieces: Callable, reduce: Callable) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return reduce(pieces(x))

    inputs = [data(4, 16, dtype=torch.float32)]
    configs = [config for config, _ in space(function, inputs).ranked(64)]
    # Of each layout the first.
    first = {config.layout: config for config in reversed(configs)}
    assert check(function, inputs, [*first.values()]) >= len(first)
