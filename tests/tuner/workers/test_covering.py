"""The covers of a large graph, found by a compile worker."""

from concurrent.futures import Future

import pytest
from fusionplan.planner.costs.device import builtin
from fusionplan.planner.covers import cover
from fusionplan.planner.covers.cover import covers
from fusionplan.planner.covers.pricing import quick_s
from fusionplan.planner.covers.sections import sections
from fusionplan.planner.graph.graph import Graph, to_json, varying_to_json
from fusionplan.tuner.records.ledger import compute_count
from fusionplan.tuner.search import tuned_groups
from fusionplan.tuner.search.tuned_groups import COVERS, CoverFunctions, Tasks
from fusionplan.tuner.trial.outcome import TimedOut
from fusionplan.tuner.workers import compile_role
from fusionplan.tuner.workers.covering import (
    Covering,
    Prices,
    SectionedPlanning,
    WorkerPlanning,
)
from tuner_fakes import FakeLab
from tuner_graphs import attention, layers

H200 = builtin("h200")


def answered(graph: Graph | None = None, prices: Prices | None = None) -> Future:
    """What a worker answers for a graph, attention if not told."""
    request = {
        "cover": to_json(graph or attention(), varying_to_json),
        "profile": H200.to_json(),
        "count": COVERS,
        "prices": dict(prices or {}),
    }
    future: Future = Future()
    future.set_result(compile_role.handle(request))
    return future


def new_process() -> None:
    """Forget what has been planned."""
    quick_s.cache_clear()
    cover._searched.cache_clear()
    cover._grown.cache_clear()


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


def test_sections_are_runs_of_operations_equal_ones_once():
    graph = layers(6)
    assert [compute_count(each) for each in sections(graph, 12)] == [10]
    assert [compute_count(each) for each in sections(graph, 15)] == [13, 12, 5]
    assert sections(graph, 36) == ()


def test_covers_are_the_same_with_prices_of_sections():
    graph = layers(6)
    new_process()
    before = quick_s.computed
    alone = covers(graph, H200, COVERS)
    priced = quick_s.computed - before
    new_process()
    begun = [answered(section) for section in sections(graph, 15)]
    assert len(begun) == 3
    again: list[int] = []

    def whole(prices: Prices) -> Future:
        new_process()
        before = quick_s.computed
        found = answered(graph, prices)
        again.append(quick_s.computed - before)
        return found

    found = SectionedPlanning(begun, whole).result(lambda: False)
    assert found is not None
    assert found.covers == alone
    assert again[0] < priced / 2


def test_a_section_that_fails_costs_its_prices_alone():
    failed: Future = Future()
    failed.set_result(TimedOut("slow"))
    told: list[Prices] = []

    def whole(prices: Prices) -> Future:
        told.append(prices)
        return answered(None, prices)

    found = SectionedPlanning([failed, answered()], whole).result(lambda: False)
    assert found is not None
    assert found.covers == covers(attention(), H200, COVERS)
    assert told[0]


def test_no_section_is_waited_for_that_is_not_wanted_any_more():
    futures: list[Future] = [Future(), Future()]
    planning = SectionedPlanning(futures, lambda prices: pytest.fail("nobody wants it"))
    assert planning.result(lambda: True) is None
    assert all(future.cancelled() for future in futures)


@pytest.mark.parametrize("answer", [{}, {"covers": []}, TimedOut("slow")])
def test_what_did_not_come_is_found_here(monkeypatch, answer):
    future: Future = Future()
    future.set_result(answer)
    monkeypatch.setattr(tuned_groups, "LARGE", 1)
    tasks = Tasks(attention(), H200)
    lab = FakeLab(lambda group, candidate: 1.0, planning=WorkerPlanning(future))
    assert tasks.plan(lab, lambda: False)
    assert tasks.first == covers(attention(), H200, 1)[0].groups
