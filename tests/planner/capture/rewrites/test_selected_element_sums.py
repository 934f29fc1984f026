"""Sums of one selected element: which are read without a sum, and that all of them are right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fusionplan.planner.capture import saving
from fusionplan.planner.capture.capture import decompositions
from fusionplan.planner.capture.rewrites.selected_element_sums import drop_picked_sums
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch.fx.experimental.proxy_tensor import make_fx

aten = torch.ops.aten
INSIDE = torch.tensor([1, 4, 0, 2, 4])
OUTSIDE = torch.tensor([1, -1, 5, 2**31 + 1, 4])


def selected(
    x: torch.Tensor, index: torch.Tensor, along: int, over: int, start: int = 0
) -> torch.Tensor:
    """The sum over dimension `over` of x where the place along dimension `along` is the index."""
    shape, beside = [1, 1], [1, 1]
    shape[along], beside[1 - along] = 5, 5
    places = aten.arange.start_step(start, start + 5, 1, device=x.device).view(shape)
    return torch.where(places == index.view(beside), x, 0.0).sum(over, keepdim=True)


def dropped(function: Callable[..., Any], *inputs: torch.Tensor) -> int:
    """How many sums the pass takes out of the function's graph, which stays right."""
    gm = make_fx(function, decomposition_table=decompositions(), tracing_mode="fake")(*inputs)
    found = drop_picked_sums(gm.graph)
    gm.recompile()
    torch.testing.assert_close(gm(*inputs), function(*inputs), rtol=0, atol=0)
    left = sum(n.target is aten.sum.dim_IntList for n in gm.graph.nodes)
    assert left == 1 - found
    return found


@pytest.mark.parametrize("index", [INSIDE, OUTSIDE], ids=["inside", "outside"])
@pytest.mark.parametrize("along", [0, 1])
def test_one_element_along_the_axis_is_its_own_sum(index: torch.Tensor, along: int) -> None:
    shape = [5, 5]
    shape[along] = 1
    x = torch.randn(shape)
    assert dropped(lambda x, i: selected(x, i, along, along), x, index) == 1
    assert dropped(lambda x, i: selected(x, i, along, along - 2), x, index) == 1


REFUSED: dict[str, Callable[..., Any]] = {
    "over another dimension": lambda x, i: selected(x, i, 1, 0),
    "several elements": lambda x, i: selected(x.expand(5, 5) + 0, i, 1, 1),
    "an axis that starts elsewhere": lambda x, i: selected(x, i, 1, 1, start=1),
    "another element beside": lambda x, i: torch.where(
        torch.arange(5)[None] == i[:, None], x, 1.0
    ).sum(1, keepdim=True),
    "all but one": lambda x, i: torch.where(torch.arange(5)[None] != i[:, None], x, 0.0).sum(
        1, keepdim=True
    ),
    "rounded first": lambda x, i: (
        torch.where(torch.arange(5)[None] == i[:, None], x, 0.0)
        .bfloat16()
        .sum(1, keepdim=True, dtype=torch.float32)
    ),
    "places that are no numbers of the axis": lambda x, i: torch.where(
        2 * torch.arange(5)[None] == i[:, None], x, 0.0
    ).sum(1, keepdim=True),
    "a fraction": lambda x, i: torch.where(torch.arange(5)[None] == i[:, None] + 0.5, x, 0.0).sum(
        1, keepdim=True
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_sums_stay(name: str) -> None:
    assert dropped(REFUSED[name], torch.randn(5, 1), INSIDE) == 0


SHAPES = [((4, 5), (4,)), ((1, 5), (1,)), ((5, 1), (5,)), ((5, 5), (5,)), ((5,), ())]
SHAPES += [((2, 5, 3), (2, 3)), ((1, 5, 1, 2), (1, 1, 2)), ((0, 5), (0,))]
LOSSES = [(x, t, dim) for x, t in SHAPES for dim in range(len(x))]
PICKED = {(4, 5): 1, (1, 5): 1, (5, 5): 1, (5,): 0, (1, 5, 1, 2): 1}
"""By shape, the dimension of the classes, where the loss is one of ATen's as it is."""


@pytest.mark.dynamo
@pytest.mark.parametrize("number, shape, targets, dim", [(i, *c) for i, c in enumerate(LOSSES)])
def test_gradients_of_losses_of_any_dimension(
    number: int,
    shape: tuple[int, ...],
    targets: tuple[int, ...],
    dim: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """log_softmax over the classes and over any other dimension, of one row and of several."""
    reduction = ("mean", "sum", "none")[number % 3]
    found: list[int] = []
    first, *others = saving.GRADIENT_REWRITES
    assert first is drop_picked_sums
    watched = (lambda graph: found.append(drop_picked_sums(graph)), *others)
    monkeypatch.setattr(saving, "GRADIENT_REWRITES", watched)
    generator = torch.Generator().manual_seed(0)
    count = shape[min(len(shape) - 1, 1)]
    target = torch.randint(0, count, targets, generator=generator)
    if target.numel() > 1:
        target.view(-1)[-1] = -100
    x = torch.randn(shape, generator=generator)

    def loss(x: torch.Tensor) -> torch.Tensor:
        return F.nll_loss(F.log_softmax(x, dim), target, reduction=reduction)

    want, got = gradient(loss, x), gradient(_by_decompositions(loss), x)
    torch.testing.assert_close(got, want, equal_nan=True)
    if shape in PICKED and PICKED[shape] == dim:
        assert found == [1]


def gradient(loss: Callable[..., torch.Tensor], x: torch.Tensor) -> list[torch.Tensor]:
    x = x.clone().requires_grad_()
    result = loss(x)
    beside = torch.randn(result.shape, generator=torch.Generator().manual_seed(1))
    return [result.detach(), *torch.autograd.grad(result, x, beside)]


def _by_decompositions(function: Callable[..., Any]) -> Callable[..., Any]:
    def as_it_is(gm: fx.GraphModule, _: object) -> Callable[..., Any]:
        def run(arguments: list[Any]) -> Any:
            return gm(*arguments)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    torch._dynamo.reset()
    backend = aot_autograd(
        fw_compiler=as_it_is, decompositions=decompositions(), partition_fn=saving.partition
    )
    return torch.compile(function, backend=backend, dynamic=False)
