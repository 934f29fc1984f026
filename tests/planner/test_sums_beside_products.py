"""Sums of what a product takes in, along the axis that it sums: the gradient of a bias beside that
of its weight. They are products with ones, so that the tiles need not pass the registers."""

from __future__ import annotations

import pytest
import torch
from fusionplan.planner.costs.device import H200
from fusionplan.planner.costs.space import Space, space_of
from fusionplan.planner.lower import lower
from oracle import DEVICE, captured, check, interpreted, whole_group

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


def data(*shape: int, dtype=BF16, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def space(function, inputs) -> Space:
    found = space_of(whole_group(captured(function, inputs)[0].graph).graph, H200)
    assert isinstance(found, Space), found
    return found


def texts(found: Space) -> list[tuple[object, str]]:
    """Of the model's first configs in which the products are products of tiles."""
    chosen = [c for c, _ in found.seeds(60)][:12]
    programs = [lower(found.group, c, interpreted=interpreted()) for c in chosen]
    return [
        (config, "\n".join(kernel.text for kernel in program.kernels))
        for config, program in zip(chosen, programs, strict=True)
    ]


SUMMED = {
    "left": (lambda x, y: (x.t() @ y, x.sum(0)), (96, 40), (96, 48)),
    "right": (lambda x, y: (x.t() @ y, y.sum(0, keepdim=True)), (96, 40), (96, 48)),
    "both": (lambda x, y: (x.t() @ y, x.sum(0), y.sum(0)), (96, 40), (96, 48)),
    "rows": (lambda x, y: (x @ y, x.mean(1)), (40, 96), (96, 48)),
    "ragged": (lambda x, y: (x.t() @ y, x.sum(0)), (75, 33), (75, 51)),
    "batches": (lambda x, y: (x.mT @ y, x.sum(1)), (3, 64, 32), (3, 64, 48)),
    "and_behind": (lambda x, y: (torch.relu(x.t() @ y) + y.sum(0), x.sum(0)), (96, 40), (96, 48)),
}


@pytest.mark.parametrize("dtype", [BF16, F16, F32], ids=str)
@pytest.mark.parametrize("name", SUMMED)
def test_sums_of_operands(name: str, dtype: torch.dtype) -> None:
    function, left, right = SUMMED[name]
    inputs = [data(*left, dtype=dtype), data(*right, dtype=dtype, seed=1)]
    found = space(function, inputs)
    every = [c for c, _ in found.seeds(400)]
    layouts = {(c.reduction, c.access, c.programs > 0, c.subtiles > 1): c for c in reversed(every)}
    chosen = list(layouts.values())
    assert check(function, inputs, chosen) >= len(chosen)
    by_ones = ["_ones" in text for _, text in texts(found)]
    assert any(by_ones) if dtype != F32 else not any(by_ones)


def test_a_sum_that_overflows_or_meets_nan_is_as_the_plain_one() -> None:
    x, y = data(64, 32, dtype=F16), data(64, 32, dtype=F16, seed=1)
    x[3, 4], x[5, 6], x[7, 6], x[9, 8] = torch.nan, torch.inf, -torch.inf, torch.inf

    def function(x, y):
        return x.t() @ y, x.sum(0, dtype=torch.float32)

    found = space(function, [x, y])
    assert all("_ones" in text for _, text in texts(found)[:2])
    chosen = [c for c, _ in found.seeds(20)][:3]
    assert check(function, [x, y], chosen) == len(chosen)


def test_what_is_computed_first_is_summed_in_registers() -> None:
    """The sum is of what eager sums, not of the product's rounded operand."""

    def function(x, y):
        z = torch.sigmoid(x)
        return z.t() @ y, z.sum(0)

    found = space(function, [data(96, 40), data(96, 48, seed=1)])
    assert not any("_ones" in text for _, text in texts(found))


def test_the_model_thinks_it_nearly_free() -> None:
    def alone(x, y):
        return x.t() @ y

    def beside(x, y):
        return x.t() @ y, x.sum(0)

    inputs = [data(1024, 3072), data(1024, 768, seed=1)]
    plain, summed = (space(f, inputs).seeds(60)[0][1] for f in (alone, beside))
    assert plain.seconds < summed.seconds < 1.1 * plain.seconds
