"""The first kernel of each group, compiled as soon as the group is known."""

from concurrent.futures import Future
from typing import Any

import pytest
from fusionplan.planner.costs.device import builtin
from fusionplan.planner.graph import graph as graphs
from fusionplan.planner.graph.graph import from_json, varying_to_json
from fusionplan.tuner.trial.outcome import Crashed, Miscompiled, TunerError, to_json
from fusionplan.tuner.trial.wire import config_from_json
from fusionplan.tuner.workers import compile_role
from fusionplan.tuner.workers.first_kernels import FirstKernels
from fusionplan.tuner.workers.lab import Group, WorkerLab
from tuner_graphs import attention, layers

PROFILE = builtin("h200").to_json()
FINE = {"registers": 8, "spill_bytes": 0, "shared_bytes": 0, "compile_s": 0.1}


class HeldPool:
    """Keeps what is asked of it, with the future of each answer."""

    def __init__(self) -> None:
        self.asked: list[tuple[dict[str, Any], Future]] = []

    def submit(
        self, role: str, message: dict, *limit: float, urgent: bool = False, given_up: object = None
    ) -> Future:
        # Planning and ranking come before all that is only compiled ahead of its time.
        assert role == "compile"
        assert urgent == ("group" not in message)
        self.asked.append((message, Future()))
        return self.asked[-1][1]

    def take(self, kind: str) -> list[tuple[dict[str, Any], Future]]:
        """What was asked since the last look, all of one kind."""
        found, self.asked = self.asked, []
        assert all(kind in message for message, _ in found)
        return found


@pytest.fixture
def pool() -> HeldPool:
    return HeldPool()


def planned(first: FirstKernels, pool: HeldPool) -> list[tuple[dict[str, Any], Future]]:
    """The rankings that are asked for when attention is planned."""
    covers: Future = Future()
    first.follow(covers, PROFILE)
    assert not pool.asked
    request = {
        "cover": graphs.to_json(attention(), varying_to_json),
        "profile": PROFILE,
        "count": 1,
    }
    covers.set_result(compile_role.handle(request))
    return pool.take("rank")


def test_a_planned_groups_first_kernel_is_compiled_before_anybody_asks(pool):
    first = FirstKernels(pool, 90)
    rankings = planned(first, pool)
    assert rankings
    message, ranked = rankings[0]
    ranked.set_result(compile_role.handle(message))
    ((request, compiled),) = pool.take("group")
    group = Group.of(from_json(message["rank"]), "g")
    assert group.data == request["group"]
    assert request["capability"] == 90
    assert first.rank(group.key, group.data, PROFILE) is ranked
    config = config_from_json(request["config"])
    assert config_from_json(ranked.result()["seeds"][0][0]) == config
    assert not pool.asked
    compiled.set_result(FINE)
    ((other, variant),) = pool.take("group")
    assert other == {**request, "aligned": False}
    assert first.compile(group.key, config) is compiled
    assert first.compile(group.key, config) is None  # it is asked for once
    first.cancel()
    assert variant.cancelled()


def test_a_lab_begins_them_when_it_plans_and_gives_them_to_who_asks(pool):
    lab = object.__new__(WorkerLab)
    lab.pool, lab._planned, lab._first = pool, {}, FirstKernels(pool, 90)
    lab.plan(attention(), builtin("h200"), 1)
    ((request, covers),) = pool.take("cover")
    covers.set_result(compile_role.handle(request))
    message, ranked = pool.take("rank")[0]
    ranked.set_result(compile_role.handle(message))
    ((request, compiled),) = pool.take("group")
    group = Group.of(from_json(message["rank"]), "g")
    assert lab.compile(group, config_from_json(request["config"])).future is compiled
    assert not pool.asked


def test_a_kernel_that_does_not_compile_has_no_other_variant(pool):
    first = FirstKernels(pool, 90)
    ((message, ranked), *_) = planned(first, pool)
    ranked.set_result(compile_role.handle(message))
    ((_, compiled),) = pool.take("group")
    compiled.set_result(to_json(Miscompiled("the compiler refuses it")))
    assert not pool.asked


def test_what_failed_is_not_followed_and_what_nobody_asked_for_is_let_go_of(pool):
    first = FirstKernels(pool, 90)
    rankings = planned(first, pool)
    key = Group.of(from_json(rankings[0][0]["rank"]), "g").key
    rankings[0][1].set_result(Crashed("gone"))
    first.cancel()
    assert not pool.asked
    assert all(future.cancelled() for _, future in rankings[1:])
    again = first.rank(key, rankings[0][0]["rank"], PROFILE)
    assert again is not rankings[0][1]
    again.set_result({"first": {"odd": 1}})  # no config
    assert len(pool.take("rank")) == 1


def test_a_pool_that_is_closed_ends_nothing(pool):
    first = FirstKernels(pool, 90)
    ((message, ranked), *_) = planned(first, pool)

    def closed(*asked: object, **options: object) -> Future:
        raise TunerError("the pool of workers is closed")

    pool.submit = closed
    ranked.set_result(compile_role.handle(message))
    assert ranked.exception() is None


def test_a_group_of_several_sections_is_ranked_once(pool):
    first = FirstKernels(pool, 90)
    request = {"cover": graphs.to_json(layers(4), varying_to_json), "profile": PROFILE, "count": 1}
    answer = compile_role.handle(request)
    for _ in range(2):
        covers: Future = Future()
        first.follow(covers, PROFILE)
        covers.set_result(answer)
    keys = [group["key"] for group in answer["groups"]]
    assert len(set(keys)) == len(keys) == len(pool.take("rank"))
