"""Updates of inputs that kernels write in place: optimisers' steps, and what must be copied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from fusionplan.api import executors, load
from oracle import DEVICE

pytestmark = [pytest.mark.dynamo, pytest.mark.interpreter]

Tensors = list[torch.Tensor]


def adam(params: Tensors, grads: Tensors, means: Tensors, squares: Tensors) -> None:
    for p, g, m, v in zip(params, grads, means, squares, strict=True):
        m.mul_(0.9).add_(g, alpha=0.1)
        v.mul_(0.999).addcmul_(g, g, value=1e-3)
        p.addcdiv_(m, v.sqrt().add_(1e-8), value=-1e-3)


def adam_of_lists(params: Tensors, grads: Tensors, means: Tensors, squares: Tensors) -> None:
    torch._foreach_lerp_(means, grads, 0.1)
    torch._foreach_mul_(squares, 0.999)
    torch._foreach_addcmul_(squares, grads, grads, 1e-3)
    roots = torch._foreach_sqrt(squares)
    torch._foreach_add_(roots, 1e-8)
    torch._foreach_addcdiv_(params, means, roots, -1e-3)


def clipped(params: Tensors, grads: Tensors, means: Tensors, squares: Tensors) -> None:
    total = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
    scale = torch.clamp(1.0 / (total + 1e-6), max=1.0)
    torch._foreach_mul_(grads, scale)


def moving_average(params: Tensors, grads: Tensors, means: Tensors, squares: Tensors) -> None:
    for p, m in zip(params, means, strict=True):
        m.mul_(0.99).add_(p, alpha=0.01)


def run(
    function: Callable[..., Any], inputs: Sequence[Any], tmp_path: Path
) -> tuple[Any, Any, Any, Any]:
    """What eager and ours return, and what they leave in the inputs."""
    copies = [torch.utils._pytree.tree_map(lambda t: t.clone(), inputs) for _ in range(2)]
    fast = load(function, store=str(tmp_path / "none.db"), on_miss="model", dynamic=False)
    with torch.no_grad():
        wanted, got = function(*copies[0]), fast(*copies[1])
    return wanted, got, copies, fast


def lists() -> list[Tensors]:
    torch.manual_seed(0)
    shapes = [(64, 32), (64,), (33, 7)]
    return [[torch.rand(s, device=DEVICE) for s in shapes] for _ in range(4)]


@pytest.mark.parametrize("function", [adam, adam_of_lists, moving_average])
def test_a_step_of_an_optimiser_writes_in_place(function: Callable[..., Any], tmp_path: Path):
    inputs = lists()
    _, _, (eager, ours), fast = run(function, inputs, tmp_path)
    torch.testing.assert_close(ours, eager)
    assert any((a != b).any() for a, b in zip(ours[2], inputs[2], strict=True))
    (executor,) = executors(fast)
    assert executor.kernels_per_call <= 3
    assert "copy_all" not in executor.text


def test_clipping_reads_all_before_it_writes(tmp_path: Path):
    _, _, (eager, ours), fast = run(clipped, lists(), tmp_path)
    torch.testing.assert_close(ours, eager)
    assert sum(each.kernels_per_call for each in executors(fast)) > 0


def returned(p: torch.Tensor) -> torch.Tensor:
    q = p * 2
    p.copy_(q)
    return q


def turned(p: torch.Tensor) -> None:
    p.copy_(p.t() * 2)


def summed(p: torch.Tensor) -> None:
    p.sub_(p.mean(-1, keepdim=True))


def shifted(p: torch.Tensor) -> None:
    p.copy_(torch.roll(p, 1, 0) + p)


def read_later(p: torch.Tensor) -> torch.Tensor:
    old = torch.linalg.inv(p + 20 * torch.eye(16, device=p.device))
    p.mul_(2)
    return old


def old_view(p: torch.Tensor) -> torch.Tensor:
    first = p[0] + 0
    p.add_(1)
    return first * p[1]


def two_from_one(p: torch.Tensor, q: torch.Tensor) -> None:
    new = p * 3
    p.copy_(new)
    q.copy_(new)


def exchanged(p: torch.Tensor, q: torch.Tensor) -> None:
    left, right = q * 2, p * 3
    p.copy_(left)
    q.copy_(right)


@pytest.mark.filterwarnings("error:fusionplan. a graph cannot be planned")
@pytest.mark.parametrize(
    "function", [returned, turned, summed, shifted, read_later, old_view, two_from_one, exchanged]
)
def test_what_others_read_is_as_in_eager(function: Callable[..., Any], tmp_path: Path):
    torch.manual_seed(1)
    count = function.__code__.co_argcount
    inputs = [torch.rand(16, 16, device=DEVICE) for _ in range(count)]
    wanted, got, (eager, ours), _ = run(function, inputs, tmp_path)
    torch.testing.assert_close(ours, eager)
    if wanted is not None:
        torch.testing.assert_close(got, wanted)
        assert got.data_ptr() not in {t.data_ptr() for t in ours}
