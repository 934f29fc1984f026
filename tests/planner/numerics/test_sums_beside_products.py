"""Sums of what a product takes in, along the axis that it sums: the gradient of a bias beside that
of its weight. They are products with ones, so that the tiles need not pass the registers."""

from __future__ import annotations

import pytest
import torch
from fusionplan.planner.config import Config
from fusionplan.planner.errors import Refusal
from fusionplan.planner.lower import lower
from fusionplan.planner.space.space import Space
from oracle import check, data, interpreted, space

pytestmark = pytest.mark.dynamo

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


def text(found: Space, config: Config) -> str:
    program = lower(found.group, config, interpreted=interpreted())
    assert not isinstance(program, Refusal)
    return "\n".join(kernel.text for kernel in program.kernels)


def layouts(found: Space) -> list[Config]:
    """The model's best config of each kind."""
    every = reversed([config for config, _ in found.seeds(400)])
    kinds = {(c.reduction, c.access, c.programs > 0, c.subtiles > 1): c for c in every}
    return list(kinds.values())


def by_ones(found: Space, reduction: str) -> Config:
    """The model's best config of these whose sums are products with ones: not all tiles have them,
    and the best need not."""
    held = (config for config, _ in found.seeds(400) if config.reduction == reduction)
    return next(config for config in held if "_ones" in text(found, config))


SUMMED = {
    "left": (lambda x, y: (x.t() @ y, x.sum(0)), (96, 40), (96, 48)),
    "right": (lambda x, y: (x.t() @ y, y.sum(0, keepdim=True)), (96, 40), (96, 48)),
    "both": (lambda x, y: (x.t() @ y, x.sum(0), y.sum(0)), (96, 40), (96, 48)),
    "rows": (lambda x, y: (x @ y, x.sum(1)), (40, 96), (96, 48)),
    "ragged": (lambda x, y: (x.t() @ y, x.sum(0)), (75, 33), (75, 51)),
    "batches": (lambda x, y: (x.mT @ y, x.sum(1)), (3, 96, 40), (3, 96, 48)),
    "and_behind": (lambda x, y: (torch.relu(x.t() @ y) * 2, x.sum(0)), (96, 40), (96, 48)),
}


@pytest.mark.parametrize("dtype", [BF16, F16, F32], ids=str)
@pytest.mark.parametrize("name", SUMMED)
def test_sums_of_operands(name: str, dtype: torch.dtype, few_ranked: None) -> None:
    function, left, right = SUMMED[name]
    inputs = [data(*left, dtype=dtype), data(*right, dtype=dtype, seed=1)]
    found = space(function, inputs)
    chosen = layouts(found)
    if dtype == F32:
        assert not any("_ones" in text(found, c) for c in chosen)
    else:
        chosen += [by_ones(found, reduction) for reduction in ("held", "loop")]
    assert check(function, inputs, chosen) >= len(set(chosen))


def test_infinities_and_nan_stay_in_their_sums(few_ranked: None) -> None:
    x, y = data(64, 32, dtype=F16), data(64, 32, dtype=F16, seed=1)
    x[3, 4], x[5, 6], x[7, 6], x[9, 8] = torch.nan, torch.inf, -torch.inf, torch.inf
    x[:, 10] = 60000.0  # Its sum is beyond float16.

    def function(x, y):
        return x.t() @ y, x.sum(0)

    found = space(function, [x, y])
    chosen = layouts(found)
    assert all("_ones" in text(found, c) for c in chosen)
    assert check(function, [x, y], chosen) == len(chosen)


REFUSED = {
    # The sum is of what eager sums, not of the product's rounded operand.
    "computed": lambda x, y: (torch.sigmoid(x).t() @ y, torch.sigmoid(x).sum(0)),
    # Eager rounds every element first.
    "integers": lambda x, y: (x.t() @ y, x.sum(0, dtype=torch.int64)),
    # Tensor cores add less exactly than these results show.
    "float32": lambda x, y: (x.t() @ y, x.sum(0, dtype=torch.float32)),
    "float64": lambda x, y: (x.t() @ y, x.sum(0, dtype=torch.float64)),
    "read_again": lambda x, y: (x.t() @ y).float() - x.float().sum(0)[:, None],
    # The tile is in registers for another reader.
    "stored": lambda x, y: (x.t() @ y, x.sum(0), x * 2),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_sums_are_of_registers(name: str, few_ranked: None) -> None:
    inputs = [data(96, 40), data(96, 48, seed=1)]
    found = space(REFUSED[name], inputs)
    chosen = layouts(found)
    assert not any("_ones" in text(found, c) for c in chosen)
    assert check(REFUSED[name], inputs, chosen) >= len(chosen)


def test_a_sum_that_two_loops_need_is_of_registers(few_ranked: None) -> None:
    def function(x, y):
        s, z = x.sum(1, dtype=torch.float32), (x @ y).float()
        return ((s - s.amax(0)).abs().sqrt()[:, None] * z).sum(0)

    inputs = [data(40, 64), data(64, 48, seed=1)]
    found = space(function, inputs)
    chosen = layouts(found)
    assert "nested" in {c.reduction for c in chosen}
    assert check(function, inputs, chosen) >= len(chosen)


def test_the_model_thinks_it_nearly_free() -> None:
    def alone(x, y):
        return x.t() @ y

    def beside(x, y):
        return x.t() @ y, x.sum(0)

    inputs = [data(1024, 3072), data(1024, 768, seed=1)]
    plain, summed = (space(f, inputs).seeds(60)[0][1] for f in (alone, beside))
    assert plain.seconds < summed.seconds < 1.1 * plain.seconds
