"""Whole models by all ways: the real path of a small one in the interpreter, and its processes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fusionplan.bench import whole
from fusionplan.bench.result import EAGER, OURS, Against, Machine, Timing
from fusionplan.bench.whole_models import MODELS, ModelCase, ModelSize, distance, step_of
from fusionplan.bench.whole_one import MeasuredModel, ModelRequest, measure
from fusionplan.db.store import Store
from fusionplan.planner.costs.device import DeviceProfile
from fusionplan.planner.covers.cover import modelled_plan
from fusionplan.planner.plan import Plan
from fusionplan.tuner.decision.decide import Decision
from fusionplan.tuner.decision.finalists import Finalists, RunnablePlan
from fusionplan.tuner.gate.gate import Passed
from fusionplan.tuner.measure import timing
from fusionplan.tuner.session.searched_plans import Searched
from fusionplan.tuner.session.session import Session
from fusionplan.tuner.workers import lab
from fusionplan.tuner.workers.pool import Pool
from torch import nn

pytestmark = pytest.mark.usefixtures("few_looks")

CPU = torch.device("cpu")


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(x * self.weight)


def small(size: ModelSize) -> ModelCase:
    return Small(), {"x": torch.randn(4 if size == "tiny" else 8, 16)}


@pytest.fixture(autouse=True)
def _world(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, "small", small)
    # One round of times in each of two halves: the interpreter runs each call.
    monkeypatch.setattr(timing, "WARM_UP", 0)
    torch._dynamo.reset()


@pytest.fixture
def tuned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The stages of the graphs that were tuned, by the cost model and called measured."""
    stages: list[str] = []

    def searched(session: Session, profile: DeviceProfile, _: object, stage: str) -> Searched:
        stages.append(stage)
        plan = modelled_plan(session.captured.graph, profile)
        plan = replace(plan, device=profile.key, measured=1e-3)
        best = Finalists(RunnablePlan(plan, lambda *inputs: [], 1, Passed(("stood in",))))
        return Searched(session._record(profile), best, (plan,))

    def plans(decision: Decision) -> list[Plan]:
        best = [entrant.finalists.best for entrant in decision.entrants]
        return [replace(r.plan, evidence="measured") for r in best if r is not None]

    monkeypatch.setattr(Session, "searched", searched)
    monkeypatch.setattr(Decision, "plans", plans)
    return stages


@pytest.fixture
def no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would begin to import torch, and be ended."""
    monkeypatch.setattr(lab, "Pool", lambda roles: Pool({}))


def asked(kind: str, store: Path, *ways: str, seconds: float = 1.0) -> ModelRequest:
    return ModelRequest(
        "small", kind, ways or (EAGER, OURS), "cpu", seconds, 0.01, str(store), "tiny"
    )


@pytest.mark.usefixtures("no_workers")
@pytest.mark.dynamo
@pytest.mark.parametrize(
    "kind, stages", [("inference", ["inference"]), ("training", ["forward", "backward"])]
)
def test_ours_runs_by_the_tuned_plans_beside_eager(tmp_path, tuned, kind, stages):
    saved = []
    found = measure(asked(kind, tmp_path / "p.db"), lambda r: saved.append(list(r.times)))
    assert tuned == stages
    assert not found.problem
    assert found.kernels >= len(stages)
    assert "triton" in found.lowerings
    assert found.errors[EAGER] == 0.0
    assert set(found.times) == set(found.first_s) == {EAGER, OURS}
    assert found.best.baseline == EAGER
    assert min(found.tune_s, found.capture_s) > 0
    assert found.plan_s is None
    assert not any("plan" in note for note in found.notes)
    assert len(saved) > 2
    with Store.open(tmp_path / "p.db") as store:
        assert len(store.plans()) == len(stages)


@pytest.mark.dynamo
@pytest.mark.slow
def test_a_model_of_transformers(tmp_path, tuned):
    pytest.importorskip("transformers")
    bert = replace(asked("inference", tmp_path / "p.db"), name="bert-base")
    found = measure(bert, lambda _: None)
    assert tuned == ["inference"]
    assert not found.problem
    assert found.kernels > 1
    assert OURS in found.times


@pytest.mark.dynamo
def test_without_a_search_the_models_plans_run(tmp_path, tuned):
    found = measure(asked("inference", tmp_path / "none.db", seconds=0.0), lambda _: None)
    assert not tuned
    assert found.tune_s is None
    assert found.plan_s > 0
    assert found.kernels > 0


@pytest.mark.usefixtures("no_workers")
@pytest.mark.dynamo
def test_what_is_stored_is_not_planned_again(tmp_path, tuned):
    store = tmp_path / "p.db"
    first = measure(asked("inference", store), lambda _: None)
    again = measure(asked("inference", store, seconds=0.0), lambda _: None)
    assert tuned == ["inference"]
    assert again.plan_s is None
    assert again.kernels == first.kernels > 0


def test_a_way_that_fails_is_told_and_the_others_go_on(tmp_path, monkeypatch):
    def fails(model: object, **_: object) -> Callable[..., object]:
        def call(**_: object) -> object:
            raise RuntimeError("no compiler here")

        return call

    ways = (EAGER, "default")
    monkeypatch.setattr(torch, "compile", fails)
    found = measure(asked("inference", tmp_path / "p.db", *ways), lambda _: None)
    assert found.failed == {"default": "RuntimeError: no compiler here"}
    assert list(found.times) == [EAGER]
    assert found.best is None


@pytest.mark.dynamo
def test_a_search_that_fails_leaves_the_baselines(tmp_path, monkeypatch):
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("no search here")

    monkeypatch.setattr("fusionplan.bench.whole_one.tune", fails)
    found = measure(asked("inference", tmp_path / "p.db"), lambda _: None)
    assert found.problem == "RuntimeError: no search here"
    assert list(found.times) == [EAGER]


def test_a_wrong_result_is_a_problem():
    found = MeasuredModel("m", "inference", errors={OURS: 0.03}, eager_error=0.005)
    assert "error 0.03" in found.problem
    assert not replace(found, eager_error=0.02).problem
    assert not replace(found, errors={"default": 1.0}).problem


def test_a_result_that_is_not_finite_is_told_as_such():
    inf = float("inf")
    found = MeasuredModel("m", "inference", errors={OURS: inf}, eager_error=inf)
    report = whole.ModelReport("2025-01-02", "abc", "python -m x", [found])
    again = whole.REPORT.validate_json(whole.REPORT.dump_json(report))
    assert again == report
    assert "error inf" in again.models[0].problem
    assert whole.ONE.validate_json(whole.ONE.dump_json(found)) == found


@pytest.mark.process
def test_a_process_of_its_own(tmp_path, capsys):
    out = tmp_path / "whole.json"
    options = [
        "unet-block",
        "--size",
        "tiny",
        "--device",
        "cpu",
        "--kind",
        "inference",
        "--seconds",
        "0",
    ]
    more = ["--ways", EAGER, "--budget", "0.01", "--json", str(out)]
    assert whole.main([*options, *more]) == 0
    report = whole.REPORT.validate_json(out.read_bytes())
    assert [m.name for m in report.models] == ["unet-block"]
    assert report.models[0].times[EAGER].seconds > 0
    printed = capsys.readouterr().out
    assert "| unet-block | inference |" in printed
    assert "--size tiny --device cpu" in printed
    assert f"torch {torch.__version__}" in printed


@pytest.mark.process
def test_what_hangs_is_stopped_and_what_was_found_is_kept(monkeypatch):
    code = "import sys, time; open(sys.argv[1], 'w').write(sys.argv[2]); time.sleep(600)"
    part = whole.ONE.dump_json(MeasuredModel("small", "training", plan_s=3.0)).decode()

    class Hangs(whole.subprocess.Popen):
        def __init__(self, command: list[str], **options: object) -> None:
            into = Path(command[command.index("--into") + 1])
            super().__init__([sys.executable, "-c", code, str(into), part], **options)
            while not (into.exists() and into.stat().st_size):  # its time begins then
                time.sleep(0.01)

    monkeypatch.setattr(whole.subprocess, "Popen", Hangs)
    start = time.monotonic()
    found = whole._apart(ModelRequest("small", "training"), 1.0)
    assert found.ended == "stopped after 1 s"
    assert found.plan_s == 3.0
    assert time.monotonic() - start < 60


@pytest.mark.process
def test_a_process_that_dies_is_told(monkeypatch):
    monkeypatch.setattr(sys, "executable", "false")
    found = whole._apart(ModelRequest("small", "inference"), 60.0)
    assert found.ended == "its process ended with status 1"


def test_a_model_that_cannot_be_made_is_told(tmp_path, monkeypatch):
    def absent(size: ModelSize) -> ModelCase:
        raise ModuleNotFoundError("No module named 'timm'")

    monkeypatch.setitem(MODELS, "small", absent)
    whole._child(asked("inference", tmp_path / "p.db"), tmp_path / "one.json")
    found = whole.ONE.validate_json((tmp_path / "one.json").read_bytes())
    assert found.ended == "ModuleNotFoundError: No module named 'timm'"


@pytest.mark.process
def test_no_model_is_begun_after_the_limit(capsys, tmp_path):
    out = tmp_path / "whole.json"
    assert whole.main(["resnet50", "--limit", "0", "--json", str(out)]) == 1
    report = whole.REPORT.validate_json(out.read_bytes())
    assert [(m.kind, m.ended) for m in report.models] == [
        ("inference", "not begun: 0 s are over"),
        ("training", "not begun: 0 s are over"),
    ]
    assert "- resnet50 training: not begun: 0 s are over" in capsys.readouterr().out


def test_arguments_reach_the_process(tmp_path):
    given = ModelRequest("gpt2", "training", (EAGER, OURS), "cuda:1", 5.0, 0.5, "p.db", "tiny")
    options = whole._parser().parse_args(whole._arguments(given, tmp_path))
    assert whole._asked(options, options.models[0], options.kind) == given
    assert options.into == tmp_path


@pytest.mark.parametrize("given", [["nonsense"], ["gpt2", "--ways", "fast"], ["--seconds", "-1"]])
def test_usage(given, capsys):
    with pytest.raises(SystemExit) as stopped:
        whole.main(given)
    assert stopped.value.code == 2
    assert capsys.readouterr().err


def test_the_table():
    def timing(seconds: float) -> Timing:
        return Timing(seconds, (seconds,), 0.0, 10)

    good = MeasuredModel(
        "gpt2",
        "training",
        Machine("A GPU", "2.13", "3.7", "3.12"),
        plan_s=12.0,
        tune_s=100.0,
        times={EAGER: timing(4e-3), "max-autotune": timing(2e-3), OURS: timing(1.6e-3)},
        errors={OURS: 5e-3},
        failed={"reduce-overhead": "RuntimeError: no graph"},
        kernels=7,
        lowerings=("aten", "triton"),
        best=Against("max-autotune", 0.8, 0.79, 0.81),
    )
    bad = MeasuredModel("mamba", "inference", ended="stopped after 9 s")
    text = whole.markdown(whole.ModelReport("2025-01-02", "abc", "python -m x", [good, bad]))
    assert "2025-01-02, A GPU, torch 2.13, triton 3.7, commit abc: `python -m x`" in text
    row = "| gpt2 | training | 4.000 ms | 2.000 ms | 1.600 ms | 1.25 (max-autotune) | 7 | 5.0e-03"
    assert row + " | 12 | 100 |" in text
    assert "| mamba | inference | - | - | - | - | 0 | - | - | - |" in text
    assert "- gpt2 training: reduce-overhead failed: RuntimeError: no graph" in text
    assert "- mamba inference: stopped after 9 s" in text


def test_steps_are_the_same_each_time_and_leave_no_gradients():
    first, second = (step_of(small, "training", CPU, "tiny") for _ in range(2))
    got = first.results(first.module)
    assert distance(got, second.results(second.module)) == 0.0
    assert got[-1].numel() == sum(p.numel() for p in first.module.parameters())
    assert all(p.grad is None for p in first.module.parameters())
    first.run(first.module)
    assert all(p.grad is not None for p in first.module.parameters())


@pytest.mark.slow
def test_the_backward_pass_begins_at_the_loss():
    pytest.importorskip("transformers")
    step = step_of(MODELS["gpt2"], "training", CPU, "tiny")
    assert [g.shape for g in step.gradients] == [torch.Size([])]
    assert len(step_of(small, "training", CPU, "tiny").gradients) == 1


def test_distance():
    a = torch.ones(4)
    assert distance([a], [a, a]) == float("inf")
    nan = a * float("nan")
    assert distance([nan], [a]) == distance([nan], [nan]) == float("inf")
    assert distance([a * 1.5], [a]) == pytest.approx(0.5)
