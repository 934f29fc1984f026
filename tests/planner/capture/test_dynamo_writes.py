"""Writes through views that AOTAutograd makes something else of than eager, and those alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fusionplan.planner.capture.dynamo_writes import results_overlap, writes_overlap
from torch import Tensor, fx

pytestmark = pytest.mark.dynamo


def overlaps(function: Callable[[Tensor], object], *, dynamic: bool = False) -> bool:
    found: list[bool] = []

    def backend(gm: fx.GraphModule, _: Any) -> Callable[..., Any]:
        found.append(writes_overlap(gm))
        return gm.forward

    torch._dynamo.reset()
    torch.compile(function, backend=backend, dynamic=dynamic)(torch.randn(4, 12))
    (only,) = found
    return only


@pytest.mark.parametrize(
    "write",
    [
        lambda x: (x[:, :1] * 1).expand(4, 5).fill_(1),
        lambda x: torch.zero_((x[:, :1] * 1).expand(4, 5)),
        lambda x: (x * 1).unfold(1, 4, 5).mul_(2),
        lambda x: (x * 1).unfold(1, 5, 5)[0].mul_(2),
        lambda x: (x * 1).unfold(1, 4, 2)[:, ::2].add_(1),
    ],
)
def test_a_write_into_one_element_several_times_is_seen(
    write: Callable[[Tensor], object],
) -> None:
    assert overlaps(write)
    assert overlaps(write, dynamic=True)


@pytest.mark.parametrize(
    "write",
    [
        lambda x: (x * 1).unfold(1, 4, 4).mul_(2),
        lambda x: (x * 1).add_(x[:, :1].expand(4, 12)),
        lambda x: (x * 1)[1:].t().mul_(x[0, :1].expand(12, 3)),
        lambda x: x.unfold(1, 4, 5) * 2,
        lambda x: torch.add(x[:, :1].expand(4, 12), 1, out=torch.empty(4, 12)),
        lambda x: torch.relu(x[:, :1].expand(4, 5)) + 1,
    ],
)
def test_another_write_is_none(write: Callable[[Tensor], object]) -> None:
    assert not overlaps(write)


def test_what_is_no_graph_of_dynamos_has_none() -> None:
    assert not writes_overlap(torch.nn.Linear(2, 2))


WINDOWS = [lambda x: x.unfold(1, 4, 2), lambda x: x.t().unfold(0, 3, 1)[1:]]
APART = [
    lambda x: x.unfold(1, 4, 4),
    lambda x: x[:, :1].expand(4, 5),
    lambda x: x.t()[::2],
    lambda x: x.unfold(1, 4, 2).contiguous(),
    lambda x: x.unfold(1, 4, 2).long(),
]


@pytest.mark.parametrize("view", [*WINDOWS, *APART])
def test_results_that_overlap_are_seen(view: Callable[[Tensor], Tensor]) -> None:
    graph = fx.Graph()
    graph.output((graph.placeholder("x"),))
    next(iter(graph.nodes)).meta["val"] = view(torch.randn(4, 12))
    forward = fx.GraphModule(torch.nn.Module(), graph)
    assert results_overlap(forward, 1) == (view in WINDOWS)
    assert not results_overlap(forward, 0)  # those that are kept for the backward pass
