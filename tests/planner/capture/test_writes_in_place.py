"""Writes into inputs of a graph: in place, or copied at its end."""

import copy

import fusionplan
import pytest
import torch
from fusionplan.api import executors
from fusionplan.planner.capture.writes_in_place import written_in_place
from fusionplan.planner.plan import Plan
from fusionplan.planner.runtime.cuda_graphs.cudagraph import GraphedExecutor, written
from fusionplan.planner.runtime.cuda_graphs.graph_memory import RecordedCall
from fusionplan.planner.runtime.execution.executor import Executor

pytestmark = [pytest.mark.dynamo, pytest.mark.interpreter]

aten = torch.ops.aten
CACHE = (2, 3, 16, 8)
EDGES = (0, 1, 15)


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


def by_index_copy(cache, rows, position):
    cache.index_copy_(2, position, rows)
    return (cache * 2).sum(2)


def by_item(cache, rows, position):
    cache[:, :, position] = rows
    return (cache * 2).sum(2)


def by_sequence(cache, rows, positions):
    """Each sequence has a length of its own."""
    cache[torch.arange(2), :, positions] = rows[:, :, 0]
    return (cache * 2).sum(2)


def runs_as_eager(function, *given, times=1):
    """The same results, and the same inputs afterwards, as eager has; the graph that ran."""
    theirs = copy.deepcopy(given)
    run = fusionplan.load(function, on_miss="model")
    with torch.no_grad():
        for _ in range(times):
            torch.testing.assert_close(run(*given), function(*theirs))
            for ours, other in zip(given, theirs, strict=True):
                torch.testing.assert_close(ours, other, rtol=0, atol=0)
    (runner,) = executors(run)
    return runner


def copies_of_all(runner) -> int:
    """Operations that give, or write, a whole cache."""
    return sum(
        n.type is not None and n.type.shape == CACHE and n.op.startswith("aten.index_put.")
        for n in runner.captured.graph.nodes
    ) + sum(update.is_copied for update in runner.captured.updates)


@pytest.mark.parametrize("at", EDGES)
@pytest.mark.parametrize("function", [by_index_copy, by_item])
def test_a_row_is_written_in_place_at_any_position(function, at) -> None:
    runner = runs_as_eager(
        function, torch.randn(CACHE), torch.randn(2, 3, 1, 8), torch.tensor([at])
    )
    assert copies_of_all(runner) == 0
    assert "copy_all" not in runner.text
    assert runner.kernels_per_call == 1, runner.text  # it writes the row, and sums


def test_sequences_of_unequal_lengths_write_each_at_its_own() -> None:
    given = torch.randn(CACHE), torch.randn(2, 3, 1, 8), torch.tensor([0, 15])
    assert copies_of_all(runs_as_eager(by_sequence, *given)) == 0


def test_no_position_has_a_graph_of_its_own() -> None:
    run = fusionplan.load(by_index_copy, on_miss="model")
    cache, other = torch.zeros(CACHE), torch.zeros(CACHE)
    with torch.no_grad():
        for at in range(16):
            rows = torch.randn(2, 3, 1, 8)
            place = torch.tensor([at])
            torch.testing.assert_close(run(cache, rows, place), by_index_copy(other, rows, place))
    assert torch.equal(cache, other)
    assert len(executors(run)) == 1


def test_two_writes_are_done_in_their_order() -> None:
    def twice(cache, rows, position):
        cache.index_copy_(2, position, rows)
        cache.index_copy_(2, position, rows + 1)
        return cache.sum(2)

    given = torch.randn(CACHE), torch.randn(2, 3, 1, 8), torch.tensor([4])
    runner = runs_as_eager(twice, *given)
    assert copies_of_all(runner) == 0


def by_slice(cache, rows, position):
    cache[:, :, 5:6] = rows
    return (cache * 2).sum(2) + position


def by_number(cache, rows, position):
    cache[:, :, -1] = rows[:, :, 0]
    return (cache * 2).sum(2) + position


def reads_before(cache, rows, position):
    before = cache.sum(2)
    cache.index_copy_(2, position, rows)
    return before, cache.sum(2)


def reads_between(cache, rows, position):
    cache.index_copy_(2, position, rows)
    between = cache.sum(2)
    cache.index_copy_(2, position, rows + 1)
    return between, cache.sum(2)


def writes_what_it_reads(cache, rows, position):
    cache.index_copy_(2, position, cache.index_select(2, position) + rows)
    return cache.sum(2)


def adds(cache, rows, position):
    cache.transpose(0, 2).index_put_((position,), rows.transpose(0, 2), accumulate=True)
    return cache.sum(2)


def gives_the_new_one(cache, rows, position):
    new = cache.index_copy(2, position, rows)
    cache.copy_(new)
    return new, new * 2


OTHERS = [
    by_slice,
    by_number,
    reads_before,
    reads_between,
    writes_what_it_reads,
    adds,
    gives_the_new_one,
]


@pytest.mark.parametrize("function", OTHERS)
def test_any_other_write_is_copied_at_the_end(function) -> None:
    given = torch.randn(CACHE), torch.randn(2, 3, 1, 8), torch.tensor([4])
    runner = runs_as_eager(function, *given, times=3)
    (update,) = runner.captured.updates
    assert update.is_copied


def test_what_is_copied_into_an_input_is_copied_once() -> None:
    def copied(x, y):
        x.copy_(y)
        return y.sin()

    runner = runs_as_eager(copied, torch.randn(4, 5), torch.randn(4, 5))
    assert not any(n.op == "aten.clone.default" for n in runner.captured.graph.nodes)


def test_two_caches_in_one_tensor_are_copied_at_the_end() -> None:
    def both(keys, values, rows, position):
        keys.index_copy_(1, position, rows)
        values.index_copy_(1, position, rows + 1)
        return keys.sum(1) + values.sum(1)

    base, other = torch.zeros(2, 3, 16, 8), torch.zeros(2, 3, 16, 8)
    run = fusionplan.load(both, on_miss="model")
    rows, at = torch.randn(3, 1, 8), torch.tensor([2])
    with torch.no_grad():
        torch.testing.assert_close(run(*base, rows, at), both(*other, rows, at))
    assert torch.equal(base, other)


def test_inputs_may_be_exchanged() -> None:
    def exchange(a, b):
        before = a.clone()
        a.copy_(b)
        b.copy_(before)
        return (a - b).relu()

    runs_as_eager(exchange, torch.randn(4, 8), torch.randn(4, 8))


def count(cache, counter, rows):
    cache.index_copy_(2, counter, rows)
    counter.add_(1)
    return (cache * 2).sum(2)


def test_counters_are_copied_by_one_call() -> None:
    def both(first, second, x):
        first.add_(1)
        second.add_(2)
        return x * first + second

    given = torch.tensor(1), torch.tensor(2), torch.randn(8)
    runner = runs_as_eager(both, *given, times=3)
    assert runner.text.count("copy_all(") == 1


def test_a_counter_tells_the_next_position() -> None:
    given = torch.zeros(CACHE), torch.tensor([0]), torch.randn(2, 3, 1, 8)
    runner = runs_as_eager(count, *given, times=3)
    assert given[1].item() == 3
    assert [u.is_copied for u in runner.captured.updates].count(True) == 1


def test_a_tune_may_run_a_graph_again_and_again() -> None:
    """Without updates counters stay, and what is written is so a second time."""
    given = torch.zeros(CACHE), torch.tensor([0]), torch.randn(2, 3, 1, 8)
    captured = runs_as_eager(count, *copy.deepcopy(given)).captured
    plain = Executor(captured, Plan("", "", (), "modelled", ()), torch.device("cpu"))
    order = [given[place] for place in places_of(captured, given)]
    first, second = plain(*order), plain(*order)
    assert given[1].item() == 0
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)


def places_of(captured, given) -> list[int]:
    """Which of the tensors each input of the graph is, by shape."""
    shapes = [tuple(x.shape) for x in given]
    nodes = captured.graph.nodes
    return [shapes.index(nodes[i].type.shape) for i in captured.graph.inputs]


def test_what_is_written_is_never_moved_for_a_cuda_graph() -> None:
    given = torch.zeros(CACHE), torch.tensor([0]), torch.randn(2, 3, 1, 8)
    captured = runs_as_eager(count, *copy.deepcopy(given)).captured
    shapes = [captured.graph.nodes[i].type.shape for i in captured.graph.inputs]
    assert {shapes[i] for i in written(captured)} == {CACHE, (1,)}
    plan = Plan("", "", (), "modelled", ())
    executor = Executor(captured, plan, torch.device("cpu"), updates=True)
    captures = []

    def record(call, inputs, moving, pool):
        captures.append(1)
        return RecordedCall(lambda: None, (), [torch.zeros(2, 3, 8)])

    graphed = GraphedExecutor(executor, record=record)
    # Calls with caches now here and now there write into the caller's own.
    held = []
    for _ in range(6):
        cache, at = torch.zeros(CACHE), torch.tensor([1])
        order = [(cache, at, given[2])[place] for place in places_of(captured, given)]
        graphed(*order)
        held.append((cache, at))
    assert all(at.item() == 2 and cache[:, :, 1].any() for cache, at in held)
    assert not captures


def test_a_graph_that_is_trained_keeps_its_writes_out() -> None:
    def trained(w, counter):
        counter.add_(1)
        return (w * counter).sum()

    w, counter = torch.randn(8, requires_grad=True), torch.tensor(0)
    run = fusionplan.load(trained, on_miss="model")
    run(w, counter).backward()
    assert counter.item() == 1
    assert torch.equal(w.grad, torch.ones(8))


def test_sizes_that_vary_keep_writes_out() -> None:
    run = fusionplan.load(by_index_copy, on_miss="model", dynamic=True)
    with torch.no_grad():
        for size in (4, 6, 9):
            cache, rows, at = torch.zeros(2, 3, size, 8), torch.randn(2, 3, 1, 8), torch.tensor([2])
            other = cache.clone()
            torch.testing.assert_close(run(cache, rows, at), by_index_copy(other, rows, at))
            assert torch.equal(cache, other)


def test_a_graph_without_writes_stays_as_it_is() -> None:
    graph = torch.fx.symbolic_trace(lambda x: [torch.relu(x)]).graph
    assert written_in_place(graph) == ()
