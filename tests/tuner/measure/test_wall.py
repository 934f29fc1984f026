"""One budget for a whole tune: what is spent is missing, what is left goes on."""

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from fusionplan import tuning
from fusionplan.planner.costs.device import builtin
from fusionplan.tuner.capture.capture_model import ModelGraph
from fusionplan.tuner.decision import baselines, interrupted_graphs
from fusionplan.tuner.decision.baselines import CUT_OFF, NO_TIME, Baselines, different_products
from fusionplan.tuner.measure.time_limit import OutOfTime, stopped_after
from fusionplan.tuner.measure.wall import Wall
from fusionplan.tuner.progress.progress import RecordedProgress
from fusionplan.tuner.session.shares import shares
from tuner_fakes import captured

H200 = builtin("h200")


def test_what_one_takes_is_missing_and_what_it_leaves_goes_on():
    now = [100.0]
    wall = Wall(100.0, lambda: now[0])
    assert wall.before_end_s == pytest.approx(85.0)
    assert wall.baselines_until() == pytest.approx(100.0 + 51.0)
    now[0] += 25.0
    assert wall.search_until(0.5) == pytest.approx(now[0] + 0.75 * 30.0)
    now[0] += 10.0  # of the 30
    assert wall.search_until(1.0) == pytest.approx(now[0] + 0.75 * 50.0)
    wall.check_s = 20.0  # the plans of the first graph took so long
    assert wall.search_until(1.0) == pytest.approx(now[0] + 30.0)
    now[0] += 500.0
    assert wall.left_s == wall.before_end_s == 0.0
    assert wall.search_until(1.0) == pytest.approx(now[0] + 5.0)


def test_a_model_that_takes_long_to_capture_has_more_kept_for_the_end():
    wall = Wall(100.0, lambda: 0.0)
    for seconds, kept in [(5.0, 15.0), (30.0, 30.0), (20.0, 30.0), (90.0, 40.0)]:
        wall.keep_for_the_end(seconds)
        assert wall.kept_s == pytest.approx(kept)


def test_graphs_share_what_their_checks_are_expected_to_take():
    wall = Wall(100.0, lambda: 0.0)
    wall.expected_check_s = 30.0
    assert wall.search_until(1.0) == pytest.approx(85.0 - 30.0)
    assert wall.search_until(0.5) == pytest.approx(42.5 - 15.0)
    wall.expected_check_s = 50.0  # most of it may not be for a check
    assert wall.search_until(1.0) == pytest.approx(0.6 * 85.0)
    wall.check_s = 40.0
    assert wall.search_until(1.0) == pytest.approx(85.0 - 40.0)


def test_graphs_have_shares_by_their_time():
    small = captured(lambda x: torch.relu(x) + 1, torch.randn(64, 64))
    large = captured(lambda x: torch.softmax(x, -1), torch.empty(1 << 14, 1 << 12))
    parts = [
        ModelGraph(str(i), graph, (), "inference") for i, graph in enumerate((small, large, small))
    ]
    first, second, third = shares(parts, H200)
    assert third == 1.0  # all that is left
    assert second > 0.9
    assert 0.05 < first < 0.1  # its least: a fifth of a third
    assert shares(parts[:1], H200) == [1.0]
    assert shares([], H200) == []


@contextmanager
def as_it_is() -> Iterator[None]:
    yield


def warmed(
    seconds: float,
    calls: dict[str, Callable[[], object]],
    clock: Callable[[], float],
    products: int = 0,
):
    told = RecordedProgress()
    given = {name: lambda turn, call=call: call() for name, call in calls.items()}
    found = Baselines(given, told, as_it_is, wall=Wall(seconds, clock), products=products)
    found.warm()
    assert all(any(name in note for note in told.of("note")) for name in found.left_out)
    return found


def test_a_mode_for_which_there_is_no_time_is_not_begun():
    now, begun = [0.0], []

    def takes(name: str, seconds: float) -> Callable[[], None]:
        def call() -> None:
            now[0] += seconds * (name not in begun)
            begun.append(name)

        return call

    modes = {"default": 20.0, "reduce-overhead": 15.0, "max-autotune": 5.0}
    calls = {"eager": takes("eager", 1.0)} | {n: takes(n, s) for n, s in modes.items()}
    found = warmed(100.0, calls, lambda: now[0])  # 51 s are the baselines'
    assert [*found.ready] == ["eager", "default", "reduce-overhead"]
    assert found.left_out == {"max-autotune": NO_TIME}  # it takes 30 s at least, 15 are left
    assert "max-autotune" not in begun


@pytest.mark.parametrize("products", [3, 4])
def test_a_mode_that_tunes_many_products_is_not_begun(products):
    now = [0.0]

    def takes(seconds: float) -> Callable[[], None]:
        def call() -> None:
            now[0] += seconds / 2  # each is called twice

        return call

    calls = {"eager": takes(1.0), "default": takes(1.0), "max-autotune": takes(9.0)}
    found = warmed(30.0, calls, lambda: now[0], products)  # 15.3 s are the baselines'
    assert ("max-autotune" in found.ready) == (products == 3)  # 13 s at least of 13.3


def test_products_of_the_same_shapes_are_tuned_once():
    def model(x, w, v):
        return (x @ w) @ w + (x @ v).sum()

    x, w, v = torch.empty(8, 16), torch.empty(16, 16), torch.empty(16, 4)
    assert different_products([captured(model, x, w, v).graph]) == 2


def test_a_mode_that_takes_longer_than_there_is_time_is_cut_off():
    def swallows() -> None:
        while True:
            time.sleep(0.01)

    began = time.monotonic()
    calls = {"eager": lambda: None, "default": swallows, "reduce-overhead": lambda: None}
    found = warmed(1.0, calls, time.monotonic)
    assert time.monotonic() - began < 60.0
    assert [*found.ready] == ["eager"]
    assert found.left_out == {"default": CUT_OFF, "reduce-overhead": NO_TIME}


def test_a_mode_that_is_cut_off_leaves_the_cuda_graphs_of_others_usable(monkeypatch):
    """Inductor's manager of graphs waits for the end of the warm-up that was interrupted."""
    manager = SimpleNamespace(current_node="unfinished")
    trees = SimpleNamespace(get_manager=lambda device, create_if_none_exists: manager)
    monkeypatch.setitem(sys.modules, interrupted_graphs._TREES, trees)
    monkeypatch.setattr(interrupted_graphs.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(interrupted_graphs.torch.cuda, "current_device", lambda: 0)
    interrupted_graphs.forget_unfinished_warmup()
    assert manager.current_node is None
    manager.current_node = "of another"

    def interrupted() -> None:
        manager.current_node = "unfinished"
        raise OutOfTime

    monkeypatch.setattr(baselines.torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(baselines.torch.cuda, "empty_cache", lambda: None)
    found = warmed(100.0, {"eager": lambda: None, "reduce-overhead": interrupted}, time.monotonic)
    assert found.left_out == {"reduce-overhead": CUT_OFF}
    assert manager.current_node is None


def test_plans_for_whose_first_calls_there_is_no_time_end_the_decision():
    """They are not left out of a contest, which baselines alone would win."""

    def swallows(turn: int) -> None:
        while True:
            time.sleep(0.01)

    told = RecordedProgress()
    with pytest.raises(OutOfTime), stopped_after(0.05):
        Baselines({"plan": swallows}, told, as_it_is, "plans").warm()
    assert not told.of("note")


def test_without_a_limit_every_mode_is_compiled():
    found = Baselines(
        {"eager": lambda turn: 0, "default": lambda turn: 1}, RecordedProgress(), as_it_is
    )
    found.warm()
    assert [*found.ready] == ["eager", "default"]


def test_a_block_is_ended_even_in_code_that_swallows_exceptions(monkeypatch: pytest.MonkeyPatch):
    from fusionplan.tuner.measure import time_limit

    monkeypatch.setattr(time_limit, "AGAIN_S", 0.05)
    before, began, swallowed = signal.getsignal(signal.SIGALRM), time.monotonic(), []

    def swallows() -> None:
        while True:
            try:
                time.sleep(120.0)
            except BaseException:
                if swallowed:
                    raise
                swallowed.append(True)

    with pytest.raises(OutOfTime), stopped_after(0.05):
        swallows()
    assert time.monotonic() - began < 60.0
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_a_block_inside_another_ends_by_the_time_of_either():
    ended: list[str] = []

    def run() -> None:
        try:
            with stopped_after(0.05):
                time.sleep(120.0)
        except OutOfTime:
            ended.append("inner")
        try:
            with stopped_after(float("inf")), stopped_after(60.0):
                time.sleep(120.0)
        except OutOfTime:  # as whoever compiles a mode takes it: the outer one ends all the same
            ended.append("outer")
        time.sleep(120.0)

    with pytest.raises(OutOfTime), stopped_after(1.0):
        run()
    assert ended == ["inner", "outer"]
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_the_end_of_a_tune_is_cut_off_before_a_tenth_more_is_spent():
    now = [0.0]
    wall = Wall(100.0, lambda: now[0])
    now[0] = 95.0
    assert wall.check_left_s(True) == pytest.approx(2.0)  # the contest needs the rest
    assert wall.check_left_s(False) == 0.0
    assert wall.last_s == pytest.approx(11.0)
    now[0] = 200.0
    assert wall.check_left_s(True) == wall.last_s == 0.0
    short = Wall(1.0, lambda: now[0])
    now[0] += 5.0  # in which one plan is checked and compared all the same
    assert short.check_left_s(True) == short.last_s == float("inf")
    assert short.check_left_s(False) == 0.0


def test_a_decision_that_does_not_end_leaves_the_best_plan(monkeypatch: pytest.MonkeyPatch):
    said: list[str] = []

    def plans() -> list[str]:
        time.sleep(120.0)
        return ["decided"]

    monkeypatch.setattr(tuning, "Decision", lambda *of, **more: SimpleNamespace(plans=plans))
    monkeypatch.setattr(tuning, "Ring", lambda *of: None)
    monkeypatch.setattr(tuning, "Entrant", lambda *of: None)

    def uncompared(searched: object, why: str) -> str:
        said.append(why)
        return "the best"

    session = SimpleNamespace(
        uncompared=uncompared,
        decided=lambda contest, found: contest(),
        stopwatch=lambda profile: None,
        rules=None,
        conditions=None,
        captured=SimpleNamespace(device=torch.device("cpu")),
    )
    now = [0.0]
    wall = Wall(100.0, lambda: now[0])
    now[0] = 105.9
    place = SimpleNamespace(profile=None)
    how = SimpleNamespace(training=False)
    tune = tuning._ModelTune(
        *(None, place, "", None, None, wall, None, None, None, how, None, None, None)
    )
    identity = SimpleNamespace(plan=lambda groups, evidence: f"eager, {evidence}")
    best = SimpleNamespace(finalists=SimpleNamespace(best=1), plans=(), identity=identity)
    none = SimpleNamespace(finalists=SimpleNamespace(best=None), plans=(), identity=identity)
    captured = SimpleNamespace(parts=[None, None], traced=None)
    found = [(session, best), (session, none)]
    began = time.monotonic()
    assert tune._decided(captured, found, None, False) == ["the best", "eager, searched"]
    assert time.monotonic() - began < 60.0
    assert said == ["the time of the tune was over"]


def test_another_threads_block_and_another_users_timer_are_left_alone():
    seen: list[str] = []

    def block() -> None:
        with stopped_after(0.01):
            time.sleep(0.05)
        seen.append("thread")

    thread = threading.Thread(target=block)
    thread.start()
    thread.join()
    signal.setitimer(signal.ITIMER_REAL, 100.0)
    try:
        block()
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 90
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    assert seen == ["thread"] * 2
