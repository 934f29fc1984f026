"""A whole tune: plans that are kept, baselines that win, interruptions, and no GPU at all."""

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import optuna
import pytest
import torch
from fusionplan.db import Store
from fusionplan.planner.capture.capture import Captured
from fusionplan.planner.costs.device import builtin
from fusionplan.planner.graph.graph import key
from fusionplan.planner.graph.varying import family_key, sizes_of
from fusionplan.planner.plan import Plan
from fusionplan.planner.runtime.dispatch.whole_way import whole_way
from fusionplan.planner.runtime.execution.executor import Executor
from fusionplan.planner.versions import versions
from fusionplan.tuner.capture.capture_model import capture_model
from fusionplan.tuner.decision.decide import Decision
from fusionplan.tuner.gate.bucket_edges import at_sizes
from fusionplan.tuner.measure.wall import Wall
from fusionplan.tuner.progress.progress import RecordedProgress
from fusionplan.tuner.records.stored_plans import plans_that_fit
from fusionplan.tuner.search import tuned_groups
from fusionplan.tuner.search.tuned_groups import COVERS
from fusionplan.tuner.session import offline
from fusionplan.tuner.session import session as session_module
from fusionplan.tuner.session.effort import TuneLimits
from fusionplan.tuner.session.session import Session
from fusionplan.tuner.session.tune_site import TuneSite
from fusionplan.tuner.trial.outcome import Candidate, Failure, Wrong
from fusionplan.tuner.workers.covering import Covering, WorkerPlanning
from fusionplan.tuner.workers.lab import Group
from tuner_fakes import FakeLab, FakeStopwatch, OpenLab, baselines, captured

pytestmark = [pytest.mark.interpreter, pytest.mark.usefixtures("quick_prices")]

H200 = builtin("h200")
X, B = torch.randn(4, 32), torch.randn(32)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "plans.db") as opened:
        yield opened


def softmax_of_sum(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x + b, -1)


def wide(group: Group, candidate: Candidate) -> float:
    """Few programs are fast, as they are in the interpreter."""
    if candidate.config is None:
        return 10.0
    return 1.0 / (1 + sum(size for _, size in candidate.config.blocks))


def session(store: Store, graph: Captured, lab: FakeLab, trials: int = 8) -> Session:
    site = TuneSite(OpenLab(lab), lambda device, l2: FakeStopwatch())
    return Session(
        graph, (X, B), store, TuneLimits(trials, 600.0), RecordedProgress(), "m", site=site
    )


@pytest.fixture(scope="module")
def graph() -> Captured:
    return captured(softmax_of_sum, X, B)


def varying(function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> Captured:
    """The graph with the rows of its first input varying."""
    torch._dynamo.mark_dynamic(inputs[0], 0)
    (part,) = capture_model(function, inputs).parts
    return part.captured


def test_a_plan_for_all_sizes_is_stored_with_its_family(store: Store, graph: Captured):
    dynamic = varying(softmax_of_sum, X.clone(), B)
    assert key(dynamic.graph) == key(graph.graph)
    for one in (graph, dynamic):
        session(store, one, FakeLab(wide)).measured(H200, baselines(eager=3.0))
    (record,) = store.plans(bucket_key=family_key(dynamic.graph))
    assert record.graph_key == key(graph.graph)
    plan = Plan.from_json(record.payload)
    assert plan.is_for_all_sizes
    assert plan.at == sizes_of(dynamic.graph) == (4,)
    (launcher,) = Executor(dynamic, plan, torch.device("cpu")).launchers
    assert launcher.source.scalars
    # Kernels that take sizes are other kernels, and are measured for themselves.
    tried = {trial.subject for trial in store.trials(level="kernel")}
    assert len(tried) == 2
    assert all(store.kernel(subject) for subject in tried)


def test_where_a_baseline_wins_other_sizes_run_by_kernels_of_ours(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    """If they are no slower than what runs without a plan: on the CPU that is eager."""

    def by_executor(captured: Captured, plans: Mapping[str, Plan]) -> Callable[..., float]:
        (plan,) = plans.values()
        return lambda *inputs: 1.0 if whole_way(plan, captured.graph) is None else 0.6

    monkeypatch.setattr(session_module, "by_executor", by_executor)
    dynamic = varying(softmax_of_sum, X.clone(), B)
    for eager, plans in ((0.9, 0), (2.0, 1)):
        tuning = session(store, dynamic, FakeLab(wide))
        plan = tuning.measured(H200, baselines(eager=eager, default=0.5))
        assert [group.lowering for group in plan.groups] == ["inductor"]
        assert plan == replace(stored(store, dynamic), at=())
        found = store.plans(bucket_key=family_key(dynamic.graph))
        assert len(found) == plans
    assert Plan.from_json(found[0].payload).is_for_all_sizes
    assert found[0].graph_key != key(dynamic.graph)
    assert found[0].evidence == "measured"
    moved = at_sizes(dynamic.graph, [48])
    assert moved is not None
    assert plans_that_fit(store, moved, H200.key) == found


def stored(store: Store, graph: Captured, portable: bool = False) -> Plan:
    record = store.plan(key(graph.graph), H200.key, versions(portable=portable))
    assert record is not None
    return Plan.from_json(record.payload)


def test_a_plan_that_beats_its_peers_is_kept(store: Store, graph: Captured, optunas_tables: None):
    tuning = session(store, graph, FakeLab(wide))
    plan = tuning.measured(H200, baselines(eager=3.0, default=2.0))
    assert plan == stored(store, graph)
    assert [g.lowering for g in plan.groups] == ["triton"]
    assert plan.evidence == "measured"
    assert dict(plan.baselines) == {"eager": 3.0, "default": 2.0}
    assert (plan.measured, plan.speedup) == (1.0, 2.0)
    assert plan.groups[0].predicted
    executor = Executor(graph, plan, torch.device("cpu"))
    assert executor.kernels_per_call == 1
    torch.testing.assert_close(executor(X, B)[0], softmax_of_sum(X, B))
    assert [t.measured_s for t in store.trials(level="partition")] == [1.0]
    assert optuna.get_all_study_names(store.url)
    phases = tuning.progress.of("phase")
    assert phases == ["search", *["baselines"] * 2, "verify", "plans", "contest", "store"]


@pytest.mark.parametrize(
    "baseline, groups", [("eager", []), ("max-autotune", [("inductor", "max-autotune")])]
)
def test_a_faster_baseline_becomes_the_plan_and_is_timed_as_it_will_run(
    store: Store,
    graph: Captured,
    monkeypatch: pytest.MonkeyPatch,
    baseline: str,
    groups: list[tuple[str, str]],
):
    door = {True: 1.0, False: 0.6}  # seconds of our plan, and of the baseline's by its plan

    def by_executor(captured: Captured, plans: Mapping[str, Plan]) -> Callable[..., float]:
        (plan,) = plans.values()
        return lambda *inputs: door[whole_way(plan, captured.graph) is None]

    monkeypatch.setattr(session_module, "by_executor", by_executor)
    calls = {"eager": 2.0} | {baseline.replace("-", "_"): 0.5}
    tuning = session(store, graph, FakeLab(wide))
    plan = tuning.measured(H200, baselines(**calls))
    assert [(g.lowering, g.options) for g in plan.groups] == groups
    assert plan.frame == (baseline == "eager")
    assert plan.measured == 0.6
    assert dict(plan.baselines)[baseline] == 0.5
    assert plan.contest is not None
    assert plan.contest.winner == "as kept"
    assert any(f"{baseline} is the fastest" in note for note in tuning.progress.of("note"))


def test_a_baseline_that_is_slow_as_a_plan_is_not_kept(
    store: Store, graph: Captured, monkeypatch: pytest.MonkeyPatch
):
    """What is timed is what runs: the baseline by itself is faster than ours, its plan is not."""

    def by_executor(captured: Captured, plans: Mapping[str, Plan]) -> Callable[..., float]:
        (plan,) = plans.values()
        return lambda *inputs: 1.0 if whole_way(plan, captured.graph) is None else 4.0

    monkeypatch.setattr(session_module, "by_executor", by_executor)
    plan = session(store, graph, FakeLab(wide)).measured(H200, baselines(eager=0.8))
    assert [g.lowering for g in plan.groups] == ["triton"]
    assert plan.measured == 1.0
    assert plan.speedup == 0.8
    assert plan.contest is not None
    assert plan.contest.winner == "plan"
    assert {c.name: c.cold_s for c in plan.contest.contestants} == {
        "eager": 0.8,
        "plan": 1.0,
        "as kept": 4.0,
    }


def test_the_record_says_why_a_faster_baseline_is_not_kept(
    store: Store, graph: Captured, monkeypatch: pytest.MonkeyPatch
):
    def by_executor(captured: Captured, plans: Mapping[str, Plan]) -> Callable[..., float]:
        (plan,) = plans.values()

        def run(*inputs: torch.Tensor) -> float:
            if whole_way(plan, captured.graph) is not None:
                raise RuntimeError("out of memory")
            return 1.0

        return run

    monkeypatch.setattr(session_module, "by_executor", by_executor)
    tuning = session(store, graph, FakeLab(wide))
    plan = tuning.measured(H200, baselines(eager=0.8))
    assert [g.lowering for g in plan.groups] == ["triton"]
    assert plan.contest is not None
    assert any(n == "as kept" and "out of memory" in why for n, why in plan.contest.left_out)
    (note,) = [n for n in tuning.progress.of("note") if "is the fastest" in n]
    assert "eager is the fastest, but does not run by a plan" in note
    assert "out of memory; ours is kept" in note


@pytest.mark.parametrize("good", [0, 4])
def test_a_baseline_whose_plan_fails_is_not_kept(
    store: Store, graph: Captured, monkeypatch: pytest.MonkeyPatch, good: int
):
    """Before it is compared, or after a few calls; no kernel of ours is right."""
    calls = [0]

    def by_executor(captured: Captured, plans: Mapping[str, Plan]) -> Callable[..., float]:
        def run(*inputs: torch.Tensor) -> float:
            calls[0] += 1
            if calls[0] > good:
                raise RuntimeError("no such backend")
            return 0.5

        return run

    monkeypatch.setattr(session_module, "by_executor", by_executor)
    tuning = session(store, graph, FakeLab(lambda group, candidate: Wrong("output 0")))
    plan = tuning.measured(H200, baselines(eager=2.0, default=0.5))
    assert calls[0] == good + 1
    assert plan.groups == ()
    assert plan.contest is not None
    assert plan.contest.winner == "eager"
    assert plan.measured == 2.0
    assert any("runs by no plan; eager is kept" in note for note in tuning.progress.of("note"))


@pytest.mark.parametrize("eager_s, kept", [(0.998, "eager"), (1.008, "eager"), (1.01, "ours")])
def test_of_equals_the_simpler_is_kept(store: Store, graph: Captured, eager_s: float, kept: str):
    plan = session(store, graph, FakeLab(wide)).measured(H200, baselines(eager=eager_s))
    assert bool(plan.groups) == (kept == "ours")


def test_a_stored_plan_has_to_be_beaten(store: Store, graph: Captured):
    """A later tune without trials keeps what an earlier one found."""
    first = session(store, graph, FakeLab(wide)).measured(H200, baselines(eager=3.0))
    second = session(store, graph, FakeLab(lambda group, candidate: Wrong("all of them")))
    plan = second.measured(H200, baselines(eager=3.0))
    assert plan.groups == first.groups
    assert stored(store, graph).groups == first.groups


def test_a_peer_that_fails_is_left_out(store: Store, graph: Captured):
    def broken() -> object:
        raise RuntimeError("no such backend")

    tuning = session(store, graph, FakeLab(wide))
    plan = tuning.measured(H200, baselines(eager=3.0, default=broken))
    assert dict(plan.baselines) == {"eager": 3.0}
    assert any("no such backend" in note for note in tuning.progress.of("note"))


def test_a_baseline_that_fails_in_the_contest_is_left_out_and_told(store: Store, graph: Captured):
    """As a CUDA graph of another compiler may, which ran on the first inputs."""
    calls = [0]

    def breaks() -> float:
        calls[0] += 1
        if calls[0] > 4:
            raise AssertionError("two tensors are not tracked\nand more")
        return 0.1

    tuning = session(store, graph, FakeLab(wide))
    plan = tuning.measured(H200, baselines(eager=3.0, default=breaks))
    assert calls[0] > 4
    assert plan.evidence == "measured"
    assert plan.contest is not None
    assert plan.contest.winner == "plan"
    assert dict(plan.contest.left_out)["default"] == "AssertionError: two tensors are not tracked"
    assert any("default is not compared" in note for note in tuning.progress.of("note"))
    assert store.plan(plan.graph_key, H200.key, versions()) is not None


@pytest.mark.parametrize("each_s", [0.0, 50.0])
def test_a_search_for_which_the_peers_left_no_time_tries_something(
    store: Store, graph: Captured, each_s: float
):
    now = [0.0]

    def slow() -> float:
        now[0] += each_s
        return 3.0

    tuning = session(store, graph, FakeLab(wide))
    tuning.wall = Wall(20.0, lambda: now[0])  # too short to be cut off
    plan = tuning.measured(H200, baselines(eager=slow))
    assert now[0] >= 2 * each_s
    assert [group.lowering for group in plan.groups] == ["triton"]


@pytest.mark.parametrize("mode_s", [0.0, 30.0])
def test_what_the_peers_take_is_missing_for_the_search(
    store: Store, graph: Captured, mode_s: float
):
    compiled: list[object] = []

    def mode() -> float:
        compiled.append(mode)
        return 3.0

    def now() -> float:
        return 4.0 * len(lab.measured) + mode_s * bool(compiled)

    lab = FakeLab(wide)
    tuning = session(store, graph, lab, trials=100)
    tuning.wall = Wall(60.0, now)
    tuning.measured(H200, baselines(eager=3.0, default=mode))
    assert 4.0 * len(lab.measured) >= 0.5 * (60.0 - mode_s)
    assert now() <= 60.0


def test_peers_compile_before_the_first_measurement_and_after_the_first_batch(
    store: Store, graph: Captured
):
    order: list[str] = []
    lab = FakeLab(lambda g, c: order.append("measure") or wide(g, c))
    lab.refuse = lambda config: order.append("compile")
    session(store, graph, lab).measured(
        H200, baselines(eager=lambda: order.append("baseline") or 3.0)
    )
    assert order.index("compile") < order.index("baseline") < order.index("measure")


def test_kernels_of_every_group_compile_while_the_baselines_do(store: Store):
    """Two groups, which no kernel joins: the compilers have work before the first baseline."""
    given = captured(lambda x: torch.digamma(torch.exp(x) + 1).sin() * 2, X)
    counts: list[set[str]] = []
    lab = FakeLab(wide)
    begun: list[str] = []
    compile_one = lab.compile
    lab.compile = lambda group, config: begun.append(group.key) or compile_one(group, config)
    site = TuneSite(OpenLab(lab), lambda device, l2: FakeStopwatch())
    limits = TuneLimits(16, 600.0)
    tuning = Session(given, (X,), store, limits, RecordedProgress(), "m", site=site)
    tuning.measured(H200, baselines(eager=lambda: counts.append(set(begun)) or 3.0))
    assert len(counts[0]) == 2
    kept = [(key, config) for key, config in zip(begun, lab.compiled, strict=True)]
    assert len(kept) == len(set(kept))  # what was begun is not begun again


def test_candidates_are_measured_while_torch_compile_compiles(store: Store, graph: Captured):
    lab, measured, threads = FakeLab(wide), threading.Event(), set()
    measure = lab.measure

    def told(*given, **named):
        threads.add(threading.current_thread())
        measured.set()
        return measure(*given, **named)

    def compiled() -> float:
        assert threading.current_thread() is threading.main_thread()
        return 3.0 if measured.wait(60.0) else 9.0

    lab.measure = told
    site = TuneSite(OpenLab(lab), lambda device, l2: FakeStopwatch(), beside=lambda device: True)
    limits = TuneLimits(16, 600.0)
    tuning = Session(graph, (X, B), store, limits, RecordedProgress(), "m", site=site)
    plan = tuning.measured(H200, baselines(eager=4.0, default=compiled))
    assert dict(plan.baselines) == {"eager": 4.0, "default": 3.0}
    assert [g.lowering for g in plan.groups] == ["triton"]
    assert threading.main_thread() not in threads


def test_a_large_graph_is_planned_while_torch_compile_compiles(
    monkeypatch, store: Store, graph: Captured
):
    monkeypatch.setattr(tuned_groups, "LARGE", 1)
    asked, compiling = [], threading.Event()

    class Elsewhere:
        def result(self, is_over: Callable[[], bool], is_enough: Callable[[], bool]) -> Covering:
            in_time = compiling.wait(60.0)
            asked.append((in_time, is_over() or is_enough(), threading.current_thread()))
            return Covering.of(graph.graph, H200, COVERS)

    def compiled() -> float:
        compiling.set()
        return 3.0

    site = TuneSite(
        OpenLab(FakeLab(wide, planning=Elsewhere())),
        lambda device, l2: FakeStopwatch(),
        beside=lambda device: True,
    )
    limits = TuneLimits(16, 600.0)
    tuning = Session(graph, (X, B), store, limits, RecordedProgress(), "m", site=site)
    plan = tuning.measured(H200, baselines(eager=4.0, default=compiled))
    assert [g.lowering for g in plan.groups] == ["triton"]
    ((in_time, over, thread),) = asked
    assert (in_time, over) == (True, False)
    assert thread is not threading.main_thread()


def test_what_takes_too_long_to_plan_is_not_searched(monkeypatch, store: Store, graph: Captured):
    monkeypatch.setattr(tuned_groups, "LARGE", 1)
    lab = FakeLab(wide, planning=WorkerPlanning(Future()))
    site = TuneSite(OpenLab(lab), lambda device, l2: FakeStopwatch())
    limits = TuneLimits(16, 0.5)
    tuning = Session(graph, (X, B), store, limits, RecordedProgress(), "m", site=site)
    plan = tuning.measured(H200, baselines(eager=3.0))
    assert not plan.groups  # it runs as eager does
    assert not lab.compiled
    assert any("too few to plan" in note for note in tuning.progress.of("note"))


def test_ctrl_c_keeps_the_best_so_far(store: Store, graph: Captured):
    lab = FakeLab(wide, interrupt_at=4)
    tuning = session(store, graph, lab)
    plan = tuning.measured(H200, baselines(eager=3.0))
    assert [g.lowering for g in plan.groups] == ["triton"]
    assert stored(store, graph) == plan
    assert any("interrupted" in note for note in tuning.progress.of("note"))


def test_ctrl_c_before_any_finding_is_raised(store: Store, graph: Captured):
    with pytest.raises(KeyboardInterrupt):
        session(store, graph, FakeLab(wide, interrupt_at=0)).measured(H200, baselines())
    assert store.plans() == []


def test_when_every_kernel_is_wrong_the_graph_runs_as_eager(store: Store, graph: Captured):
    def formula(group: Group, candidate: Candidate) -> float | Failure:
        return Wrong("output 0 ...") if candidate.config else 10.0

    plan = session(store, graph, FakeLab(formula)).measured(H200, baselines(eager=0.9))
    assert plan.groups == ()
    assert plan.frame
    assert dict(plan.baselines) == {"eager": 0.9}


def test_a_graph_with_nothing_to_fuse_gets_the_fastest_peer(store: Store):
    graph = captured(lambda x, b: x.digamma(), X, B)
    lab = FakeLab(wide)
    plan = session(store, graph, lab).measured(H200, baselines(eager=2.0, default=1.0))
    assert not lab.measured
    assert plan.groups == () or plan.groups[0].options == "default"


def test_without_a_gpu_the_model_plans_and_the_interpreter_checks(
    store: Store, graph: Captured, monkeypatch: pytest.MonkeyPatch
):
    """By workers, which `test_for_real` in tests/cli/test_tune.py has."""
    lab = FakeLab(wide)
    monkeypatch.setattr(offline, "WorkerLab", lambda *_, **options: nullcontext(lab))
    tuning = session(store, graph, lab)
    plan = tuning.modelled(H200)
    assert plan.evidence == "modelled"
    assert [g.lowering for g in plan.groups] == ["triton"]
    assert plan.measured is None
    assert plan.predicted
    (note,) = tuning.progress.of("note")
    assert "registers" in note
    assert "interpreter: " in note
    assert stored(store, graph, portable=True) == plan


def test_a_modelled_plan_does_not_replace_a_measured_one(store: Store, graph: Captured):
    measured = session(store, graph, FakeLab(wide)).measured(H200, baselines(eager=3.0))
    tuning = session(store, graph, FakeLab(wide))
    for evidence in ("modelled", "searched"):
        other = Plan(key(graph.graph), H200.key, tuple(versions().items()), evidence, ())
        tuning.save(other, H200)
        assert stored(store, graph) == measured


def test_in_training_a_faster_peer_is_left_to_the_decision_on_both_graphs(
    store: Store, graph: Captured
):
    tuning = session(store, graph, FakeLab(wide))
    plan = tuning.measured(H200, baselines(eager=0.5), "forward")
    assert [g.lowering for g in plan.groups] == ["triton"]
    assert (plan.measured, plan.baselines) == (1.0, (("eager", 0.5),))


def test_ctrl_c_in_the_contest_keeps_a_plan_that_says_it_was_not_compared(
    store: Store, graph: Captured, monkeypatch: pytest.MonkeyPatch
):
    def pressed(self: Decision) -> list[Plan]:
        raise KeyboardInterrupt

    monkeypatch.setattr(Decision, "plans", pressed)
    plan = session(store, graph, FakeLab(wide)).measured(H200, baselines(eager=3.0))
    assert plan.evidence == stored(store, graph).evidence == "searched"
    assert [g.lowering for g in plan.groups] == ["triton"]
    assert plan.measured == 1.0
