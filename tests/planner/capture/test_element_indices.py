"""Reads and writes at a place that a tensor of one number names: by index, where a copy does."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fusionplan.planner.capture.element_indices import elements_indexed, names_an_element
from torch import Tensor, fx

pytestmark = pytest.mark.dynamo

X = torch.randn(4, 6, 8, generator=torch.Generator().manual_seed(0))
P = torch.tensor(2)
ALL = slice(None)


def left_by(function: Callable[..., Any], *inputs: Tensor) -> int:
    """How many reads and writes stay views. What the graph gives and writes is the function's."""
    left = list[fx.Node]()

    def backend(gm: fx.GraphModule, given: list[Tensor]) -> Callable[..., Any]:
        before = str(gm.graph)
        found = elements_indexed(gm)
        assert str(gm.graph) == before
        left.extend(n for n in found.graph.nodes if names_an_element(n))
        assert len(left) == sum(map(names_an_element, gm.graph.nodes)) or found is not gm
        return found.forward

    torch._dynamo.reset()
    mine, theirs = ([x.clone() for x in inputs] for _ in range(2))
    got = torch.compile(function, backend=backend, dynamic=False)(*mine)
    torch.testing.assert_close(got, function(*theirs), rtol=0, atol=0)
    torch.testing.assert_close(mine, theirs, rtol=0, atol=0)
    return len(left)


@pytest.mark.parametrize(
    "items",
    [
        ("p",),
        (ALL, ALL, "p"),
        (..., "p"),
        (slice(1, 3), "p", slice(0, 6, 2)),
        (None, ALL, "p", None),
        (1, "p"),
        (ALL, "p", -1),
        ("p", ..., "p"),
    ],
)
def test_reads_and_writes_are_those_of_eager(items: tuple[Any, ...]) -> None:
    def place(p: Tensor) -> tuple[Any, ...]:
        return tuple(p if item == "p" else item for item in items)

    assert left_by(lambda x, p: x[place(p)] * 2, X, P) == 0

    def write(x: Tensor, v: Tensor, p: Tensor) -> Tensor:
        x[place(p)] = v
        return x * 2

    assert left_by(write, X, X[place(P)] + 1, P) == 0
    assert left_by(write, X, torch.tensor(0.5), P) == 0


@pytest.mark.parametrize("written", [torch.ones(1, 1, 4, 8), torch.full((4, 8), 2.5).double(), 3.5])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.float16])
def test_what_is_written_becomes_of_the_type(written: Any, dtype: torch.dtype) -> None:
    def write(x: Tensor, p: Tensor) -> Tensor:
        x[:, p] = written
        return x + 1

    assert left_by(write, X.to(dtype), P.to(torch.int32)) == 0


def test_what_is_added_at_a_place_is_written_back() -> None:
    def add(x: Tensor, p: Tensor) -> Tensor:
        x[p] += 1
        x[:, p] *= x[0, p] + 1
        return x.sum()

    assert left_by(add, X, P) == 0


def returned(x: Tensor, p: Tensor) -> Any:
    row = x[p]
    return row[1:], x * 2


def row_written(x: Tensor, p: Tensor) -> Any:
    x[p].mul_(2)
    return x + 1


def source_written(x: Tensor, p: Tensor) -> Any:
    row = x[p]
    x.add_(1)
    return row * 2


@pytest.mark.parametrize("function", [returned, row_written, source_written])
def test_a_view_stays_a_view_where_that_can_be_told(function: Callable[..., Any]) -> None:
    assert left_by(function, X, P) == 1


def test_a_source_may_be_written_when_its_read_is_over() -> None:
    def function(x: Tensor, p: Tensor) -> Any:
        row = x[p] * 2
        x.add_(1)
        return row

    assert left_by(function, X, P) == 0


def test_masks_and_rows_of_indices_are_left_alone() -> None:
    graph = fx.Graph()
    x, mask, rows = (graph.placeholder(name) for name in ("x", "mask", "rows"))
    for node, value in ((x, X), (mask, torch.tensor(True)), (rows, torch.tensor([1, 2]))):
        node.meta["example_value"] = value
    for item in (mask, rows, (P, [1, 2])):
        assert not names_an_element(graph.call_function(operator.getitem, (x, item)))
