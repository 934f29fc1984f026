"""A user of one's own for each test, and plans with all that belongs to them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fusionplan.bundles.contents import Contents, write
from fusionplan.bundles.signing import Private, private_key
from fusionplan.db import KernelRecord, Snapshot, TrialRecord
from fusionplan.planner.config import Config
from fusionplan.planner.costs.device import H200
from fusionplan.planner.graph.graph import INPUT, Graph, Node, Ref, TensorType, key
from fusionplan.planner.plan import GroupPlan, Plan
from fusionplan.tuner.records.ledger import device_record, graph_record
from fusionplan.tuner.records.plan_record import plan_record

VERSIONS = {"torch": "2.11.0", "triton": "3.6.0", "cuda": "13.0", "codegen": "1"}


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder of its own for the user's keys."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("PLANNER_TRUSTED_KEYS", raising=False)
    return tmp_path / "config" / "fusionplan"


@pytest.fixture
def private(home: Path) -> Private:
    return private_key()


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


def plan_of(graph: Graph, seconds: float = 5e-6, **changes: Any) -> Plan:
    """A plan as a tune on a GPU stores it."""
    config = Config((("x0", 2), ("x1", 128)), num_warps=4, num_stages=1)
    group = GroupPlan((2, 3), "triton", "a" * 32, config, predicted=4e-6, measured=seconds)
    values: dict[str, Any] = {
        "device": H200.key,
        "versions": tuple(sorted(VERSIONS.items())),
        "evidence": "measured",
        "predicted": 4e-6,
        "measured": seconds,
        "baselines": (("eager", 1.2e-5), ("default", 7e-6)),
    }
    return Plan(key(graph), groups=(group,), **(values | changes))


def trial_of(number: int, **changes: Any) -> TrialRecord:
    values: dict[str, Any] = {
        "study": "fused_add_relu",
        "level": "kernel",
        "subject": "a" * 32,
        "device_key": H200.key,
        "versions": VERSIONS,
        "config": {"lowering": "triton", "num_warps": number},
        "outcome": "timed",
        "timing": "cold",
        "measured_s": 1e-5 / number,
    }
    return TrialRecord(**(values | changes))


@pytest.fixture
def records_of() -> Callable[..., Snapshot]:
    """Makes a plan with its graph, device, kernel and so many trials."""
    return _records


def _records(trials: int = 3, **changes: Any) -> Snapshot:
    graph = chain()
    plan = plan_of(graph, **changes)
    return Snapshot(
        (device_record(H200),),
        (graph_record(graph, plan.graph_key, "chain"),),
        (KernelRecord("a" * 32, plan.graph_key, "pointwise", {}),),
        tuple(trial_of(n) for n in range(1, trials + 1)),
        (plan_record(plan, H200.key, "chain"),),
    )


@pytest.fixture
def bundle(tmp_path: Path, private: Private) -> Callable[..., Path]:
    """Writes a bundle of `records_of`, signed by the user's own key."""

    def make(contents: Contents | None = None, name: str = "plans.bundle") -> Path:
        write(tmp_path / name, contents or Contents(_records()), private)
        return tmp_path / name

    return make
