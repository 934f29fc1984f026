"""fusionplan.load(model, bundle=...): in Triton's interpreter, with no store."""

import warnings
from dataclasses import replace

import fusionplan
import pytest
import torch
import torch.nn.functional as F
from fusionplan.bundles.contents import Contents, open_bundle, write
from fusionplan.bundles.signing import trusted
from fusionplan.db import Snapshot, Store
from fusionplan.planner.config import Config
from fusionplan.planner.costs.device import H200, profile_of
from fusionplan.planner.cures import WARNINGS, FusionplanWarning
from fusionplan.planner.graph.graph import key
from fusionplan.planner.graph.varying import bucket_key
from fusionplan.planner.origin import Origin
from fusionplan.planner.plan import GroupPlan, Plan
from fusionplan.planner.versions import versions
from fusionplan.tuner.capture.capture_model import capture_model
from fusionplan.tuner.records.ledger import device_record, graph_record
from fusionplan.tuner.records.plan_record import plan_record
from oracle import DEVICE

pytestmark = pytest.mark.dynamo

X = torch.randn(4, 16, device=DEVICE)


def model(x):
    return F.gelu(x).softmax(-1)


def marked(rows):
    x = torch.randn(rows, 16, device=DEVICE)
    torch._dynamo.mark_dynamic(x, 0)
    return x


def one_kernel(x=X, profile=None, evidence="measured", **other):
    """A plan of one kernel for the model, with what belongs to it."""
    torch._dynamo.reset()
    (part,) = capture_model(model, [x]).parts
    torch._dynamo.reset()
    graph, profile = part.captured.graph, profile or profile_of(torch.device(DEVICE))
    nodes = tuple(n.id for n in graph.nodes if n.op != "input")
    group = GroupPlan(nodes, "triton", "", Config((("x0", 4),)))
    current = tuple((versions() | other).items())
    plan = Plan(key(graph), profile.key, current, evidence, (group,))
    record = plan_record(plan, profile.key, "model", bucket_key(graph))
    graphs = (graph_record(graph, plan.graph_key, "model"),)
    return Snapshot((device_record(profile),), graphs, (), (), (record,))


@pytest.fixture(autouse=True)
def no_store(monkeypatch, tmp_path):
    monkeypatch.setenv("PLANNER_STORE", str(tmp_path / "none.db"))


def kernels(fast):
    return [e.kernels_per_call for e in fusionplan.executors(fast)]


def test_a_model_runs_by_its_bundle(bundle, tmp_path):
    fast = fusionplan.load(model, bundle=bundle(Contents(one_kernel())), on_miss="error")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(fast(X), model(X))
    assert kernels(fast) == [1]
    assert not (tmp_path / "none.db").exists()


def test_also_through_torch_compile_and_for_other_sizes(bundle):
    path = bundle(Contents(one_kernel(marked(20))))
    fast = torch.compile(model, backend="planner", options={"bundle": str(path)})
    for rows in (20, 30):
        x = marked(rows)
        torch.testing.assert_close(fast(x), model(x))
    assert kernels(fast) == [1, 1]


def test_a_file_is_read_once_and_again_when_it_is_another(bundle, monkeypatch):
    from fusionplan.bundles import using

    opened = []
    real = using.open_bundle
    monkeypatch.setattr(using, "open_bundle", lambda *a: opened.append(a) or real(*a))
    path = bundle(Contents(one_kernel()))
    for _ in range(2):
        assert len(using.use(path).plans()) == 1
    assert len(opened) == 1
    bundle(Contents(Snapshot()))
    assert using.use(path).plans() == []


@pytest.mark.parametrize("how", ["altered", "untrusted", "missing"])
def test_a_bundle_that_cannot_be_used_is_told_and_the_model_runs(
    bundle, monkeypatch, tmp_path, how
):
    path = bundle(Contents(one_kernel()))
    if how == "altered":
        data = bytearray(path.read_bytes())
        data[200] ^= 1
        path.write_bytes(data)
    elif how == "untrusted":
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "other"))
    else:
        path.unlink()
    fast = fusionplan.load(model, bundle=path, on_miss="baseline")
    with pytest.warns(FusionplanWarning, match="no plan could be read: .*plans.bundle") as told:
        torch.testing.assert_close(fast(X), model(X))
    (warned,) = [str(w.message) for w in told]
    assert warned.endswith(WARNINGS["no-bundle"].cure)
    assert kernels(fast) == []
    with pytest.raises(fusionplan.BundleError):
        fusionplan.load(model, bundle=path, on_miss="error")
    with pytest.raises(fusionplan.BundleError):
        fusionplan.step(model, bundle=path, on_miss="error")


@pytest.mark.parametrize("has_plan", [True, False])
def test_it_is_told_once_also_where_a_store_is_asked(bundle, monkeypatch, tmp_path, has_plan):
    path = bundle(Contents(one_kernel()))
    with Store.open(tmp_path / "own.db") as store:
        store.merge(one_kernel() if has_plan else Snapshot())
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "other"))
    options = {"store": tmp_path / "own.db", "on_miss": "baseline"}
    fast = fusionplan.load(model, bundle=path, **options)

    def run():
        for x in (torch.cat([X, X]), X):
            torch.testing.assert_close(fast(x), model(x))

    with pytest.warns(FusionplanWarning) as warned:
        run()
    texts = [str(w.message) for w in warned]
    assert ["not among the keys that you trust" in text for text in texts].count(True) == 1
    assert "planner trust" in texts[0]
    assert "planner doctor" not in texts[0]
    assert (1 in kernels(fast)) is has_plan


def test_what_is_tuned_on_a_miss_needs_a_store(bundle, tmp_path):
    path = bundle(Contents(Snapshot()))
    with pytest.raises(fusionplan.FusionplanError, match="needs the option store"):
        fusionplan.load(model, bundle=path, on_miss="tune")
    fusionplan.load(model, bundle=path, on_miss="tune", store=tmp_path / "own.db")


def miss(path, **options):
    fast = fusionplan.load(model, bundle=path, on_miss="error", **options)
    with pytest.raises(fusionplan.PlanError) as told:
        fast(X)
    return str(told.value)


def test_what_differs_is_said(bundle):
    assert "there is one for NVIDIA H200" in miss(bundle(Contents(one_kernel(profile=H200))))
    other = miss(bundle(Contents(one_kernel(torch="1.0"))))
    assert "its torch is 1.0, here it is" in other
    assert 'evidence="any"' in miss(
        bundle(Contents(one_kernel(evidence="modelled"))), evidence="measured"
    )


def test_the_store_is_asked_where_it_is_named(bundle, tmp_path):
    path = bundle(Contents(one_kernel(profile=H200)))
    with Store.open(tmp_path / "own.db") as store:
        store.merge(one_kernel())
    fast = fusionplan.load(model, bundle=path, store=tmp_path / "own.db", on_miss="error")
    fast(X)
    assert kernels(fast) == [1]


def test_a_key_that_is_no_longer_trusted(bundle):
    from fusionplan.bundles.signing import distrust, private_key
    from fusionplan.bundles.using import use

    path = bundle(Contents(one_kernel()))
    use(path)
    assert distrust(private_key().public)
    with pytest.raises(fusionplan.BundleError, match="trust"):
        use(path)


def test_no_line_of_the_models_code_is_in_a_bundle(records_of, tmp_path, private):
    records = records_of()
    (plan,) = records.plans
    told = Origin("inference", "float32[64, 128]", {2: "secret.py:3: x + b"}).to_json()
    with_lines = replace(records, plans=(replace(plan, payload=plan.payload | {"about": told}),))
    write(tmp_path / "plans.bundle", Contents(with_lines), private)
    (read,) = open_bundle(tmp_path / "plans.bundle", trusted()).records.plans
    assert Origin.of(read.payload) == Origin("inference", "float32[64, 128]")
    assert b"secret.py" not in (tmp_path / "plans.bundle").read_bytes()
