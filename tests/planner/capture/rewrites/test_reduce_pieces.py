"""Rows with a few elements joined to them are reduced as two pieces."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from fusionplan.planner.capture.capture import decompositions
from fusionplan.planner.capture.rewrites.reduce_pieces import reduce_pieces
from torch.fx.experimental.proxy_tensor import make_fx

aten = torch.ops.aten
X, SINK = torch.randn(2, 5, 70), torch.randn(2, 1, 1)

Function = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def rows(x: torch.Tensor, sink: torch.Tensor, last: bool = True) -> torch.Tensor:
    more = sink.expand(*x.shape[:-1], 1)
    return torch.cat([x, more] if last else [more, x], -1)


def with_sink(x: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
    both = rows(x, sink)
    both = both - both.max(-1, keepdim=True).values
    return torch.softmax(both, -1, dtype=torch.float64)[..., :-1]


def sink_first(x: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
    return torch.softmax(rows(x, sink, last=False).exp(), -1)[..., 1:] * 2


def all_stored(x: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
    return torch.softmax(rows(x, sink), -1)


def other_part(x: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
    return torch.softmax(rows(x, sink), -1)[..., 3:]


def each_its_own(x: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
    return (rows(x, sink) * torch.arange(71.0)).sum(-1)


def not_reduced(x: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
    return rows(x, sink).exp()[..., :-1]


@pytest.mark.parametrize(
    "function, is_split",
    [
        (with_sink, True),
        (sink_first, True),
        (all_stored, False),
        (other_part, False),
        (each_its_own, False),
        (not_reduced, False),
    ],
)
def test_joined_rows(function: Function, is_split: bool) -> None:
    table = decompositions()
    gm = make_fx(function, decomposition_table=table, tracing_mode="fake")(X, SINK)
    found = reduce_pieces(gm)
    assert (found is not gm) == is_split
    assert any(n.target is aten.cat.default for n in found.graph.nodes) == (not is_split)
    torch.testing.assert_close(found(X, SINK), function(X, SINK))
