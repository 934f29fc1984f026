"""The logic of timing, on a clock that says what the test wants."""

import random
from collections.abc import Callable, Sequence

import pytest
from fusionplan.tuner.measure.timing import SLOW, Interleaved, Timer, ratio, timed


class FakeClock:
    """Each call's return value is its time."""

    def __init__(self) -> None:
        self.order: list[float] = []

    def laps(self, calls: Sequence[Callable[[], object]]) -> list[float]:
        found = [float(call()) for call in calls]  # type: ignore[arg-type]
        self.order += found
        return found


def noisy(seconds: float, spread: float, seed: int) -> Callable[[], float]:
    draw = random.Random(seed)
    return lambda: seconds * (1 + spread * draw.gauss(0, 1))


def test_runs_follow_the_budget():
    clock = FakeClock()
    timer = Timer(clock, least=10, most=100, overhead_s=0.0)
    assert timer.measure(lambda: 1e-3, budget_s=0.05).laps == 50
    assert timer.measure(lambda: 1.0, budget_s=0.05).laps == 10
    assert timer.measure(lambda: 1e-9, budget_s=0.05).laps == 100


def test_a_candidate_far_behind_the_incumbent_is_stopped_after_the_first_runs():
    clock = FakeClock()
    timer = Timer(clock)
    slow = timer.measure(lambda: 1e-3, incumbent_s=1e-3 / SLOW * 0.99)
    assert slow.stopped
    assert slow.laps == 3
    assert not timer.measure(lambda: 1e-3, incumbent_s=1e-3 / SLOW * 1.01).stopped


def test_the_median_shrugs_off_an_outlier():
    result = timed([1.0] * 20 + [50.0])
    assert result.seconds == 1.0
    assert result.spread_s == 0.0


def test_interleaved_runs_all_in_every_round_and_rotates_the_order():
    clock = FakeClock()
    result = Timer(clock, least=10, most=10).interleaved({"a": lambda: 1.0, "b": lambda: 2.0})
    assert len(result.laps["a"]) == len(result.laps["b"]) == 10
    assert clock.order[-4:] in ([1.0, 2.0, 2.0, 1.0], [2.0, 1.0, 1.0, 2.0])


def test_a_clear_difference_is_a_win_and_noise_is_not():
    timer = Timer(FakeClock(), least=60, most=60)
    result = timer.interleaved(
        {
            "ours": noisy(1.00, 0.01, 1),
            "same": noisy(1.00, 0.01, 2),
            "slower": noisy(1.05, 0.01, 3),
        }
    )
    assert result.wins("ours", "slower")
    assert not result.wins("slower", "ours")
    assert not result.wins("ours", "same")
    assert not result.wins("same", "ours")
    assert result.best() in ("ours", "same")


def test_a_sure_difference_below_one_percent_is_no_win():
    result = Interleaved({"a": [0.995] * 50, "b": [1.0] * 50})
    assert result.ratio("a", "b").high < 1
    assert not result.wins("a", "b")
    assert Interleaved({"a": [0.98] * 50, "b": [1.0] * 50}).wins("a", "b")


def test_near_ties_go_to_the_earlier():
    assert Interleaved({"a": [1.002] * 9, "b": [1.0] * 9}).best() == "a"
    assert Interleaved({"a": [1.05] * 9, "b": [1.0] * 9}).best() == "b"


def test_drift_that_hits_both_cancels_in_the_ratio():
    drift = [1 + i / 20 for i in range(40)]
    result = Interleaved({"a": [0.95 * d for d in drift], "b": drift})
    assert result.wins("a", "b")


@pytest.mark.parametrize("count", [1, 2, 5, 8, 100])
def test_the_interval_holds_the_median(count: int):
    draw = random.Random(count)
    found = ratio([draw.gauss(1, 0.1) for _ in range(count)])
    assert found.low <= found.median <= found.high


def test_nothing_to_time():
    assert Timer(FakeClock()).interleaved({}).laps == {}
