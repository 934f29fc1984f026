"""Rows of a cache, written in place by the kernel that makes them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fusionplan.planner.capture.capture import Captured, capture, decompositions
from fusionplan.planner.costs.device import H200
from fusionplan.planner.covers.cover import modelled_plan
from fusionplan.planner.errors import Refusal
from fusionplan.planner.groups.group import GroupContent
from fusionplan.planner.groups.legality import has_nest
from fusionplan.planner.groups.unwritten import unwritten
from fusionplan.planner.runtime.execution.executor import Executor
from fusionplan.tuner.trial.evaluate import Evaluator, Outside
from fusionplan.tuner.trial.inputs import places
from torch.fx.experimental.proxy_tensor import make_fx

pytestmark = pytest.mark.interpreter

LENGTH = 24


def made(function: Callable[..., Any], *inputs: torch.Tensor) -> Captured:
    """The graph of a function that writes into its first input, as AOTAutograd gives it."""

    def functional(*given: torch.Tensor) -> Any:
        return torch.func.functionalize(function, remove="mutations_and_views")(*given)

    with torch.no_grad():
        traced = make_fx(functional, decomposition_table=decompositions(), tracing_mode="fake")
        return capture(traced(*inputs))


def run(captured: Captured, monkeypatch: pytest.MonkeyPatch) -> Executor:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    return Executor(captured, modelled_plan(captured.graph, H200), captured.device, updates=True)


def copied(cache: torch.Tensor, position: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
    row = x * 2 + 1
    cache.index_copy_(2, position, row)
    return [row.sum(-1)]


def assigned(cache: torch.Tensor, position: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
    cache[:, :, position] = (x * 2 + 1).relu()
    return [x.sum(-1)]


def each(cache: torch.Tensor, position: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
    """Every sequence at a position of its own."""
    cache[torch.arange(2), :, position] = (x * 2 + 1)[:, :, 0]
    return [x.sum(-1)]


def spread(cache: torch.Tensor, position: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
    """One row for all heads."""
    cache[:, :, position] = x[:, :1] * 2
    return [x.sum(-1)]


def given(dtype: torch.dtype, *positions: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    cache = torch.randn(2, 3, LENGTH, 5, generator=generator).to(dtype)
    x = torch.randn(2, 3, 1, 5, generator=generator).to(dtype)
    return [cache, torch.tensor(positions), x]


CASES = {
    "index_copy": (copied, (0,)),
    "last": (copied, (LENGTH - 1,)),
    "assignment": (assigned, (7,)),
    "from the end": (assigned, (-1,)),
    "several rows": (assigned, (3, 9, 0)),
    "of each sequence": (each, (4, LENGTH - 1)),
    "spread": (spread, (5,)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CASES)
def test_rows_are_written_as_by_eager(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, positions = CASES[name]
    inputs = given(dtype, *positions)
    captured = made(function, *inputs)
    assert [update.is_copied for update in captured.updates] == [False]
    executor = run(captured, monkeypatch)
    assert "index_put" not in executor.text
    for more in (0, 1):
        ours, theirs = ([x.clone() for x in inputs] for _ in range(2))
        if name not in ("last", "of each sequence"):
            ours[1] += more
            theirs[1] += more
        expected = function(*theirs)
        found = executor(*ours)
        torch.testing.assert_close(ours[0], theirs[0], rtol=0, atol=2**-6 * (dtype.itemsize == 2))
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("position", [LENGTH, -LENGTH - 1])
def test_an_index_outside_is_an_error(position: int, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = given(torch.float32, 0)
    executor = run(made(assigned, *inputs), monkeypatch)
    inputs[1] = torch.tensor([position])
    before = inputs[0].clone()
    with pytest.raises(Exception, match="out of bounds"):
        executor(*inputs)
    assert inputs[0].equal(before)


def test_readers_of_several_places_come_after_the_write(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = given(torch.float32, 6, 2)
    captured = made(read_after, *inputs)
    executor = run(captured, monkeypatch)
    assert "index_put" not in executor.text
    assert executor.kernels_per_call == 2
    theirs = [x.clone() for x in inputs]
    expected = read_after(*theirs)
    torch.testing.assert_close(executor(*inputs), expected)
    torch.testing.assert_close(inputs[0], theirs[0])


def read_after(cache: torch.Tensor, position: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
    cache[:, :, position] = x * 2
    return [cache.sum(2)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_kernel_writes_a_place_and_reads_the_cache(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is new does not come through memory, which another program may write too late."""
    captured = made(read_after, *given(dtype, 0))
    executor = run(captured, monkeypatch)
    assert executor.kernels_per_call == 1
    for position in (0, 6, LENGTH - 1, -1):
        ours, theirs = given(dtype, position), given(dtype, position)
        expected = read_after(*theirs)
        found = executor(*ours)
        torch.testing.assert_close(found, expected, rtol=2**-7, atol=2**-7)
        torch.testing.assert_close(ours[0], theirs[0], rtol=0, atol=0)


def test_what_is_written_is_never_read_before_the_wait() -> None:
    graph = made(assigned, *given(torch.float32, 6)).graph
    kept = unwritten(graph)
    assert graph.inputs[0] not in kept
    assert graph.inputs[1] in kept


def test_a_group_does_not_read_what_it_writes_at_several_places() -> None:
    def function(
        cache: torch.Tensor, position: torch.Tensor, x: torch.Tensor
    ) -> list[torch.Tensor]:
        cache[:, :, position] = x * 2
        return [cache + 1]

    graph = made(function, *given(torch.float32, 6, 2)).graph
    found = has_nest(GroupContent("writes by index", graph))
    assert isinstance(found, Refusal)
    assert found.rule == "indexed"


def test_writes_into_two_caches_wait_for_each_other_no_more_than_readers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernel of the second write gives what the first one stores."""

    def function(
        keys: torch.Tensor, values: torch.Tensor, position: torch.Tensor, x: torch.Tensor
    ) -> list[torch.Tensor]:
        row = torch.softmax(x, -1)
        keys[:, :, position] = torch.cumsum(row.flip(-1).sort(-1).values, -1)
        values[:, :, position] = row
        return [keys.sum(2), values.sum(2)]

    cache, position, x = given(torch.float32, 6)
    inputs = [cache, cache.clone() + 1, position, x]
    executor = run(made(function, *inputs), monkeypatch)
    theirs = [x.clone() for x in inputs]
    expected = function(*theirs)
    torch.testing.assert_close(executor(*inputs), expected)
    torch.testing.assert_close(inputs[:2], theirs[:2])
    assert "index_put" not in executor.text


def test_inputs_of_a_tune_lie_inside_what_is_written() -> None:
    graph = made(assigned, *given(torch.float32, 6)).graph
    low, high = places(graph)[graph.inputs[1]]
    assert 0 <= low < high <= LENGTH


def test_an_index_outside_is_seen_before_a_device_would_end_the_process() -> None:
    inputs = given(torch.float32, LENGTH)
    graph = made(assigned, *given(torch.float32, 6)).graph
    with pytest.raises(Outside):
        Evaluator(graph, torch.device("cpu"), within=True)(*inputs)


def test_what_a_kernel_is_compared_with_is_a_copy() -> None:
    inputs = given(torch.float32, 6)
    graph = made(assigned, *inputs).graph
    before = inputs[0].clone()
    results = Evaluator(graph, torch.device("cpu"))(*inputs)
    assert inputs[0].equal(before)
    assigned(*inputs)
    assert any(r.shape == before.shape and r.equal(inputs[0]) for r in results)
