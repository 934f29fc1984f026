"""What goes wrong outside of a candidate: one clear message, and a plan where there can be one."""

import itertools
import time
from collections.abc import Callable
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fusionplan.db import Store, records
from fusionplan.planner.costs.device import builtin
from fusionplan.planner.covers.cover import modelled_plan
from fusionplan.planner.errors import FusionplanError, ModelError
from fusionplan.planner.graph.graph import key
from fusionplan.planner.plan import Plan
from fusionplan.planner.versions import versions
from fusionplan.tuner.capture.capture_model import capture_model
from fusionplan.tuner.measure.other_processes import busy_warning
from fusionplan.tuner.progress.progress import RecordedProgress
from fusionplan.tuner.records.findings import Findings
from fusionplan.tuner.search.tuned_groups import Partition, Tasks
from fusionplan.tuner.session.effort import EFFORTS, TuneLimits, allowance
from fusionplan.tuner.session.session import Session
from fusionplan.tuner.session.tune_site import TuneSite
from fusionplan.tuner.trial.outcome import Candidate, Failure, Rejected, Timed
from fusionplan.tuner.workers.lab import Group
from tuner_fakes import FakeLab, FakeStopwatch, OpenLab, baselines, captured

H200 = builtin("h200")
X, B = torch.randn(4, 32), torch.randn(32)


def softmax_of_sum(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x + b, -1)


def fast(group: Group, candidate: Candidate) -> float:
    return 1e-5 if candidate.config else 1.0


def tuned(tmp_path: Path, lab: FakeLab, limits: TuneLimits, baseline: Callable[[], float]):
    """The plan, the stored one and what was told."""
    graph = captured(softmax_of_sum, X, B)
    told = RecordedProgress()
    with Store.open(tmp_path / "plans.db") as store:
        site = TuneSite(OpenLab(lab), lambda device, l2: FakeStopwatch())
        session = Session(graph, (X, B), store, limits, told, "m", site=site)
        plan = session.measured(H200, baselines(eager=baseline))
        record = store.plan(key(graph.graph), H200.key, versions())
    assert record is not None
    return plan, Plan.from_json(record.payload), told.of("note")


# --- budgets --------------------------------------------------------------------------------------


def test_efforts_grow_and_may_be_overridden():
    assert list(EFFORTS) == ["quick", "default", "thorough"]
    found = [(each.trials, each.seconds) for each in EFFORTS.values()]
    assert found == sorted(found)
    assert allowance("quick", trials=3).trials == 3
    assert TuneLimits(8, each=allowance("quick").each).trials_of(5) == 20
    assert TuneLimits(8, each=allowance("quick", trials=8).each).trials_of(5) == 8
    assert allowance("quick", trials=3).seconds == EFFORTS["quick"].seconds
    assert allowance("thorough", seconds=2.0).trials == EFFORTS["thorough"].trials
    with pytest.raises(FusionplanError, match="quick, default, thorough"):
        allowance("endless")


@pytest.mark.interpreter
def test_a_budget_too_small_for_one_trial_gives_a_plan_and_says_so(tmp_path: Path):
    lab = FakeLab(fast)
    plan, stored, notes = tuned(tmp_path, lab, TuneLimits(8, 1e-6), lambda: 1e-9)
    assert all(candidate.config is None for _, candidate in lab.measured)
    (note,) = [note for note in notes if "no kernel was measured" in note]
    assert "more seconds" in note
    assert plan == stored
    assert plan.groups == ()  # eager
    assert dict(plan.baselines) == {"eager": 1e-9}


@pytest.mark.interpreter
def test_a_clock_that_jumps_ends_no_tune_and_doubles_no_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """By a year, there and back, each time that somebody looks at it."""
    jumps = itertools.cycle([timedelta(0), timedelta(365), timedelta(-365)])

    class Jumping(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:
            return datetime.now(tz) + next(jumps)

    monkeypatch.setattr(records, "datetime", Jumping)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + next(jumps).total_seconds())
    lab = FakeLab(fast)
    plan, stored, notes = tuned(tmp_path, lab, TuneLimits(12, 60.0), lambda: 3.0)
    assert plan == stored
    assert (plan.evidence, plan.groups[0].lowering) == ("measured", "triton")
    assert not [note for note in notes if "no kernel was measured" in note]
    with Store.open(tmp_path / "plans.db") as store:
        kept = [(t.subject, str(t.config)) for t in store.trials(level="kernel")]
        times = {t.created_at.year for t in store.trials(level="kernel")}
    assert len(kept) == len(set(kept)) >= 8
    assert len(times) > 1


def test_kernels_that_there_was_no_time_for_are_told(tmp_path: Path):
    graph = captured(lambda x: torch.sin(torch.digamma(torch.exp(x))), X)
    tasks, findings, told = Tasks(graph.graph, H200), Findings(), RecordedProgress()
    groups = tasks.cover.best(graph.graph, H200, 1)[0].groups
    first, second = tasks.all(groups)
    with Store.open(tmp_path / "plans.db") as store:
        session = Session(graph, (X,), store, TuneLimits(8, 2.0), told)
        for task in (first, second):
            config = task.space.top()[0]
            timed = Timed(1e-5, 1e-5, 10)
            findings.of(task.group.key).add(Candidate("triton", config), timed, None)
            session._tell_what_was_not_tried(tasks, findings, [Partition(groups, 1e-5)])
            assert len(told.of("note")) == 1
    assert told.of("note")[0].startswith(
        "of 1 of 2 groups no kernel was measured within 8 trials and 2 s"
    )


@pytest.mark.interpreter
def test_without_a_trial_the_plan_of_the_cost_model_is_compared(tmp_path: Path):
    """Not one operation after the other: that is slower than what nobody tuned."""
    lab = FakeLab(fast)
    plan, stored, _ = tuned(tmp_path, lab, TuneLimits(8, 1e-6), lambda: 3.0)
    assert all(candidate.config is None for _, candidate in lab.measured)
    graph = captured(softmax_of_sum, X, B).graph
    assert [g.config for g in plan.groups] == [g.config for g in modelled_plan(graph, H200).groups]
    assert plan.groups[0].lowering == "triton"
    assert (plan.evidence, plan) == ("measured", stored)


@pytest.mark.interpreter
def test_one_trial_is_enough_for_a_plan_of_ours(tmp_path: Path):
    plan, _, notes = tuned(tmp_path, FakeLab(fast), TuneLimits(1, 600.0), lambda: 3.0)
    assert [group.lowering for group in plan.groups] == ["triton"]
    assert not [note for note in notes if "no kernel was measured" in note]


# --- memory ---------------------------------------------------------------------------------------


@pytest.mark.interpreter
def test_candidates_without_memory_leave_the_others(tmp_path: Path):
    seen: list[Candidate] = []

    def formula(group: Group, candidate: Candidate) -> float | Failure:
        if candidate.config is None:
            return 1.0
        seen.append(candidate)
        return Rejected("out of device memory: tried a lot") if len(seen) <= 2 else 1e-5

    plan, _, _ = tuned(tmp_path, FakeLab(formula), TuneLimits(8, 600.0), lambda: 3.0)
    assert [group.lowering for group in plan.groups] == ["triton"]
    assert plan.groups[0].config not in [candidate.config for candidate in seen[:2]]


def test_a_model_without_memory_names_the_way_out():
    def model(x: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 90 GiB")

    with pytest.raises(ModelError, match="give a smaller batch") as caught:
        capture_model(model, X)
    assert "\n" not in str(caught.value)


# --- models ---------------------------------------------------------------------------------------


@pytest.mark.dynamo
def test_a_model_that_torch_compile_cannot_do_says_why(monkeypatch: pytest.MonkeyPatch):
    def broken(*args: object, **options: object) -> None:
        raise NotImplementedError("no derivative of it\nand more")

    monkeypatch.setattr("fusionplan.tuner.capture.capture_model.aot_autograd", broken)
    with pytest.raises(ModelError) as caught:
        capture_model(lambda x: x + 1, X)
    said = str(caught.value)
    assert said.startswith("torch.compile cannot capture the model: ")
    assert said.endswith("no derivative of it")


@pytest.mark.dynamo
def test_graph_breaks_are_counted_and_told():
    def model(x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(x + 1)
        torch._dynamo.graph_break()
        return torch.exp(x) * 2

    found = capture_model(model, X)
    assert len(found.parts) == 2
    (note,) = found.notes
    assert "into 2 graphs" in note
    assert "graph_breaks" in note
    assert not capture_model(torch.relu, X).notes


@pytest.mark.dynamo
def test_shapes_that_depend_on_data_leave_graphs_around_them():
    def model(x: torch.Tensor) -> torch.Tensor:
        kept = torch.relu(x + 1)
        rows = kept[kept.sum(-1) > 0]
        return torch.exp(rows * 2) + 1

    found = capture_model(model, torch.randn(8, 16))
    assert found.parts
    assert any("break" in note for note in found.notes)
    operations = {n.op for part in found.parts for n in part.captured.graph.nodes}
    assert {"aten.relu.default", "aten.exp.default"} <= operations


# --- the device -----------------------------------------------------------------------------------


def gpu(monkeypatch: pytest.MonkeyPatch, shares: list[int]) -> None:
    """A GPU in use for these percentages of the time, one after the other."""
    looks = iter(shares)
    fake = SimpleNamespace(
        NVMLError=RuntimeError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=next(looks)),
    )
    monkeypatch.setitem(__import__("sys").modules, "pynvml", fake)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="u")
    )
    monkeypatch.setattr("fusionplan.tuner.measure.other_processes._APART_S", 0.0)


def test_a_gpu_that_works_for_somebody_else_is_told(monkeypatch: pytest.MonkeyPatch):
    gpu(monkeypatch, [97, 90, 85, 99, 92])
    assert "cuda:1 is busy with another process (85% of the time)" in (
        busy_warning(torch.device("cuda", 1)) or ""
    )


def test_a_gpu_that_was_ours_a_moment_ago_is_not(monkeypatch: pytest.MonkeyPatch):
    gpu(monkeypatch, [60, 20, 0, 0, 0])
    assert busy_warning(torch.device("cuda", 0)) is None
    assert busy_warning(torch.device("cpu")) is None


# --- Ctrl-C ---------------------------------------------------------------------------------------


@pytest.mark.interpreter
def test_ctrl_c_in_the_last_measurement_keeps_the_best_so_far(tmp_path: Path):
    calls = []

    def eager() -> float:
        calls.append(None)
        if len(calls) > 2:  # twice to warm up
            raise KeyboardInterrupt
        return 3.0

    plan, stored, notes = tuned(tmp_path, FakeLab(fast), TuneLimits(8, 600.0), eager)
    assert [group.lowering for group in plan.groups] == ["triton"]
    assert plan == stored
    assert (plan.evidence, plan.baselines, plan.speedup) == ("searched", (), None)
    assert any("not compared with eager" in note for note in notes)
