"""The command line in this process and in one of its own, model files, and a filled store."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from compiling import forked
from fusionplan.cli.main import main
from fusionplan.db import KernelRecord, PlanRecord, Store, TrialRecord
from fusionplan.planner.config import Config
from fusionplan.planner.costs.device import H200
from fusionplan.planner.graph.graph import INPUT, Graph, Node, Ref, TensorType, key
from fusionplan.planner.plan import GroupPlan, Plan

VERSIONS = {"torch": "2.11.0", "triton": "3.6.0", "cuda": "13.0", "codegen": "1"}
START = datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC)


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


Planner = Callable[..., Result]
WriteFile = Callable[..., Path]


@pytest.fixture(autouse=True)
def _own_world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty working folder and a store in it, whatever the user has set."""
    for name in [n for n in os.environ if n.startswith("PLANNER_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PLANNER_STORE", str(tmp_path / "plans.db"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.fixture
def planner(capsys: pytest.CaptureFixture[str]) -> Planner:
    """Runs the command in this process."""

    def run(*arguments: object) -> Result:
        capsys.readouterr()
        code = main([str(a) for a in arguments])
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return run


@pytest.fixture
def planner_process() -> Planner:
    """Runs the command in a process of its own, in the working folder."""

    def run(*arguments: object, **variables: str) -> Result:
        done = forked(["-m", "fusionplan.cli.main", *map(str, arguments)], variables=variables)
        return Result(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def write(tmp_path: Path) -> WriteFile:
    """Writes a Python file into the working folder."""

    def put(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return put


def chain() -> Graph:
    """relu(x + b) with x [64, 128]."""
    x = TensorType((64, 128), (128, 1), "float32")
    return Graph(
        (
            Node(0, "x", INPUT, type=x),
            Node(1, "b", INPUT, type=TensorType((128,), (1,), "float32")),
            Node(2, "add", "aten.add.Tensor", (Ref(0), Ref(1)), type=x),
            Node(3, "relu", "aten.relu.default", (Ref(2),), type=x),
        ),
        (3,),
    )


def measured_plan(graph: Graph) -> Plan:
    """A plan as a tune on a GPU stores it."""
    config = Config((("x0", 2), ("x1", 128)), num_warps=4, num_stages=1)
    group = GroupPlan((2, 3), "triton", "k" * 32, config, predicted=4e-6, measured=5e-6)
    timed = (("eager", 1.2e-5), ("default", 7e-6), ("max-autotune", 6.5e-6))
    made_with = tuple(sorted(VERSIONS.items()))
    return Plan(key(graph), H200.key, made_with, "measured", (group,), 4e-6, 5e-6, timed)


@pytest.fixture
def filled(tmp_path: Path) -> Store:
    """A store with two plans, a kernel and five trials of it, as a tune leaves it behind."""
    from fusionplan.tuner.records.ledger import device_record, graph_record

    graph = chain()
    plan = measured_plan(graph)
    kernel = plan.groups[0].kernel_key
    store = Store.open(tmp_path / "plans.db")
    store.put_device(device_record(H200))
    store.put_graph(graph_record(graph, plan.graph_key, "chain"))
    store.put_kernel(KernelRecord(kernel, plan.graph_key, "pointwise", {}))
    for number, (outcome, seconds, reason) in enumerate(TRIALS):
        store.add_trial(
            TrialRecord(
                study="fused_add_relu kkkk",
                level="kernel",
                subject=kernel,
                device_key=H200.key,
                versions=VERSIONS,
                config={"lowering": "triton", "blocks": [["x0", 2 << number]], "num_warps": 4},
                outcome=outcome,
                timing="cold",
                reason=reason,
                measured_s=seconds,
                predicted_s=4e-6,
                registers=20 + number,
                created_at=START + timedelta(seconds=number),
            )
        )
    common = {"graph_key": plan.graph_key, "device_key": H200.key}
    old = replace(plan, evidence="modelled", measured=None, baselines=())
    old_versions = VERSIONS | {"torch": "2.10.0"}
    for record_key, name, found, versions, when in (
        ("aaaa1111", "old", old, old_versions, START),
        ("bbbb2222", "chain", plan, VERSIONS, START + timedelta(hours=1)),
    ):
        record = PlanRecord(
            key=record_key,
            name=name,
            versions=versions,
            evidence=found.evidence,
            payload=found.to_json(),
            speedup=found.speedup,
            created_at=when,
            updated_at=when,
            **common,
        )
        store.save_plan(record)
    return store


TRIALS = (
    ("timed", 9e-6, None),
    ("wrong", None, "output 0 on masked inputs: NaN"),
    ("timed", 8e-6, None),
    ("timed", 8.5e-6, None),
    ("timed", 5e-6, None),
)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans by the model alone, without the compiler and the interpreter in other processes."""
    from fusionplan.planner.costs.device import DeviceProfile
    from fusionplan.planner.covers.cover import modelled_plan
    from fusionplan.tuner.decision.decide import Decision
    from fusionplan.tuner.decision.finalists import Finalists, RunnablePlan
    from fusionplan.tuner.gate.gate import Passed
    from fusionplan.tuner.session.searched_plans import Searched
    from fusionplan.tuner.session.session import Session
    from fusionplan.tuner.workers import lab
    from fusionplan.tuner.workers.pool import Pool

    def modelled(session: Session, profile: DeviceProfile) -> Plan:
        current = session._record(profile, portable=True).versions
        plan = modelled_plan(session.captured.graph, profile)
        plan = replace(plan, device=profile.key, versions=tuple(current.items()))
        session.save(plan, profile)
        return plan

    def searched(session: Session, profile: DeviceProfile, *_: object) -> Searched:
        plan = modelled_plan(session.captured.graph, profile)
        plan = replace(plan, device=profile.key, evidence="searched", measured=1e-3)
        best = Finalists(RunnablePlan(plan, lambda *inputs: [], 1, Passed(("stood in",))))
        return Searched(session._record(profile), best, (plan,))

    def plans(decision: Decision) -> list[Plan]:
        best = [entrant.finalists.best for entrant in decision.entrants]
        return [
            replace(runner.plan, evidence="measured", baselines=(("eager", 2e-3),))
            for runner in best
            if runner is not None
        ]

    monkeypatch.setattr(Session, "modelled", modelled)
    monkeypatch.setattr(Session, "searched", searched)
    monkeypatch.setattr(Decision, "plans", plans)
    # Workers would begin to import torch, and be ended: two processes for each tune.
    monkeypatch.setattr(lab, "Pool", lambda roles: Pool({}))


MODEL = """\
import torch
from torch import nn


class Net(nn.Module):
    def forward(self, x, b):
        return torch.log(torch.relu(x + b) + 1)


def get_model():
    return Net()


def get_inputs(device="cuda"):
    return [torch.randn(8, 32, device=device), torch.randn(32, device=device)]
"""


@pytest.fixture
def small(write: WriteFile) -> Path:
    """A small model's file, of the first form."""
    return write("small.py", MODEL)
