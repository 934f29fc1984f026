"""A bundle carries a model's graph as AOTAutograd gave it: another machine starts without that."""

import fusionplan
import pytest
import torch
from fusionplan.bundles.contents import Contents, open_bundle
from fusionplan.bundles.making import opened_of
from fusionplan.bundles.signing import distrust, private_key, trusted
from fusionplan.db import Snapshot
from fusionplan.planner.capture import aot_front
from fusionplan.planner.config import Config
from fusionplan.planner.costs.device import profile_of
from fusionplan.planner.graph.graph import key
from fusionplan.planner.plan import GroupPlan, Plan
from fusionplan.planner.runtime.dispatch import kept_files, opened_before
from fusionplan.planner.versions import versions
from fusionplan.tuner.capture.capture_model import capture_model
from fusionplan.tuner.records.ledger import device_record, graph_record
from fusionplan.tuner.records.plan_record import plan_record
from triton import knobs

pytestmark = pytest.mark.dynamo

X = torch.randn(4, 16)


def model(x):
    return (x * 2).softmax(-1)


@pytest.fixture(scope="module")
def made():
    """A plan of one kernel, and what belongs to it."""
    torch._dynamo.reset()
    graph = capture_model(model, [X]).parts[0].captured.graph
    profile = profile_of(X.device)
    nodes = tuple(n.id for n in graph.nodes if n.op != "input")
    group = GroupPlan(nodes, "triton", "", Config((("x0", 4),)))
    plan = Plan(key(graph), profile.key, tuple(versions().items()), "measured", (group,))
    records = Snapshot(
        (device_record(profile),),
        (graph_record(graph, plan.graph_key, "model"),),
        (),
        (),
        (plan_record(plan, profile.key, "model"),),
    )
    return plan, records


class Machine:
    """One on which the model is started by a bundle. opened: how often AOTAutograd opened it."""

    def __init__(self, monkeypatch):
        self.opened, self._front = 0, aot_front.by_aot_autograd
        monkeypatch.setattr(aot_front, "by_aot_autograd", self._open)

    def _open(self, *args, **given):
        self.opened += 1
        return self._front(*args, **given)

    def start(self, path):
        """How often it opened the graph, and its kernels; its results are right."""
        torch._dynamo.reset()
        self.opened = 0
        fast = fusionplan.load(model, bundle=path)
        with torch.no_grad():
            for _ in range(2):
                torch.testing.assert_close(fast(X), model(X))
        return self.opened, [e.kernels_per_call for e in fusionplan.executors(fast)]


@pytest.fixture
def machine(monkeypatch, tmp_path):
    monkeypatch.setattr(knobs.cache, "dir", str(tmp_path / "first"))
    monkeypatch.setenv("PLANNER_STORE", str(tmp_path / "none.db"))
    monkeypatch.delenv(opened_before.VARIABLE)
    return Machine(monkeypatch)


@pytest.fixture
def opened(machine, made, tmp_path, monkeypatch):
    """What is carried, by its key; the machine is another from here on."""
    plan, _ = made
    found = opened_of(model, lambda fast: fast(X), {plan.graph_key: plan}, "fast")
    assert not (tmp_path / "first").exists()
    monkeypatch.setattr(knobs.cache, "dir", str(tmp_path / "second"))
    # There the files of this package are of another time.
    monkeypatch.setattr(kept_files, "stamp", lambda: "another")
    return found


def test_another_machine_starts_without_aot_autograd(machine, opened, made, bundle):
    assert len(opened) == 1
    path = bundle(Contents(made[1], opened=opened))
    assert open_bundle(path, trusted()).opened == opened
    assert machine.start(path) == (0, [1])
    without = bundle(Contents(made[1]), "without.plan")
    assert machine.start(without) == (1, [1])


def test_a_graph_of_other_files_or_versions_is_not_used(
    machine, opened, made, bundle, monkeypatch, tmp_path
):
    path = bundle(Contents(made[1], opened=opened))
    for number, (name, other) in enumerate(
        [(kept_files, ("contents", lambda: "another")), (torch.version, ("git_version", "another"))]
    ):
        monkeypatch.setattr(knobs.cache, "dir", str(tmp_path / f"third{number}"))
        with monkeypatch.context() as changed:
            changed.setattr(name, *other)
            assert machine.start(path) == (1, [1])


@pytest.mark.parametrize(
    "change",
    [
        lambda text: "",
        lambda text: "[" * 100_000,
        lambda text: text[:-9],
        lambda text: text.replace("aten.mul.Tensor", "aten.mul_.Tensor"),
        lambda text: text.replace('"float32"', '"float64"'),
    ],
)
def test_what_is_signed_and_wrong_is_not_used(machine, opened, made, bundle, change):
    ((name, text),) = opened.items()
    assert change(text) != text
    path = bundle(Contents(made[1], opened={name: change(text)}))
    assert machine.start(path) == (1, [1])


@pytest.mark.parametrize("fault", ["altered", "not trusted"])
def test_without_a_right_signature_nothing_is_used(machine, opened, made, bundle, fault):
    path = bundle(Contents(made[1], opened=opened))
    if fault == "altered":
        data = path.read_bytes()
        text = next(iter(opened.values())).encode()
        path.write_bytes(data.replace(text, text.replace(b"aten.mul.Tensor", b"aten.sub.Tensor")))
    else:
        distrust(private_key().public)
    with pytest.warns(match="the bundle counts as empty"):
        count, _ = machine.start(path)
    assert count == 1


def test_a_model_that_does_not_run_has_a_bundle_without(machine, made):
    def call(fast):
        raise RuntimeError("no memory")

    assert opened_of(model, call, {made[0].graph_key: made[0]}, "fast") == {}
    assert kept_files.recording() is None
