"""When a call is replayed, by a recorder that stands for CUDA's."""

import math
import warnings
from collections import deque

import numpy as np
import pytest
import torch
from fusionplan.planner.plan import Plan
from fusionplan.planner.runtime.cuda_graphs.cudagraph import (
    MOVED,
    MOVED_EACH,
    SECOND,
    SMALL,
    GraphedExecutor,
)
from fusionplan.planner.runtime.cuda_graphs.graph_memory import GraphPool, RecordedCall, SharedPools
from fusionplan.planner.runtime.execution.executor import Executor
from fusionplan.tuner.capture.capture_model import CallArguments, capture_model

pytestmark = pytest.mark.dynamo

CPU = torch.device("cpu")


class Recorder:
    """A replay computes again from the same inputs into the same outputs."""

    def __init__(self):
        self.captures, self.nbytes, self.left, self.idle = 0, 0, math.inf, False

    def __call__(self, call, inputs, moving, pool):
        self.captures += 1
        inputs = [x.clone() if i in moving else x for i, x in enumerate(inputs)]
        outputs = self.placed(list(call(list(inputs))), pool)

        def replay():
            if self.idle:
                return
            for old, new in zip(outputs, call(list(inputs)), strict=True):
                old.copy_(new)

        moved = tuple((i, inputs[i]) for i in moving)
        return RecordedCall(replay, moved, outputs, self.nbytes, self.left)

    def placed(self, outputs, pool):
        """The outputs where replays leave them."""
        return outputs


@pytest.fixture
def graphed(captured):
    def make(size, **options):
        x = torch.randn(size)
        found = captured(lambda x: x * 2, x)
        executor = Executor(found, Plan("", "", (), "modelled", ()), CPU)
        recorder = Recorder()
        return GraphedExecutor(executor, record=recorder, **options), recorder, x

    return make


def test_the_second_call_with_the_same_addresses_is_captured(graphed):
    run, recorder, x = graphed(100)
    for count in (0, 1, 1, 1):
        assert torch.equal(run(x)[0], x * 2)
        assert recorder.captures == count
        x += 1  # new values in the same memory
    assert run.replays == 2


@pytest.mark.parametrize("wanted, replays", [("launches", 1), ("", 2)])
def test_under_a_profiler_launches_can_be_seen(graphed, monkeypatch, wanted, replays):
    monkeypatch.setenv("PLANNER_PROFILE", wanted)
    run, _, x = graphed(100)
    for _ in range(3):
        run(x)
    assert run.replays == 1
    with torch.profiler.profile():
        assert torch.equal(run(x)[0], x * 2)
    assert run.replays == replays
    run(x)
    assert run.replays == replays + 1


def test_small_results_of_several_kernels_are_copies_once_those_of_two_graphs_are_held(graphed):
    run, recorder, x = graphed(100)
    run.kernels_per_call = 2
    held = []
    for turn in range(9):
        held.append((run(x)[0], x * 2))
        x += turn
    for found, wanted in held:
        assert torch.equal(found, wanted)
    assert recorder.captures == 3
    # The first two calls, and those at which the second and the third graph are recorded.
    assert run.replays == 9 - 4
    assert len({found.data_ptr() for found, _ in held}) == 9


def test_small_results_of_several_kernels_are_handed_out_as_they_are(graphed):
    run, recorder, x = graphed(100)
    run.kernels_per_call = 2
    run(x), run(x)
    places = {run(x)[0].data_ptr() for _ in range(4)}
    assert (run.replays, recorder.captures) == (4, 1)
    assert len(places) == 1


def test_where_a_graph_needs_much_memory_small_results_of_several_kernels_are_copies(graphed):
    run, recorder, x = graphed(100)
    recorder.nbytes = SECOND + 1
    run.kernels_per_call = 2
    run(x), run(x)
    first = run(x)[0]
    x += 1
    second = run(x)[0]
    assert (run.replays, recorder.captures) == (2, 1)
    torch.testing.assert_close(second - first, torch.full((100,), 2.0))


def test_graphs_are_few_where_they_need_much_of_what_is_free(graphed):
    """Of four sets of inputs, each given twice."""
    for left, captures in ((1000, 4), (999, 1)):
        run, recorder, x = graphed(MOVED)  # too much to be copied
        recorder.nbytes, recorder.left = 100, left
        for given in [x, *(torch.randn(MOVED) for _ in range(3))]:
            run(given), run(given)
            assert torch.equal(run(given)[0], given * 2)
        assert recorder.captures == captures


def test_a_large_graph_has_a_second_for_its_inputs_and_makes_room_for_others(graphed):
    run, recorder, x = graphed(MOVED)
    recorder.nbytes, recorder.left = 100, 999
    run(x), run(x)
    held = run(x)  # is given out: the next call needs memory of its own
    run(x)
    assert torch.equal(run(x)[0], held[0])
    assert recorder.captures == 2
    other = torch.randn(MOVED)
    for _ in range(20):
        assert torch.equal(run(other)[0], other * 2)
    assert recorder.captures == 3


class Counting(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts the operations that run."""

    def __init__(self):
        super().__init__()
        self.operations = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.operations.append(str(func))
        return func(*args, **(kwargs or {}))


@torch.no_grad()
def test_a_replay_copies_the_inputs_that_move_and_nothing_else():
    """Of a step with a cache that is written in place, and handed out to nobody."""

    def function(cache, x, place, other):
        cache.index_copy_(0, place, x[None])
        return (cache * other).sum(0)

    x, place = torch.randn(8), torch.tensor([1])
    cache, other = torch.zeros(4, 8), torch.randn(4, 8)
    (part,) = capture_model(function, CallArguments((cache, x, place, other))).parts
    cache.zero_()
    recorder = Recorder()
    plan = Plan("", "", (), "modelled", ())
    executor = Executor(part.captured, plan, CPU, updates=True)
    run = GraphedExecutor(executor, record=recorder)
    run.kernels_per_call = 2
    kept = []
    for turn in range(5):
        x = torch.randn(8)
        kept.append(x)
        expected = cache.clone()
        expected[turn % 4] = x
        place.fill_(turn % 4)
        (total,) = run(cache, x, place, other)
        torch.testing.assert_close(total, (expected * other).sum(0))
        torch.testing.assert_close(cache, expected)
        del total
    assert recorder.captures == 1
    replays, recorder.idle = run.replays, True
    with Counting() as counting:
        run.boxed([cache, torch.randn(8), place, other])
    operations = [each for each in counting.operations if "detach" not in each]
    assert operations.count("aten.copy_.default") == 1
    assert "aten.clone.default" not in operations
    assert run.replays == replays + 1


@pytest.mark.parametrize("size", [100, SMALL])
def test_a_result_that_is_held_is_not_written_over(graphed, size):
    run, recorder, x = graphed(size)
    run(x), run(x)
    held = run(x)[0]
    kept = held.clone()
    assert (run.replays, recorder.captures) == (1, 1)
    x += 1
    other = run(x)[0]
    assert (run.replays, recorder.captures) == (1, 2)  # ran plainly, and has a second graph
    assert torch.equal(held, kept)
    assert torch.equal(other, x * 2)
    again = run(x)[0]
    assert run.replays == 2
    last = run(x)[0]
    assert (run.replays, recorder.captures) == (2, 2)  # both are held
    assert torch.equal(held, kept)
    assert torch.equal(again, last)
    view = held[3:]
    del held
    run(x)
    assert run.replays == 2  # a view holds it too
    del view
    run(x)
    assert run.replays == 3


def test_a_loop_that_holds_its_last_result_is_replayed(graphed):
    run, _, x = graphed(SMALL)
    for _ in range(12):
        found = run(x)[0]
        assert torch.equal(found, x * 2)
        x += 1
    assert run.replays >= 8


def test_what_a_backward_graph_reads_is_no_copy(graphed):
    run, _, x = graphed(100, copies=0)
    run.kernels_per_call = 2
    run(x), run(x)
    places = {run(x)[0].data_ptr() for _ in range(3)}
    assert run.replays == 3
    assert len(places) == 1


def test_only_a_few_graphs_are_captured(graphed):
    run, recorder, _ = graphed(100, graphs=2)
    inputs = [torch.randn(100) for _ in range(4)]
    for x in inputs:
        for _ in range(3):
            assert torch.equal(run(x)[0], x * 2)
    assert recorder.captures == 2


def test_small_inputs_that_are_elsewhere_in_every_call_are_copied(graphed):
    run, recorder, _ = graphed(100)
    kept = []
    for _ in range(8):
        x = torch.randn(100)
        kept.append(x)  # no two have the same address
        assert torch.equal(run(x)[0], x * 2)
    assert recorder.captures == 1
    assert run.replays >= 5


def test_a_view_of_a_copied_input_is_one_of_the_callers_own(captured):
    found = captured(lambda x: (x * 2, x.view(4, 5)[1:]), torch.randn(20))
    executor = Executor(found, Plan("", "", (), "modelled", ()), CPU)
    recorder = Recorder()
    run = GraphedExecutor(executor, record=recorder)
    kept = []
    for _ in range(6):
        x = torch.randn(30)[3:23]
        double, view = run(x)
        assert torch.equal(double, x * 2)
        assert view.shape == (3, 5)
        assert view.data_ptr() == x[5:].data_ptr()
        kept.append(view)  # no two have the same address
        del double
    assert (recorder.captures, run.replays) == (1, 3)


def test_results_in_the_same_memory_share_their_version(captured):
    """By which autograd notices that what it has saved was written."""

    def function(x):
        y = x * 2
        return y, y[1:], x + 1

    executor = Executor(captured(function, torch.randn(20)), Plan("", "", (), "modelled", ()), CPU)
    run = GraphedExecutor(executor, record=Recorder(), copies=0)
    x = torch.randn(20)
    run(x), run(x)
    whole, part, alone = run(x)
    assert run.replays == 1
    before = part._version, alone._version
    whole.add_(1)
    assert (part._version, alone._version) == (before[0] + 1, before[1])
    torch.testing.assert_close(part, x[1:] * 2 + 1)


def test_patience_is_had_before_inputs_are_copied(graphed):
    run, recorder, _ = graphed(100, patience=3)
    kept = [torch.randn(100) for _ in range(7)]
    for number, x in enumerate(kept):
        run(x)
        assert recorder.captures == (number >= 5)


def test_large_inputs_are_not_copied(graphed):
    run, recorder, _ = graphed(MOVED // 4 + 1)
    kept = [torch.randn(MOVED // 4 + 1) for _ in range(4)]
    for x in kept:
        assert torch.equal(run(x)[0], x * 2)
    assert recorder.captures == 0


def test_large_inputs_of_many_kernels_are_copied(graphed):
    size = MOVED // 4 + 1
    run, recorder, _ = graphed(size)
    run.kernels_per_call = MOVED // MOVED_EACH + 1
    kept = [torch.randn(size) for _ in range(4)]
    for x in kept:
        assert torch.equal(run(x)[0], x * 2)
    assert (recorder.captures, run.replays) == (1, 1)


def test_more_inputs_are_copied_when_they_turn_out_to_be_elsewhere(captured):
    x, y = torch.randn(100), torch.randn(100)
    found = captured(lambda x, y: x * 2 + y, x, y)
    recorder = Recorder()
    executor = Executor(found, Plan("", "", (), "modelled", ()), CPU)
    run = GraphedExecutor(executor, record=recorder)
    kept = []
    for both in (False,) * 4 + (True,) * 4:
        x, y = torch.randn(100), torch.randn(100) if both else y
        kept += [x, y]
        assert torch.equal(run(x, y)[0], x * 2 + y)
    assert recorder.captures == 2
    assert run.replays == 2


@pytest.mark.parametrize("size", [100, MOVED // 4 + 1])
def test_an_input_with_several_places_is_copied_when_the_second_is_met(graphed, size):
    run, recorder, _ = graphed(size)
    run.kernels_per_call = MOVED // MOVED_EACH + 1
    places = [torch.randn(size) for _ in range(6)]
    for x in places:
        for _ in range(3):
            assert torch.equal(run(x)[0], x * 2)
            x += 1
    assert recorder.captures == 2
    assert run.replays == 18 - 4  # two calls at each of the first two places


def test_with_patience_inputs_that_moved_once_are_not_copied(captured):
    function, places = captured(lambda x, y: x * 2 + y, *torch.randn(2, 100)), []
    recorder = Recorder()
    executor = Executor(function, Plan("", "", (), "modelled", ()), CPU)
    run = GraphedExecutor(executor, record=recorder, patience=4)
    for x, y in torch.randn(3, 2, 100):
        places.append((x, y))
        for _ in range(4):
            assert torch.equal(run(x, y)[0], x * 2 + y)
    assert recorder.captures == 3
    assert run.replays == 12 - 6
    x, y = torch.randn(2, 100)  # The third place was one too many: from then on they are copied.
    assert torch.equal(run(x, y)[0], x * 2 + y)
    assert (recorder.captures, run.replays) == (3, 7)
    del places
    stays = GraphedExecutor(executor, record=recorder, patience=4)
    for x, y in torch.randn(2, 2, 100):
        for _ in range(4):
            stays(x, y)
    assert stays.replays == 4
    assert not stays._moving


def test_graphs_that_nothing_fits_any_more_make_room(graphed):
    size = MOVED // 4 + 1  # too large to be copied for one kernel
    run, recorder, _ = graphed(size, graphs=2)
    first, second, third = (torch.randn(size) for _ in range(3))
    for x in (first, second):
        for _ in range(3):
            run(x)
    assert (recorder.captures, run.replays) == (2, 2)
    for _ in range(30):
        assert torch.equal(run(third)[0], third * 2)
        third += 1
    assert recorder.captures == 3
    assert run.replays == 2 + 30 - 16


def test_one_odd_call_changes_nothing(captured):
    own = torch.randn(100)
    found = captured(lambda x, y: x * 2 + y, torch.randn(100), own)
    recorder = Recorder()
    executor = Executor(found, Plan("", "", (), "modelled", ()), CPU)
    run = GraphedExecutor(executor, record=recorder)
    kept = []
    for is_odd in (0, 0, 0, 0, 1, 0, 0, 1, 0):
        x, y = torch.randn(100), torch.randn(100) if is_odd else own
        kept += [x, y]  # no two have the same address
        assert torch.equal(run(x, y)[0], x * 2 + y)
    assert recorder.captures == 1
    assert run.replays == 4


def test_an_expanded_input_is_not_copied(captured):
    inputs = [torch.randn(1).expand(100) for _ in range(4)]
    found = captured(lambda x: x * 2, inputs[0])
    executor = Executor(found, Plan("", "", (), "modelled", ()), CPU)
    recorder = Recorder()
    run = GraphedExecutor(executor, record=recorder)
    for x in inputs:
        assert torch.equal(run(x)[0], x * 2)
    assert recorder.captures == 0


def test_what_cannot_be_captured_runs_plainly(captured):
    x = torch.randn(8)
    found = captured(lambda x: x * 2, x)

    def record(call, inputs, moving, pool):
        raise RuntimeError("operation not permitted when stream is capturing")

    run = GraphedExecutor(Executor(found, Plan("", "", (), "modelled", ()), CPU), record=record)
    run(x)
    with pytest.warns(UserWarning, match="not permitted"):
        assert torch.equal(run(x)[0], x * 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(x)
    assert run.calls == 3


class SharedRecorder(Recorder):
    """Graphs of one pool leave their results at the same addresses."""

    def __init__(self):
        super().__init__()
        self.memory = {}

    def placed(self, outputs, pool):
        (output,) = outputs
        memory = self.memory.setdefault(pool, np.zeros(SMALL, np.float32))
        return [torch.from_numpy(memory[: output.numel()])]


@pytest.fixture
def sizes(captured):
    """Executors of two sizes that share pools, with an input of each; and their recorder."""
    recorder, pools = SharedRecorder(), SharedPools()

    def made(size):
        x = torch.randn(size)
        executor = Executor(captured(lambda x: x * 2, x), Plan("", "", (), "modelled", ()), CPU)
        return GraphedExecutor(executor, record=recorder, pools=pools), x

    return [made(SMALL), made(SMALL // 2)], recorder


def test_graphs_of_all_sizes_lie_in_the_same_memory(sizes):
    made, recorder = sizes
    for turn in range(12):
        for run, x in made:
            x += 1
            assert torch.equal(run(x)[0], x * 2), turn
    assert [run.replays for run, _ in made] == [10, 10]
    assert (recorder.captures, len(recorder.memory)) == (2, 1)


@pytest.mark.parametrize("most", [1, 2, 3])
def test_a_held_result_is_not_written_over_by_a_graph_of_another_size(sizes, most):
    made, recorder = sizes
    held = deque(maxlen=most)
    for turn in range(40):
        run, x = made[(turn // 3) % 2]
        x += 1
        held.append((run(x)[0], x * 2))
        assert all(torch.equal(found, wanted) for found, wanted in held), turn
    replays = sum(run.replays for run, _ in made)
    assert len(recorder.memory) == 2
    assert recorder.captures == 4
    # One of two pools is free in every call, but while graphs are captured in it; none of two are.
    assert replays >= {1: 30, 2: 8, 3: 5}[most]


def test_a_result_of_a_size_that_is_forgotten_is_not_written_over(sizes):
    made, _ = sizes
    (first, x), (second, y) = made
    for _ in range(2):
        first(x), second(y)
    kept = first(x)[0]
    assert first.replays == 1
    made.clear()
    del first
    for turn in range(4):
        assert torch.equal(second(y)[0], y * 2), turn
        assert torch.equal(kept, x * 2), turn
    del kept
    before = second.replays
    second(y)
    assert second.replays == before + 1


def test_a_held_pool_is_not_the_one_to_capture_in():
    class Kept:
        is_held = True

    pools = SharedPools()
    first, second = pools.pools
    assert pools.next_to([]) is first
    first.last = Kept()
    assert pools.next_to([]) is second
    assert pools.next_to([second]) is first
    assert pools.next_to([first, second]) is None
    assert not GraphPool().is_shared
