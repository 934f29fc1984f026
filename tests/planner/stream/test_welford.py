"""Variances in one sweep: sums of squared distances that follow the mean while it is under way."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F
from fusionplan.planner.codegen.source import Program
from fusionplan.planner.config import LOOP, Config, Layout
from fusionplan.planner.lower import lower
from fusionplan.planner.nests.group_nests import Schedule, schedule_group
from fusionplan.planner.runtime.machine_code.compile import interpreted
from oracle import DEVICE, captured, check, run_program, whole_group

pytestmark = pytest.mark.dynamo

FUNCTIONS: dict[str, Callable[..., object]] = {
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "var_mean": lambda x: torch.var_mean(x, -1),
    "std": lambda x: torch.std(x, -1),
    "over_columns": lambda x: torch.var(x, 0, correction=0),
    "batch": lambda x: F.batch_norm(x, None, None, training=True),
    "by_hand": lambda x: (x - x.mean(-1, keepdim=True)).pow(2).mean(-1),
    "to_16_bits": lambda x: F.layer_norm(x.bfloat16().float(), x.shape[-1:]).bfloat16(),
    "of_a_product": lambda x: F.instance_norm((x * 2).relu()[None]),
}


def blocks(function: Callable[..., object], inputs: Sequence[torch.Tensor], parts: int, size: int):
    """A config that loops in blocks of a size, and the kernels it gives."""
    group = whole_group(captured(function, inputs)[0].graph).graph
    found = schedule_group(group, Layout("natural", "loop", parts))
    assert isinstance(found, Schedule), found
    blocks_of = {"r": size, "x": 4}  # Those of a later kernel are large: the interpreter is slow.
    names = sorted({axis.name for kernel in found.kernels for axis in kernel.nest.axes})
    sizes = tuple((name, blocks_of.get(name[0], 64)) for name in names)
    return Config(sizes, reduction="loop", split=parts, num_warps=4), found


@pytest.mark.parametrize("size", [16, 128])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_variance_joins_the_pass_of_its_mean(name: str, size: int) -> None:
    """One loop gathers both; blocks that end past the row, more lanes than rows."""
    x = torch.randn(9, 83, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    config, found = blocks(FUNCTIONS[name], [x], 1, size)
    (kernel,) = found.kernels
    first, *later = kernel.nest.loops()
    assert len(first.carries) == 2
    assert all(not loop.carries for loop in later)
    assert [proof.rule for proof in kernel.nest.derived.proofs] == ["welford"]
    assert check(FUNCTIONS[name], [x], [config]) == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", ["layer_norm", "over_columns", "batch"])
def test_parts_of_a_variance_are_put_together(name: str, dtype: torch.dtype) -> None:
    """Every part has a mean of its own, in a kernel that reads it once."""
    shape = (4096, 3) if name == "over_columns" else (64, 5, 96) if name == "batch" else (3, 4096)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(2)).to(DEVICE, dtype)
    config, found = blocks(FUNCTIONS[name], [x], 8, 256)
    partial, final = found.kernels
    assert [len(loop.carries) for loop in partial.nest.loops()] == [2]
    assert not any(loop.carries for loop in final.nest.loops())
    assert check(FUNCTIONS[name], [x], [config]) == 2


@pytest.mark.parametrize(
    "mean, deviation, parts",
    [
        (1e4, 1.0, 1),
        (-3e5, 1.0, 1),
        (0.0, 1e-18, 1),
        (0.0, 1e-18, 4),
        (1e6, 0.0, 1),
        (1e6, 0.0, 4),
    ],
)
def test_far_from_zero(mean: float, deviation: float, parts: int) -> None:
    """Squares of the values themselves would cancel; squares of distances do not."""
    x = torch.randn(3, 4100, generator=torch.Generator().manual_seed(3)) * deviation + mean
    x[1, :7] += 1000 * deviation  # The first elements lie far from all others.
    config, _ = blocks(FUNCTIONS["var_mean"], [x.to(DEVICE)], parts, 512)
    assert check(FUNCTIONS["var_mean"], [x.to(DEVICE)], [config]) == min(parts, 2)


def test_means_of_parts_far_from_zero() -> None:
    """They are float32 numbers, here 1e-3 apart, which their own deviations of 0.03 leave to be
    seen: what eager on a GPU joins, block by block, is no better known."""
    x = torch.randn(3, 4100, generator=torch.Generator().manual_seed(3)) + 1e4
    config, _ = blocks(FUNCTIONS["var_mean"], [x.to(DEVICE)], 4, 512)
    found, given = captured(FUNCTIONS["var_mean"], [x.to(DEVICE)])
    part = whole_group(found.graph)
    program = lower(part.graph, config, interpreted=interpreted())
    assert isinstance(program, Program)
    results = sorted(run_program(program, part, given), key=lambda each: float(each.mean()))
    exact = torch.var_mean(x.double(), -1)  # The variances are the smaller numbers.
    for mine, want in zip(results, exact, strict=True):
        torch.testing.assert_close(mine.cpu().double().view(-1), want, rtol=2e-4, atol=0)


def test_infinities_and_nans_stay_in_their_rows() -> None:
    x = torch.randn(6, 1000, generator=torch.Generator().manual_seed(4))
    x[1, 3], x[2, 999], x[3, 500], x[4, 0] = torch.inf, -torch.inf, torch.nan, 1e15
    config, _ = blocks(FUNCTIONS["std"], [x.to(DEVICE)], 1, 128)
    assert check(FUNCTIONS["std"], [x.to(DEVICE)], [config]) == 1


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x - x.mean(-1, keepdim=True)).abs().sum(-1),
        lambda x: (x - x.sum(-1, keepdim=True) / 50).pow(2).sum(-1),
        lambda x: (x - (2 * x).mean(-1, keepdim=True)).pow(2).sum(-1),
        lambda x: (x - x.mean((0, 1), keepdim=True)).pow(2).sum(-1),
    ],
    ids=["no_square", "another_count", "mean_of_another", "mean_over_more"],
)
def test_what_is_no_variance_keeps_its_pass(function: Callable[..., object]) -> None:
    x = torch.randn(37, 83, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    group = whole_group(captured(function, [x])[0].graph).graph
    found = schedule_group(group, LOOP)
    assert isinstance(found, Schedule), found
    for kernel in found.kernels:
        assert all(proof.rule != "welford" for proof in kernel.nest.derived.proofs)
