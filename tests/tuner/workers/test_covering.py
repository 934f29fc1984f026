"""The covers of a large graph, found by a compile worker."""

from concurrent.futures import Future

import pytest
from fusionplan.planner.costs.device import builtin
from fusionplan.planner.covers.cover import covers
from fusionplan.planner.covers.pricing import quick_s
from fusionplan.planner.graph.graph import to_json, varying_to_json
from fusionplan.tuner.search import tuned_groups
from fusionplan.tuner.search.tuned_groups import COVERS, CoverFunctions, Tasks
from fusionplan.tuner.trial.outcome import TimedOut
from fusionplan.tuner.workers import compile_role
from fusionplan.tuner.workers.covering import Covering, WorkerPlanning
from tuner_fakes import FakeLab
from tuner_graphs import attention

H200 = builtin("h200")


def answered() -> Future:
    """What a worker answers for attention."""
    whole = to_json(attention(), varying_to_json)
    request = {"cover": whole, "profile": H200.to_json(), "count": COVERS}
    future: Future = Future()
    future.set_result(compile_role.handle(request))
    return future


def tasks_of(planning: WorkerPlanning, monkeypatch: pytest.MonkeyPatch) -> tuple[Tasks, FakeLab]:
    monkeypatch.setattr(tuned_groups, "LARGE", 1)
    never = CoverFunctions(best=lambda *asked: pytest.fail("it was found elsewhere"))
    return Tasks(attention(), H200, never), FakeLab(lambda group, candidate: 1.0, planning=planning)


def test_a_worker_finds_what_is_found_here():
    found = Covering.from_json(answered().result())
    assert found.covers == covers(attention(), H200, COVERS)
    assert found.prices
    assert found.prices.items() <= quick_s.of(H200).items()


def test_its_covers_and_prices_are_taken(monkeypatch):
    future = answered()
    tasks, lab = tasks_of(WorkerPlanning(future), monkeypatch)
    quick_s.cache_clear()
    assert tasks.plan(lab, lambda: False)
    assert tasks.best(COVERS) == covers(attention(), H200, COVERS)
    assert tasks.first == tasks.best(1)[0].groups
    assert quick_s.of(H200) == Covering.from_json(future.result()).prices


def test_a_small_graph_is_planned_here():
    planning = WorkerPlanning(Future())
    tasks = Tasks(attention(), H200)
    assert tasks.plan(FakeLab(lambda group, candidate: 1.0, planning=planning), lambda: True)
    assert tasks.first == covers(attention(), H200, 1)[0].groups


def test_nobody_waits_for_what_is_not_wanted_any_more(monkeypatch):
    future: Future = Future()
    tasks, lab = tasks_of(WorkerPlanning(future), monkeypatch)
    assert not tasks.plan(lab, lambda: True)
    assert future.cancelled()


@pytest.mark.parametrize("answer", [{}, {"covers": []}, TimedOut("slow")])
def test_what_did_not_come_is_found_here(monkeypatch, answer):
    future: Future = Future()
    future.set_result(answer)
    monkeypatch.setattr(tuned_groups, "LARGE", 1)
    tasks = Tasks(attention(), H200)
    lab = FakeLab(lambda group, candidate: 1.0, planning=WorkerPlanning(future))
    assert tasks.plan(lab, lambda: False)
    assert tasks.first == covers(attention(), H200, 1)[0].groups
