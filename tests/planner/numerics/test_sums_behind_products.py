"""Sums down the columns of a product that is stored as well: the gradient of a bias behind that of
an activation. Each tile of the product writes its part, and runs as it would without them."""

from __future__ import annotations

import pytest
import torch
from fusionplan.planner.config import Config
from fusionplan.planner.space.space import Space
from oracle import check, data, space

pytestmark = pytest.mark.dynamo

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


def cut(found: Space) -> list[Config]:
    """The model's best config of each kind among those that cut the rows."""
    every = reversed([config for config, _ in found.ranked(1000) if config.split > 1])
    return list({(c.split, c.access, c.programs > 0, c.subtiles): c for c in every}.values())


def behind(g, w, x):
    y = (g @ w) * torch.sigmoid(x)
    return y, y.sum(0)


def in_float32(g, w, x):
    y = (g @ w).float() * torch.sigmoid(x.float())
    return y.to(x.dtype), y.sum(0), (x.float() * 2).to(x.dtype)


def largest(g, w, x):
    y = (g @ w) * torch.sigmoid(x)
    return y, y.amax(0), y.float().mean(0)


def of_image(g, w, x):
    y = ((g @ w) * torch.sigmoid(x)).view(16, -1, w.shape[1])
    return y, y.sum((0, 1))


@pytest.mark.parametrize(
    "function, columns, dtype",
    [
        (behind, 128, BF16),
        (behind, 88, F32),
        (in_float32, 88, F16),
        (largest, 88, BF16),
        (of_image, 128, BF16),
    ],
)
def test_sums_of_columns(
    function, columns: int, dtype: torch.dtype, request: pytest.FixtureRequest
) -> None:
    if dtype != F32:  # Of float32 the first configs cut the rows into too many parts.
        request.getfixturevalue("few_ranked")
    rows, summed = 1024, 160
    inputs = [
        data(rows, summed, dtype=dtype),
        data(summed, columns, dtype=dtype, seed=1) / 8,
        data(rows, columns, dtype=dtype, seed=2),
    ]
    chosen = cut(space(function, inputs))
    assert {rows // c.split for c in chosen} >= {64, 128}
    kinds = [*{(c.split, c.subtiles): c for c in chosen}.values()]
    assert any(c.subtiles > 1 for c in kinds)
    assert check(function, inputs, kinds) == 2 * len(kinds)
