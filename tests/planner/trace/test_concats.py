"""Many pieces of one size that are put together are stored one by one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from fusionplan.planner.costs.device import H200
from fusionplan.planner.space.space import Space, space_of
from fusionplan.planner.trace.trace import trace
from fusionplan.planner.values.values import Choice
from oracle import captured, check, whole_group

pytestmark = pytest.mark.dynamo

Function = Callable[..., torch.Tensor]


def stacked(x: torch.Tensor, table: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    rows = [table[at[:, k]] for k in range(4)]
    return torch.stack([x.relu(), *rows], 1)


def joined(dim: int) -> Function:
    return lambda x, y: torch.cat([x, y, x * y, x, y + 1], dim)


def interleaved(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.stack([x, y, x + y, x - y], -1)


def unequal(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.cat([x, y, x, y[:, :3]], 1)


def read_again(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.cat([x, y, y, x], 1).relu()


A = torch.randn(7, 24), torch.randn(7, 24)
AT = torch.randint(0, 9, (7, 4))


@pytest.mark.parametrize(
    "function, inputs, stores",
    [
        (stacked, (A[0], torch.randn(9, 24), AT), 5),
        (joined(1), A, 5),
        (joined(0), A, 5),
        (joined(-1), (A[0], torch.randn(7, 24).bfloat16()), 5),
        (interleaved, A, 1),  # Neighbours in memory are of different pieces.
        (unequal, A, 1),
        (read_again, A, 1),
    ],
)
@pytest.mark.interpreter
def test_pieces_of_one_size_are_stored_one_by_one(
    function: Function, inputs: tuple[torch.Tensor, ...], stores: int
) -> None:
    graph = captured(function, list(inputs))[0].graph
    group = whole_group(graph)
    values = trace(group.graph)
    assert len(values.outputs) == stores
    assert any(isinstance(v.kind, Choice) for v in values.values) == (stores == 1)
    space = space_of(group.graph, H200)
    assert isinstance(space, Space)
    configs = [config for config, _ in space.ranked(2)]
    assert check(function, list(inputs), configs) == len(configs)
