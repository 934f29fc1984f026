"""A GPU that falls off in the middle of a tune: no candidate pays for it, and what was measured is
kept."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fusionplan.db import Store
from fusionplan.planner.costs.device import builtin
from fusionplan.planner.graph.graph import key
from fusionplan.planner.plan import Plan
from fusionplan.planner.versions import versions
from fusionplan.tuner.decision import decide, finalists
from fusionplan.tuner.measure import lost_device
from fusionplan.tuner.measure.measure_role import MeasureRole
from fusionplan.tuner.progress.progress import RecordedProgress
from fusionplan.tuner.session import session as sessions
from fusionplan.tuner.session.session import Session, TuneLimits, TuneSite
from fusionplan.tuner.trial.outcome import ATEN, Candidate, Crashed, DeviceFull, DeviceLost, Timed
from fusionplan.tuner.workers.lab import Group, WorkerLab
from tuner_fakes import FakeLab, FakeStopwatch, OpenLab, baselines, captured
from tuner_graphs import pointwise

H200 = builtin("h200")
X, B = torch.randn(4, 32), torch.randn(32)
GONE = "CUDA error: unspecified launch failure"


def softmax_of_sum(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x + b, -1)


def tuned(tmp_path: Path, lab: FakeLab, baseline: Callable[[], float]) -> tuple[Plan, list[str]]:
    """The plan of a tune, which is the stored one, and what was told."""
    graph = captured(softmax_of_sum, X, B)
    told = RecordedProgress()
    with Store.open(tmp_path / "plans.db") as store:
        site = TuneSite(OpenLab(lab), lambda device, l2: FakeStopwatch())
        session = Session(graph, (X, B), store, TuneLimits(12), told, "m", site=site)
        plan = session.measured(H200, baselines(eager=baseline))
        record = store.plan(key(graph.graph), H200.key, versions())
    assert record is not None
    assert Plan.from_json(record.payload) == plan
    return plan, told.of("note")


def falls_off_after(count: int) -> FakeLab:
    def seconds(group: Group, candidate: Candidate) -> float:
        if len(lab.measured) > count:
            raise DeviceLost("cuda:0", GONE)
        return 1e-5 if candidate.config else 1.0

    lab = FakeLab(seconds)
    return lab


def trials_of(tmp_path: Path) -> list[tuple[str, str]]:
    with Store.open(tmp_path / "plans.db") as store:
        return [(str(t.config), t.outcome) for t in store.trials(level="kernel")]


@pytest.mark.interpreter
@pytest.mark.parametrize("count", [1, 4])
def test_what_was_measured_is_kept_and_nobody_is_condemned(tmp_path: Path, count: int):
    runs: list[float] = []
    plan, notes = tuned(tmp_path, falls_off_after(count), lambda: runs.append(3.0) or 3.0)
    assert plan.evidence == "searched"
    assert len(runs) == 2  # before the search; it is not timed
    assert [n for n in notes if "nvidia-smi" in n and GONE in n]
    assert [n for n in notes if "the GPU is lost: the plan was not compared" in n]
    before = trials_of(tmp_path)
    assert [outcome for _, outcome in before] == ["timed"] * count
    # Once it is back, the rest is measured, and what was is not.
    lab = FakeLab(lambda group, candidate: 1e-5 if candidate.config else 1.0)
    again, _ = tuned(tmp_path, lab, lambda: 3.0)
    assert (again.evidence, again.groups[0].lowering) == ("measured", "triton")
    measured = {str(candidate.to_json()) for _, candidate in lab.measured}
    assert measured.isdisjoint({config for config, _ in before})
    assert len(trials_of(tmp_path)) == len(dict(trials_of(tmp_path))) > count


def test_before_anything_is_measured_it_is_an_error(tmp_path: Path):
    with pytest.raises(DeviceLost, match=r"cuda:0 does nothing any more .*unspecified launch"):
        tuned(tmp_path, falls_off_after(0), lambda: 3.0)
    assert trials_of(tmp_path) == []


@pytest.mark.interpreter
def test_it_may_fall_off_in_the_contest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fails() -> float:
        raise RuntimeError(GONE)

    lab = FakeLab(lambda group, candidate: 1e-5 if candidate.config else 1.0)
    monkeypatch.setattr(sessions, "why_lost", lambda device: GONE)
    monkeypatch.setattr(decide.Ring, "contest", lambda *_: fails())
    plan, notes = tuned(tmp_path, lab, lambda: 3.0)
    assert plan.evidence == "searched"
    assert [n for n in notes if "the GPU is lost: the plan was not compared" in n]
    # An error while the device works is an error.
    monkeypatch.setattr(sessions, "why_lost", lambda device: None)
    with pytest.raises(RuntimeError, match="unspecified launch failure"):
        tuned(tmp_path, lab, lambda: 3.0)


class Answers:
    """A pool whose measuring worker answers from a list, and notes what it was asked."""

    def __init__(self, *answers: object) -> None:
        self.answers, self.asked = list(answers), []

    def submit(self, role: str, message: dict[str, Any], limit: float | None = None, **how: bool):
        self.asked.append((message["do"], how.get("alone", False)))
        future: Future[object] = Future()
        future.set_result(self.answers.pop(0))
        return future


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., WorkerLab]]:
    def made(*answers: object) -> WorkerLab:
        pool = Answers(*answers)
        monkeypatch.setattr("fusionplan.tuner.workers.lab.Pool", lambda roles: pool)
        return WorkerLab("cuda:0", 90, compilers=1)

    return made


def test_a_crash_is_the_candidates_only_where_a_new_process_can_use_the_device(lab):
    crash, works, fails = Crashed("signal SIGSEGV"), {"lost": None}, {"lost": GONE}
    group = Group.of(pointwise(), "g")
    opened = lab(crash, works)
    assert opened.measure(group, ATEN) == crash
    assert opened.pool.asked == [("measure", False), ("probe", True)]
    opened = lab(crash, fails, works)  # it was reset meanwhile
    assert opened.measure(group, ATEN) == crash
    for end in (fails, Crashed("a worker does not start: no CUDA-capable device")):
        with pytest.raises(DeviceLost, match="cuda:0 does nothing any more"):
            lab(crash, end, end).measure(group, ATEN)
        with pytest.raises(DeviceLost):
            lab(crash, end, end).duel(group, [ATEN, ATEN])
    timed = {"outcome": "timed", "seconds": 1.0, "spread_s": 0.0, "laps": 1, "stopped": False}
    opened = lab(timed)
    assert isinstance(opened.measure(group, ATEN), Timed)
    assert opened.pool.asked == [("measure", False)]


def test_a_device_without_room_for_a_process_is_full_and_not_lost(lab):
    end = Crashed("a worker does not start: CUDA error: out of memory")
    with pytest.raises(DeviceFull, match=r"the memory of cuda:0 is full .*smaller batch"):
        lab(Crashed("signal SIGABRT"), end, end).measure(Group.of(pointwise(), "g"), ATEN)


@pytest.mark.interpreter
@pytest.mark.parametrize("place", ["the check of plans", "the contest"])
def test_a_neighbour_that_takes_the_memory_leaves_what_was_found(tmp_path, monkeypatch, place):
    """Of a plan that is checked without memory, and of a model that is timed so."""

    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 4.00 GiB\nmore")

    if place == "the contest":
        monkeypatch.setattr(decide.Decision, "plans", full)
    else:
        monkeypatch.setattr(finalists, "judge", full)
    lab = FakeLab(lambda group, candidate: 1e-5 if candidate.config else 1.0)
    plan, notes = tuned(tmp_path, lab, lambda: 1.0)
    said = " ".join(notes)
    assert "CUDA out of memory. Tried to allocate 4.00 GiB" in said
    assert "more" not in said.split("GiB")[1][:6]
    if place == "the contest":
        assert (plan.evidence, [g.lowering for g in plan.groups]) == ("searched", ["triton"])
        assert "the GPU's memory is full: the plan was not compared" in said
    else:  # eager is all that is left to run
        assert plan.evidence == "measured"
        assert not plan.groups


def test_a_device_is_asked_for_a_sum(monkeypatch: pytest.MonkeyPatch):
    role = MeasureRole(torch.device("cpu"), SimpleNamespace(), 1 << 30)
    assert role.handle({"do": "probe"}) == {"lost": None}

    def failing(error: Exception) -> Callable[..., torch.Tensor]:
        def ones(*_: object, **__: object) -> torch.Tensor:
            raise error

        return ones

    fails = failing(torch.AcceleratorError(f"{GONE}\nmore"))
    monkeypatch.setattr(lost_device, "torch", SimpleNamespace(**vars(torch) | {"ones": fails}))
    assert role.handle({"do": "probe"}) == {"lost": GONE}
    full = failing(torch.OutOfMemoryError("CUDA out of memory"))
    monkeypatch.setattr(lost_device, "torch", SimpleNamespace(**vars(torch) | {"ones": full}))
    assert role.handle({"do": "probe"}) == {"lost": None}
    wrong = SimpleNamespace(**vars(torch) | {"ones": torch.zeros})
    monkeypatch.setattr(lost_device, "torch", wrong)
    assert "0 of a sum of 64 ones" in role.handle({"do": "probe"})["lost"]
