"""Each stage of a tune ends by the one clock, whatever it waits for."""

from concurrent.futures import Future
from pathlib import Path

import pytest
from fusionplan.db import Store
from fusionplan.planner.costs.device import builtin
from fusionplan.planner.graph.graph import Graph, key
from fusionplan.planner.graph.parse import parse
from fusionplan.planner.lowerings.aten import aten_s
from fusionplan.planner.lowerings.vendor import PADDED
from fusionplan.tuner.capture.capture_model import ModelGraph
from fusionplan.tuner.measure.wall import Wall
from fusionplan.tuner.progress.progress import RecordedProgress
from fusionplan.tuner.records import optuna_export
from fusionplan.tuner.records.findings import Findings
from fusionplan.tuner.records.ledger import Ledger, device_record, graph_record
from fusionplan.tuner.search.group_trials import Budget
from fusionplan.tuner.search.partition_search import PartitionSearch
from fusionplan.tuner.search.runoff import SharedSearch
from fusionplan.tuner.search.tuned_groups import (
    LOOK_S,
    CoverFunctions,
    Identity,
    Tasks,
    completed,
)
from fusionplan.tuner.session import shares
from fusionplan.tuner.trial.outcome import ATEN, Candidate, TimedOut, Wrong
from fusionplan.tuner.workers.lab import Group, WorkerLab
from tuner_fakes import FakeLab, captured
from tuner_graphs import chain, softmax

H200 = builtin("h200")


class SilentPool:
    """Workers that never answer."""

    def __init__(self) -> None:
        self.futures: list[Future] = []

    def submit(self, role: str, message: object, limit: object = None, **options: bool) -> Future:
        self.futures.append(Future())
        return self.futures[-1]


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> WorkerLab:
    from fusionplan.tuner.workers import lab as labs

    monkeypatch.setattr(labs, "Pool", lambda roles: SilentPool())
    looks = iter([False, True, True, True])
    return WorkerLab("cuda:0", 90, is_over=lambda: next(looks))


def test_a_measurement_is_waited_for_as_long_as_there_is_time(lab: WorkerLab):
    outcome = lab.measure(Group.of(softmax(), "g"), ATEN)
    assert isinstance(outcome, TimedOut)
    assert outcome.transient  # which says nothing of the candidate
    assert [future.cancelled() for future in lab.pool.futures] == [True]


def test_a_comparison_and_a_ranking_are_not_waited_for_longer_either(lab: WorkerLab):
    duel = lab.duel(Group.of(softmax(), "g"), [ATEN, ATEN])
    assert duel.best is None
    assert duel.whole
    assert lab.rank(Group.of(softmax(), "g"), H200).result() is None
    assert all(future.cancelled() for future in lab.pool.futures)


def test_half_of_what_is_kept_for_the_end_may_go_to_what_comes_before():
    now = [0.0]
    wall = Wall(100.0, lambda: now[0])  # 15 s are kept
    now[0] = 92.0
    assert not wall.is_late
    now[0] = 93.0
    assert wall.is_late


def test_looking_for_covers_has_three_fifths_of_the_graphs_time():
    wall = Wall(100.0, lambda: 10.0)
    assert wall.planned_until(1.0) == pytest.approx(10.0 + 51.0)
    assert wall.planned_until(0.5) == pytest.approx(10.0 + 25.5)


@pytest.fixture
def store(tmp_path: Path):
    with Store.open(tmp_path / "plans.db") as opened:
        opened.put_device(device_record(H200))
        yield opened


def looks(store: Store, graph: Graph, seconds: float) -> list[str]:
    """The looks for covers of a search that has so many seconds, after the first."""
    seen: list[str] = []
    usual = CoverFunctions()

    def told(name: str):
        def look(*given):
            seen.append(name)
            return getattr(usual, name)(*given)

        return look

    cover = CoverFunctions(**{name: told(name) for name in ("learned", "grown", "partition")})
    store.put_graph(graph_record(graph, key(graph), "test"))
    ledger = Ledger(store, H200.key, {"t": "1"}, key(graph))
    lab = FakeLab(lambda group, candidate: 1e-4 if candidate.config else 1e-3)
    shared = SharedSearch(lab, ledger, Findings(), RecordedProgress())
    budget = Budget(60, seconds, lambda: 0.0)
    PartitionSearch(Tasks(graph, H200, cover), shared, budget).run()
    return seen


def test_other_covers_are_looked_for_where_that_leaves_most_of_the_time(store: Store):
    graph = chain(6, rows=1 << 12)
    once = LOOK_S * 6
    assert {*looks(store, graph, 100 * once)} == {"learned", "grown", "partition"}
    assert "grown" not in looks(store, graph, 10 * once)
    assert looks(store, graph, 3 * once) == []


def test_the_rest_of_a_plan_is_made_by_what_was_ranked():
    """The model's best config of a group that was not tried is not looked for again."""
    graph, known = softmax(), []

    def group(graph, nodes, copies, profile, best):
        known.append(best)
        return CoverFunctions().group(graph, nodes, copies, profile, best)

    tasks = Tasks(graph, H200, CoverFunctions(group=group))
    plan = completed(tasks.first, tasks, Findings(), Identity(key(graph), H200.key, {}))
    assert plan is not None
    (task,) = tasks.all(tasks.first)
    assert known == [task.space.top()]
    assert [each.config for each in plan.groups] == [known[0][0]]
    assert plan.predicted == known[0][1].seconds


def test_a_trial_that_the_end_of_the_time_cut_off_is_none():
    """Its group was left to eager, where the model's kernel takes a third of the time."""
    graph, findings = softmax(), Findings()
    tasks = Tasks(graph, H200)
    (task,) = tasks.all(tasks.first)
    config, _ = task.space.top()
    out = TimedOut("the time of the tune was over", transient=True)
    findings.of(task.group.key).add(Candidate.generated(config), out, None)
    identity = Identity(key(graph), H200.key, {})
    plan = completed(tasks.first, tasks, findings, identity)
    assert plan is not None
    assert [each.config for each in plan.groups] == [config]
    findings.of(task.group.key).add(Candidate.generated(config), Wrong("it is"), None)
    assert completed(tasks.first, tasks, findings, identity) is None


def product(words: int) -> Graph:
    return parse(f"""
        %0 = input() : bfloat16[8192, {words}]
        %1 = input() : bfloat16[{words}, 768]
        %2 = aten.mm.default(%0, %1) : bfloat16[8192, 768]
        return %2
    """)


def test_an_odd_product_that_was_not_tried_runs_on_padded_operands():
    """The backward pass of a head of 50257 words was left to the framework's call, which takes five
    times as long there."""
    graph = product(50257)
    tasks = Tasks(graph, H200)
    (task,) = tasks.all(tasks.first)
    assert 0 < task.vendor_s < 0.5 * aten_s(graph, H200)
    plan = completed(tasks.first, tasks, Findings(), Identity(key(graph), H200.key, {}))
    assert plan is not None
    assert [(each.lowering, each.options) for each in plan.groups] == [("vendor", PADDED)]


def test_an_even_product_is_left_to_the_framework():
    graph = product(50176)
    tasks = Tasks(graph, H200)
    assert completed(tasks.first, tasks, Findings(), Identity(key(graph), H200.key, {})) is None


def test_trials_are_mirrored_as_far_as_there_is_time(monkeypatch: pytest.MonkeyPatch, store: Store):
    brought: list[str] = []
    monkeypatch.setattr(optuna_export, "_bring", lambda name, *rest: brought.append(name))
    ledger = Ledger(store, H200.key, {"codegen": "1"}, "key")
    ledger.studies |= {"a", "b", "c"}
    assert optuna_export.mirror(store, ledger, lambda: len(brought) == 2) is None
    assert brought == ["a", "b"]


def test_shares_of_large_graphs_take_no_look_for_covers(monkeypatch: pytest.MonkeyPatch):
    import torch

    def chained(count: int, size: int):
        def call(x: torch.Tensor) -> torch.Tensor:
            for _ in range(count):
                x = torch.sin(x)
            return x

        return captured(call, torch.empty(size, 1 << 12))

    parts = [
        ModelGraph(str(i), given, (), "inference")
        for i, given in enumerate((chained(shares.LARGE + 1, 1 << 12), chained(4, 1 << 12)))
    ]
    monkeypatch.setattr(shares, "cover_s", lambda *given: pytest.fail("that takes seconds"))
    first, second = shares.shares(parts, H200)
    assert first > 0.8
    assert second == 1.0
