"""The covers of a large graph, found by a compile worker."""

import argparse
import sys
from concurrent.futures import Future
from dataclasses import replace
from threading import Event

import pytest
from fusionplan.planner.costs.device import builtin
from fusionplan.planner.covers.cover import Cover, covers
from fusionplan.planner.covers.pricing import quick_s
from fusionplan.planner.covers.sections import sections
from fusionplan.planner.graph.graph import Graph, from_json, key, to_json, varying_to_json
from fusionplan.planner.graph.ops import is_compute
from fusionplan.tuner.records.ledger import compute_count
from fusionplan.tuner.search import tuned_groups
from fusionplan.tuner.search.tuned_groups import COVERS, CoverFunctions, Tasks, begin_plan
from fusionplan.tuner.trial.outcome import TimedOut
from fusionplan.tuner.workers import compile_role, worker
from fusionplan.tuner.workers.covering import (
    Covering,
    SectionedPlanning,
    WorkerPlanning,
)
from fusionplan.tuner.workers.first_kernels import FirstKernels
from fusionplan.tuner.workers.lab import WorkerLab
from tuner_fakes import FakeLab
from tuner_graphs import attention, chain, layers

H200 = builtin("h200")


def answered(graph: Graph | None = None) -> Future:
    """What a worker answers for a graph, attention if not told."""
    request = {
        "cover": to_json(graph or attention(), varying_to_json),
        "profile": H200.to_json(),
        "count": COVERS,
    }
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


def test_sections_are_runs_of_operations_cut_where_few_bytes_pass():
    graph = layers(6)
    cut = sections(graph, 15)
    assert [compute_count(each.graph) for each in cut] == [10, 10, 10]
    # One value passes there, and no kernel goes on with it.
    ends = [graph.nodes[each.nodes[-1]].op for each in cut]
    assert ends == ["aten.mul.Tensor", "aten.mul.Tensor", graph.nodes[-1].op]
    assert sections(graph, 36) == ()
    _, *alike, _ = sections(layers(62))
    assert len({each.key for each in alike}) == 1 < len(alike)  # equal layers are cut alike


def sectioned(graph: Graph, answers: dict[str, Future] | None = None, **whole: Future):
    """The planning of a graph in sections of at most 15 operations, each answered if not told."""
    parts = sections(graph, 15)
    begun = {part.key: answered(part.graph) for part in parts} | (answers or {})
    return parts, SectionedPlanning(graph, parts, begun, **whole)


def test_covers_of_sections_are_covers_of_the_whole():
    graph = layers(6)
    parts, planning = sectioned(graph)
    found = planning.result(lambda: False)
    assert found is not None
    alone = [covers(part.graph, H200, 1)[0] for part in parts]
    (best,) = found.covers
    assert len(best.groups) == sum(len(cover.groups) for cover in alone)
    assert best.chosen.seconds == pytest.approx(sum(cover.chosen.seconds for cover in alone))
    assert max(map(len, best.groups)) == max(len(g) for cover in alone for g in cover.groups)
    working = [n for nodes in best.groups for n in nodes if is_compute(graph.nodes[n])]
    assert {*working} == {n.id for n in graph.nodes if is_compute(n)}
    assert found.prices.items() <= quick_s.of(H200).items()


def test_the_next_best_covers_have_one_kind_of_section_in_another_way():
    graph = chain(28)
    parts = sections(graph, 15)
    answers = {}
    for more, part in zip((3e-6, 1e-6), parts, strict=True):
        best = covers(part.graph, H200, 1)[0]
        apart = tuple((n.id,) for n in part.graph.nodes if is_compute(n))
        chosen = replace(best.chosen, seconds=best.chosen.seconds + more)
        answers[part.key] = Future()
        answers[part.key].set_result(Covering((best, Cover(apart, chosen)), {}).to_json())
    found = SectionedPlanning(graph, parts, answers).result(lambda: False)
    assert found is not None
    counts = [len(cover.groups) for cover in found.covers]
    first, second = (compute_count(part.graph) for part in parts)
    assert counts == [2, 1 + second, first + 1]  # the nearest comes next


@pytest.mark.parametrize("failure", [TimedOut("slow"), None])
def test_a_section_that_does_not_come_has_groups_by_a_rule(failure: TimedOut | None):
    graph = chain(40)
    parts = sections(graph, 15)
    late: Future = Future()
    if failure is not None:
        late.set_result(failure)
    assert parts[0].key != parts[-1].key  # the last one is shorter
    _, planning = sectioned(graph, {parts[-1].key: late})
    found = planning.result(lambda: failure is None)
    assert found is not None
    assert late.cancelled() == (failure is None)
    groups = found.covers[0].groups
    assert [len(nodes) for nodes in groups] == [compute_count(part.graph) for part in parts]
    assert sum(map(len, groups)) == 40


def test_sections_are_not_waited_for_beyond_the_time_of_planning():
    """ResNet-50's forward graph was planned for 77 s of a tune of 165."""
    graph = layers(6)
    parts = sections(graph, 15)
    futures: dict[str, Future] = {part.key: Future() for part in parts}
    over = Event()
    planning = SectionedPlanning(graph, parts, futures, over=over)
    found = planning.result(lambda: False, is_enough=lambda: True)
    assert found is not None
    assert over.is_set()  # the workers that are at them are ended
    assert all(future.cancelled() for future in futures.values())
    working = [n for nodes in found.covers[0].groups for n in nodes if is_compute(graph.nodes[n])]
    assert sorted(working) == [n.id for n in graph.nodes if is_compute(n)]
    assert len(found.covers[0].groups) < compute_count(graph)


def test_no_section_is_waited_for_that_nobody_wants_any_more():
    futures: dict[str, Future] = {"a": Future(), "b": Future()}
    planning = SectionedPlanning(layers(6), sections(layers(6), 15), futures)
    assert planning.result(lambda: True) is None
    assert all(future.cancelled() for future in futures.values())


def test_covers_of_the_whole_are_taken_where_they_come_in_time():
    graph = layers(6)
    whole = answered(graph)
    parts, planning = sectioned(graph, {sections(graph, 15)[0].key: Future()}, whole=whole)
    found = planning.result(lambda: False)
    assert found is not None
    assert found.covers == Covering.from_json(whole.result()).covers
    late: Future = Future()
    _, planning = sectioned(graph, whole=late)
    found = planning.result(lambda: False, is_enough=lambda: True)
    assert found is not None
    assert late.cancelled()
    assert found.covers[0].chosen.pieces == len(parts)


def lab_that_notes() -> tuple[WorkerLab, list[dict]]:
    """A lab without processes, and what they were asked."""
    asked: list[dict] = []

    class Pool:
        @staticmethod
        def submit(
            role: str, message: dict, limit_s: float, *, urgent: bool, given_up: Event
        ) -> Future:
            asked.append(message)
            return Future()

    lab = object.__new__(WorkerLab)
    lab.pool, lab._planned, lab._first = Pool, {}, FirstKernels(Pool, 90)
    return lab, asked


def test_the_lab_looks_for_a_large_graphs_sections_alone():
    """The most frequent section first, so that most of the graph is planned where time ends."""
    lab, asked = lab_that_notes()
    graph = layers(62)
    lab.plan(graph, H200, COVERS)
    parts = sections(graph)
    assert len(asked) == len({part.key for part in parts}) < len(parts)
    most = max(parts, key=lambda part: [each.key for each in parts].count(part.key))
    assert key(from_json(asked[0]["cover"])) == most.key
    asked.clear()
    lab.plan(layers(30), H200, COVERS)  # 150 operations: as a whole, too
    assert asked[0]["cover"] == to_json(layers(30), varying_to_json)
    assert len(asked) > 1


def test_covers_are_looked_for_once_and_begun_before_they_are_asked_for(monkeypatch):
    lab, asked = lab_that_notes()
    begin_plan(layers(30), H200, lab)
    begun = len(asked)
    assert begun > 1
    begin_plan(layers(3), H200, lab)  # small
    assert lab.plan(layers(30), H200, COVERS) is lab.plan(layers(30), H200, COVERS)
    assert len(asked) == begun


def test_a_worker_imports_what_its_requests_take_before_it_is_asked(monkeypatch):
    begun = []
    monkeypatch.setattr(worker, "import_ahead", begun.append)
    handle, _ = worker._role(argparse.Namespace(role="compile"))
    assert handle is compile_role.handle
    worker._role(argparse.Namespace(role="measure", device="cpu", seed=0, least=1, settings="{}"))
    assert begun == [worker.FOR_COVERS, worker.FOR_REFERENCES]


def test_what_is_imported_ahead_is_there_afterwards():
    worker.import_ahead([*worker.FOR_COVERS, *worker.FOR_REFERENCES]).join()
    assert {*worker.FOR_COVERS, *worker.FOR_REFERENCES} <= sys.modules.keys()


@pytest.mark.parametrize("answer", [{}, {"covers": []}, TimedOut("slow")])
def test_what_did_not_come_is_found_here(monkeypatch, answer):
    future: Future = Future()
    future.set_result(answer)
    monkeypatch.setattr(tuned_groups, "LARGE", 1)
    tasks = Tasks(attention(), H200)
    lab = FakeLab(lambda group, candidate: 1.0, planning=WorkerPlanning(future))
    assert tasks.plan(lab, lambda: False)
    assert tasks.first == covers(attention(), H200, 1)[0].groups
