"""The contest's rule, with times that are made up: who wins, when it is decided, what is equal."""

import random
import time

import pytest
import torch
from fusionplan.tuner.capture.capture_model import CallArguments
from fusionplan.tuner.capture.rotating_inputs import RotatingInputs
from fusionplan.tuner.measure.contest import MOST_BUSY, Ring, Rules

NO_INPUTS = RotatingInputs.of(CallArguments(()), count=2)


class Watch:
    """Seconds of a call by itself and among others, with normal noise of a part of them."""

    def __init__(self, cold, busy=None, noise=0.0, seed=0):
        self.cold, self.busy_s = cold, busy or cold
        self.noise, self.random = noise, random.Random(seed)
        self.laps_of, self.bursts = [], []

    def _noisy(self, seconds):
        return seconds * (1 + self.random.gauss(0, self.noise))

    def laps(self, calls):
        names = [call() for call in calls]
        self.laps_of += names
        return [self._noisy(self.cold[name]) for name in names]

    def burst(self, calls):
        names = [call() for call in calls]
        self.bursts.append(len(names))
        return sum(self._noisy(self.busy_s[name]) for name in names)


def contest(watch, rules=None):
    ring = Ring(watch, NO_INPUTS, rules or Rules())
    return ring.contest({name: lambda turn, name=name: name for name in watch.cold})


def test_the_least_behind_wins_in_whichever_way_it_does_worse():
    # "host" is best on an idle machine and worst where calls queue up; "even" is near both bests.
    watch = Watch(
        {"host": 1.00e-3, "even": 1.05e-3, "gpu": 1.20e-3},
        {"host": 1.50e-3, "even": 1.06e-3, "gpu": 1.00e-3},
    )
    told = contest(watch)
    assert told.winner == "even"
    assert {c.name: round(c.behind, 2) for c in told.contestants} == {
        "host": 1.5,
        "even": 1.06,
        "gpu": 1.2,
    }


def test_what_is_faster_only_where_the_host_is_idle_does_not_win():
    """Where the host takes half as long again, its calls are the slower ones."""

    def taking(name, host_s):
        def call(turn):
            began = time.perf_counter()
            while time.perf_counter() - began < host_s:
                pass
            return name

        return call

    watch, cooled = Watch({"eager": 110e-6, "plan": 100e-6}), []
    ring = Ring(watch, NO_INPUTS, Rules(), lambda: cooled.append(len(watch.laps_of)))
    told = ring.contest({"eager": taking("eager", 10e-6), "plan": taking("plan", 90e-6)})
    assert told.winner == "eager"
    plan = told.contestants[1]
    assert plan.host_s >= 90e-6
    assert plan.behind >= 1.5 * 90 / 110
    assert len(cooled) == sum(c.rounds for c in told.contestants)  # before each cold lap


@pytest.mark.parametrize("second, winner", [(0.998, "a"), (0.995, "b"), (1.1, "a")])
def test_of_equals_the_first_wins(second, winner):
    assert contest(Watch({"a": 1.0, "b": second})).winner == winner


@pytest.mark.parametrize("seed", range(8))
def test_a_plan_two_percent_slower_does_not_win_by_noise(seed):
    """Calls of 30 ms with noise of 1%: ten rounds cannot tell, more can."""
    watch = Watch({"slow": 0.0306, "fast": 0.0300}, noise=0.01, seed=seed)
    told = contest(watch, Rules(budget_s=60.0))
    assert told.winner == "fast"
    assert told.decided


def test_who_fails_when_warmed_up_drops_out_unless_nobody_else_is_left():
    def broken(turn):
        if turn > 0:
            raise ValueError("other inputs")
        return "a"

    told, watch = [], Watch({"a": 1.0, "b": 2.0})
    ring = Ring(watch, NO_INPUTS, Rules())
    found = ring.contest(
        {"a": broken, "b": lambda turn: "b"}, lambda name, error: told.append((name, str(error)))
    )
    assert [c.name for c in found.contestants] == ["b"]
    assert told == [("a", "other inputs")]
    with pytest.raises(ValueError, match="other inputs"):
        ring.contest({"a": broken, "b": lambda turn: "b"})
    with pytest.raises(ValueError, match="other inputs"):
        ring.contest({"a": broken}, lambda name, error: None)


def test_near_contestants_get_more_rounds_and_those_far_behind_drop_out():
    watch = Watch({"far": 2.0e-3, "a": 1.0e-3, "b": 1.001e-3}, noise=0.01)
    rounds = {c.name: c.rounds for c in contest(watch).contestants}
    assert rounds["far"] == 10
    assert rounds["a"] == rounds["b"] > 10


def test_a_budget_ends_a_contest_that_is_not_decided():
    watch = Watch({"a": 1.0, "b": 1.005}, noise=0.05)
    told = contest(watch, Rules(budget_s=1.0))
    assert [c.rounds for c in told.contestants] == [10, 10]
    assert not told.decided
    assert all(c.low < c.behind < c.high or c.behind == 1.0 for c in told.contestants)


def test_calls_among_others_are_many_of_short_ones_and_few_of_long_ones():
    for seconds, count in ((1e-5, MOST_BUSY), (5e-4, 4), (0.1, 2)):
        watch = Watch({"a": seconds})
        contest(watch)
        assert set(watch.bursts) == {count}


def test_the_order_changes_from_round_to_round():
    watch = Watch({"a": 1e-3, "b": 1e-3, "c": 1e-3})
    contest(watch, Rules(warm_up=0))
    rounds = watch.laps_of[3:]  # without those that tell how many calls a lap has
    assert ["".join(rounds[i : i + 3]) for i in range(0, 9, 3)] == ["abc", "bca", "cab"]


def test_every_call_has_other_inputs_and_what_it_writes_is_put_right():
    x = torch.zeros(3)
    seen = []

    def writes(given):
        seen.append((given.data_ptr(), float(given.sum())))
        given += 1

    turns = RotatingInputs.of(CallArguments((x,)), count=2)
    calls = {"a": lambda turn: turns.calls[turn % 2].run(writes)}

    class Plain:
        def laps(self, calls):
            return [call() or 1.0 for call in calls]

        def burst(self, calls):
            return sum(self.laps(calls))

    Ring(Plain(), turns, Rules(least=3, most=3)).contest(calls)
    assert {float(value) for value in x} == {0.0}  # the user's own tensor is never written to
    assert len({address for address, _ in seen}) == 2
    assert x.data_ptr() not in {address for address, _ in seen}
    # Only a burst's last calls, on a turn that came before in it, may find what one wrote.
    assert sum(value == 0 for _, value in seen) > len(seen) / 2


def test_copies_share_memory_as_the_arguments_do_and_keep_their_strides():
    base = torch.randn(4, 6)
    weight = torch.nn.Parameter(torch.randn(3))
    fixed = torch.randn(2)
    call = CallArguments((base[:, 1:], base.t(), weight, fixed), {"flag": True, "again": base})
    turns = RotatingInputs.of(call, static={fixed.data_ptr()}, count=3)
    assert len(turns) == 2 or len(turns) == 3
    for copy in turns.calls:
        part, turned, own, kept = copy.args
        assert (part.stride(), part.storage_offset()) == (base[:, 1:].stride(), 1)
        torch.testing.assert_close(turned, base.t())
        turned.zero_()
        assert not part.any()
        assert not copy.kwargs["again"].any()
        assert own is weight
        assert kept is fixed
        assert copy.kwargs["flag"] is True
    assert base.any()
