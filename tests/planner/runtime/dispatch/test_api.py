"""`load`, `plans`, `executors` and torch.compile(backend="planner"), with a store on disk."""

import copy
import os
import pickle
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import fusionplan
import pytest
import torch
import torch.nn.functional as F
from fusionplan.api import Options
from fusionplan.backend import planner
from fusionplan.db.records import DeviceRecord, GraphRecord, PlanRecord
from fusionplan.db.store import Store
from fusionplan.planner.config import Config, SizeSplit
from fusionplan.planner.costs.device import profile_of
from fusionplan.planner.cures import FusionplanWarning
from fusionplan.planner.errors import FusionplanError, PlanError
from fusionplan.planner.graph.graph import key
from fusionplan.planner.graph.varying import bucket_key, family_key
from fusionplan.planner.plan import GroupPlan, Plan
from fusionplan.planner.versions import versions
from fusionplan.tuner.capture.capture_model import capture_model
from fusionplan.tuner.records.plan_record import plan_record
from oracle import DEVICE
from torch import nn

pytestmark = pytest.mark.dynamo

PROFILE = profile_of(torch.device(DEVICE))
X = torch.randn(4, 16, device=DEVICE)


def model(x):
    return F.gelu(x).softmax(-1)


@pytest.fixture
def place(tmp_path):
    return tmp_path / "plans.db"


@pytest.fixture
def stored(place, captured):
    """Stores a plan for `model`; returns it."""

    def save(evidence="measured", **changes):
        graph = captured(model, X).graph
        torch._dynamo.reset()
        group = GroupPlan((graph.nodes[1].id,), "inductor", "")
        current = tuple(sorted(versions().items()))
        plan = Plan(key(graph), PROFILE.key, current, evidence, (group,))
        with Store.open(place) as store:
            store.put_device(DeviceRecord(PROFILE.key, PROFILE.name, 1, 0, "90", {}))
            store.put_graph(GraphRecord(plan.graph_key, "model", 1, {}))
            store.save_plan(
                PlanRecord(
                    key=f"{plan.graph_key}-{PROFILE.key}",
                    graph_key=plan.graph_key,
                    device_key=PROFILE.key,
                    versions=versions(),
                    name="model",
                    evidence=evidence,
                    payload={**plan.to_json(), **changes},
                )
            )
        return plan

    return save


def test_load_runs_the_stored_plan(place, stored):
    plan = stored()
    fast = fusionplan.load(model, store=place, on_miss="error")
    assert fusionplan.plans(fast) == []
    torch.testing.assert_close(fast(X), model(X))
    assert fusionplan.plans(fast) == [plan]
    (executor,) = fusionplan.executors(fast)
    assert executor.calls == 1


def marked(rows):
    x = torch.randn(rows, 16, device=DEVICE)
    torch._dynamo.mark_dynamic(x, 0)
    return x


def one_kernel(graph, place, rows, evidence="measured", portable=False):
    """Stores a plan of one kernel for a graph, with tiles of that many rows, and for its bucket."""
    nodes = tuple(n.id for n in graph.nodes if n.op != "input")
    group = GroupPlan(nodes, "triton", "", Config((("x0", rows),)))
    current = tuple(versions(portable=portable).items())
    plan = Plan(key(graph), PROFILE.key, current, evidence, (group,))
    record = plan_record(plan, PROFILE.key, "model", bucket_key(graph))
    with Store.open(place) as store:
        store.put_device(DeviceRecord(PROFILE.key, PROFILE.name, 1, 0, "90", {}))
        store.put_graph(GraphRecord(plan.graph_key, "model", 1, {}))
        store.save_plan(record)
    return plan


def rows_vary(rows):
    (part,) = capture_model(model, [marked(rows)]).parts
    torch._dynamo.reset()
    return part.captured.graph


def test_a_plan_for_all_sizes_runs_by_the_config_of_the_sizes_at_hand(place):
    graph = rows_vary(20)
    plan = one_kernel(graph, place, 4)
    few, many = (Config((("x0", rows),)) for rows in (2, 32))
    (group,) = plan.groups
    tree = SizeSplit(0, 64, few, many)
    plan = replace(plan, groups=(replace(group, sizes=tree),), at=(20,))
    with Store.open(place) as store:
        store.save_plan(plan_record(plan, PROFILE.key, "model", family_key(graph)))
    fast = fusionplan.load(model, store=place, on_miss="error")
    used = {}
    for rows in (20, 21, 33, 64, 65, 300):
        x = marked(rows)
        torch.testing.assert_close(fast(x), model(x))
        (*_, executor) = fusionplan.executors(fast)
        used[rows] = dict(executor.plan.groups[0].config.blocks)["x0"]
        assert executor.kernels_per_call == 1
    # Of two plans for all sizes, the one that was tuned nearest; the newest comes last.
    far = replace(plan, graph_key=key(rows_vary(4000)), at=(4000,))
    with Store.open(place) as store:
        store.put_graph(GraphRecord(far.graph_key, "model", 1, {}))
        far = replace(far, groups=(replace(group, sizes=many),))
        store.save_plan(plan_record(far, PROFILE.key, "model", family_key(graph)))
    fast = fusionplan.load(model, store=place, on_miss="error")
    for rows, block in ((30, 2), (3000, 32)):
        fast(marked(rows))
        (*_, executor) = fusionplan.executors(fast)
        assert dict(executor.plan.groups[0].config.blocks)["x0"] == block
    # The plan itself for the sizes that it was tuned at, the tree for all others.
    assert used == {20: 4, 21: 2, 33: 2, 64: 2, 65: 32, 300: 32}


def test_a_plan_is_found_for_other_sizes_of_its_bucket(place):
    one_kernel(rows_vary(20), place, 4)
    fast = fusionplan.load(model, store=place, on_miss="error")
    for rows in (20, 30, 17):
        x = marked(rows)
        torch.testing.assert_close(fast(x), model(x))
    plans = fusionplan.plans(fast)
    assert len({plan.graph_key for plan in plans}) == 3
    assert [plan.groups for plan in plans] == [plans[0].groups] * 3
    ran = fusionplan.executors(fast)
    assert [(e.calls, e.kernels_per_call) for e in ran] == [(1, 1)] * 3
    with pytest.raises(PlanError, match="for sizes up to 64 on"):
        fast(marked(33))
    with pytest.raises(PlanError, match=r"for sizes up to 32 \(a multiple of 16\) on"):
        fast(marked(32))


def test_the_plan_of_the_very_sizes_wins_then_the_newest_that_may_run(place):
    one_kernel(rows_vary(20), place, 1)
    one_kernel(rows_vary(21), place, 2)
    one_kernel(rows_vary(22), place, 4, "modelled")
    fast = fusionplan.load(model, store=place, on_miss="error", evidence="measured")
    for rows in (20, 23, 22):
        fast(marked(rows))
    tiles = [plan.groups[0].config.block("x0") for plan in fusionplan.plans(fast)]
    assert tiles == [1, 2, 2]


@pytest.mark.parametrize("kind", ["function", "module", "decorator", "in_place"])
def test_plans_of_what_torch_compile_made(place, stored, kind):
    plan = stored()
    options = {"store": str(place), "on_miss": "error"}

    class Model(nn.Module):
        def forward(self, x):
            return model(x)

    if kind == "function":
        fast = torch.compile(model, backend=planner, options=options)
    elif kind == "module":
        fast = torch.compile(Model(), backend=planner, options=options)
    elif kind == "decorator":

        @torch.compile(backend=planner, options=options)
        def fast(x):
            return model(x)

    else:
        fast = Model()
        fast.compile(backend=planner, options=options)
    fast(X)
    assert fusionplan.plans(fast) == [plan]
    assert len(fusionplan.executors(fast)) == 1


def test_two_compiled_models_do_not_mix(place, stored):
    stored()
    first = fusionplan.load(model, store=place, on_miss="error")
    second = fusionplan.load(model, store=place, on_miss="error")
    first(X)
    assert len(fusionplan.plans(first)) == 1
    assert fusionplan.plans(second) == []


def test_what_was_not_compiled_has_no_plans():
    with pytest.raises(PlanError, match="not made by"):
        fusionplan.plans(model)


def test_a_missing_plan_names_the_way_out(place, stored):
    stored()
    fast = fusionplan.load(lambda x: x + 1, store=place, on_miss="error")
    with pytest.raises(PlanError, match=r"no plan is stored.*planner tune"):
        fast(X)


@pytest.mark.parametrize("state", ["missing", "garbage", "truncated", "folder"])
def test_a_store_that_cannot_be_read_is_a_miss(place, stored, state):
    stored()
    if state == "missing":
        place.unlink()
    elif state == "folder":
        place.unlink()
        place.mkdir()
    else:
        data = place.read_bytes()
        place.write_bytes(b"garbage" * 1000 if state == "garbage" else data[: len(data) // 2])
    fast = fusionplan.load(model, store=place, on_miss="baseline")
    with pytest.warns(FusionplanWarning) as found:
        torch.testing.assert_close(fast(X), model(X))
    assert len([w for w in found if w.category is FusionplanWarning]) == 1


def test_a_damaged_plan_is_a_miss(place, stored):
    stored(groups="none")
    fast = fusionplan.load(model, store=place, on_miss="baseline")
    with pytest.warns(FusionplanWarning, match="damaged: no plan: groups"):
        fast(X)


def test_a_plan_for_another_graph_is_damaged(place, stored):
    stored(graph_key="0" * 32)
    fast = fusionplan.load(model, store=place, on_miss="baseline")
    with pytest.warns(FusionplanWarning, match="damaged: it is for another graph"):
        torch.testing.assert_close(fast(X), model(X))


def test_a_modelled_plan_runs_only_when_accepted(place, stored):
    stored(evidence="modelled")
    strict = fusionplan.load(model, store=place, on_miss="error", evidence="measured")
    with pytest.raises(PlanError, match="only modelled"):
        strict(X)
    torch._dynamo.reset()
    loose = fusionplan.load(model, store=place, on_miss="error", evidence="any")
    loose(X)
    assert len(fusionplan.executors(loose)) == 1


@pytest.mark.parametrize(
    "options, text",
    [
        ({"on_mis": "error"}, "unknown option on_mis; options are on_miss, store"),
        ({"on_miss": "explode"}, "option on_miss: 'explode' is not one of 'baseline'"),
        ({"evidence": "none"}, "option evidence"),
        ({"baseline": "xla"}, "option baseline"),
        ({"cudagraph": "yes"}, "option cudagraph"),
        ({"store": 3}, "option store"),
    ],
)
def test_wrong_options_are_named(options, text):
    with pytest.raises(FusionplanError, match=text):
        Options.of(options)


def test_torch_compile_passes_the_error_on():
    fast = torch.compile(lambda x: x + 1, backend=planner, options={"nonsense": 1})
    with pytest.raises(Exception, match="unknown option nonsense"):
        fast(X)
    torch._dynamo.reset()
    with pytest.raises(Exception, match="no mode 'max-autotune'"):
        torch.compile(lambda x: x + 1, backend=planner, mode="max-autotune")(X)


def test_importing_the_store_loads_no_torch():
    code = "import sys, fusionplan.db; sys.exit('torch' in sys.modules or 'triton' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


BY_NAME = """
import sys, torch, fusionplan
from importlib import metadata

(point,) = metadata.entry_points(group="torch_dynamo_backends", name="planner")
assert point.value == "fusionplan.backend:planner"
assert "planner" in torch._dynamo.list_backends()
options = {"on_miss": "model", "evidence": "any"}
f = torch.compile(lambda x: torch.exp(x) + 1, backend="planner", options=options)
g = torch.compile(lambda x: torch.sin(x) * 2, backend="planner")
x = torch.randn(4, 8, device=sys.argv[1])
torch.testing.assert_close(f(x), torch.exp(x) + 1)
(plan,) = fusionplan.plans(f)
(executor,) = fusionplan.executors(f)
assert [group.lowering for group in plan.groups] == ["triton"]
assert (executor.kernels_per_call, executor.calls) == (1, 1)
assert fusionplan.plans(g) == []
"""


def test_by_its_registered_name_where_the_package_is_installed(tmp_path):
    """As pip leaves an editable installation: the package on the path, its metadata beside it."""
    root = Path(fusionplan.__file__).resolve().parent
    (tmp_path / "fusionplan").symlink_to(root)
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    info = tmp_path / f"fusionplan-{project['version']}.dist-info"
    info.mkdir()
    name = f"Name: fusionplan\nVersion: {project['version']}\n"
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\n{name}")
    points = project["entry-points"]["torch_dynamo_backends"]
    lines = ["[torch_dynamo_backends]", *(f"{n} = {target}" for n, target in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    world = os.environ | {"PYTHONPATH": str(tmp_path), "PLANNER_STORE": str(tmp_path / "none.db")}
    command = [sys.executable, "-P", "-W", "error::UserWarning:fusionplan", "-c", BY_NAME, DEVICE]
    done = subprocess.run(command, env=world, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_names_of_the_package():
    from fusionplan.tuned import Tuned
    from fusionplan.tuning import tune

    assert {"load", "plans", "tune", "Plan", "Tuned"} <= set(dir(fusionplan))
    assert fusionplan.Plan is Plan
    assert fusionplan.tune is tune
    assert fusionplan.Tuned is Tuned
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        fusionplan.nothing  # noqa: B018


@pytest.mark.parametrize("varies", [False, True])
def test_a_plan_made_where_the_device_is_not_is_found(place, captured, varies):
    graph = rows_vary(20) if varies else captured(model, torch.randn(20, 16, device=DEVICE)).graph
    torch._dynamo.reset()
    one_kernel(graph, place, 4, "modelled", portable=True)
    x = marked(20) if varies else torch.randn(20, 16, device=DEVICE)
    fast = fusionplan.load(model, store=place, on_miss="error", evidence="any")
    torch.testing.assert_close(fast(x), model(x))
    assert [e.calls for e in fusionplan.executors(fast)] == [1]
    strict = fusionplan.load(model, store=place, on_miss="error", evidence="measured")
    torch._dynamo.reset()
    with pytest.raises(PlanError, match="only modelled"):
        strict(x)


def test_other_settings_are_a_miss_that_names_them(place, stored):
    stored()
    fast = fusionplan.load(model, store=place, on_miss="error")
    named = "its float32 matmul precision is ieee, here it is tf32"
    try:
        torch.set_float32_matmul_precision("high")
        with pytest.raises(PlanError, match=named):
            fast(X)
    finally:
        torch.set_float32_matmul_precision("highest")
    torch.testing.assert_close(fast(X), model(X))
    assert [e.calls for e in fusionplan.executors(fast)] == [1]


@pytest.mark.parametrize("sent", [copy.deepcopy, lambda fast: pickle.loads(pickle.dumps(fast))])
def test_a_loaded_model_is_copied_and_sent_with_its_options(place, sent):
    """As a DataLoader's worker that is spawned is given it."""
    linear = nn.Linear(16, 16, device=DEVICE)
    fast = fusionplan.load(linear, store=place, on_miss="baseline", numerics="eager")
    with torch.no_grad():
        wanted = fast(X)
        other = sent(fast)
        assert type(other) is type(fast)
        assert other.dynamo_ctx is not fast.dynamo_ctx
        linear.weight.zero_()
        torch.testing.assert_close(other(X), wanted)
    again = type(fast).__reduce__(other)[0]
    assert (again.keywords["store"], again.keywords["numerics"]) == (place, "eager")
