"""planner diff, planner why-miss and planner repro."""

import json
import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest
import torch
from compiling import forked
from fusionplan.cli import stored, why_miss
from fusionplan.db import Store
from fusionplan.planner.config import Config
from fusionplan.planner.plan import Contest, Contestant, Plan
from fusionplan.tuner.records.ledger import Ledger
from fusionplan.tuner.trial.outcome import Candidate, Wrong
from fusionplan.tuner.workers.lab import Group

NET = """\
import torch


class Net(torch.nn.Module):
    def forward(self, x, b):
        return torch.log(torch.relu(x + b) + 1)


model = Net()


def of(*shape, dtype=torch.float32):
    return lambda: [torch.randn(*shape, dtype=dtype), torch.randn(shape[-1], dtype=dtype)]


same, wider = of(8, 32), of(8, 64)
half = of(8, 32, dtype=torch.float16)


def turned():
    return [torch.randn(32, 8).T, torch.randn(32)]


other = torch.nn.Sequential(torch.nn.Linear(32, 4), torch.nn.GELU())


def single():
    return torch.randn(8, 32)
"""


def document(planner, *arguments, code=0):
    result = planner(*arguments, "--json")
    assert result.code == code, result
    return json.loads(result.out)


@pytest.fixture
def stored_net(planner, quick, write):
    path = write("net.py", NET)
    assert planner("tune", path, "--inputs", f"{path}:same").code == 0
    return path


# why-miss


def missed(planner, path, inputs, *more):
    torch._dynamo.reset()
    model = f"{path}:other" if inputs == "single" else path
    (found,) = document(planner, "why-miss", model, "--inputs", f"{path}:{inputs}", *more)["graphs"]
    return found


@pytest.mark.dynamo
def test_a_hit(planner, stored_net):
    found = missed(planner, stored_net, "same")
    assert (found["hit"], found["plan"], found["differences"]) == (True, "net", [])


@pytest.mark.dynamo
@pytest.mark.parametrize(
    "inputs, field, stored, now",
    [
        ("wider", "shape", "[8, 32]", "[8, 64]"),
        ("half", "dtype", "float32", "float16"),
        ("turned", "stride", "(32, 1)", "(1, 8)"),
        ("single", "operations", "nodes", "nodes"),
    ],
)
def test_one_field(planner, stored_net, inputs, field, stored, now):
    found = missed(planner, stored_net, inputs)
    assert not found["hit"]
    first = found["differences"][0]
    assert first["field"] == field
    assert stored in first["stored"]
    assert now in first["now"] or field == "operations"
    assert first["cure"]


@pytest.mark.dynamo
def test_device(planner, stored_net):
    found = missed(planner, stored_net, "same", "--target", "h200")
    (difference,) = found["differences"]
    assert (difference["field"], difference["now"]) == ("device", "NVIDIA H200")


@pytest.mark.dynamo
def test_the_nearest_is_taken(planner, stored_net, tmp_path):
    """Of two plans, the one that differs in its version alone."""
    with Store.open(tmp_path / "plans.db") as store:
        (record,) = store.plans()
    elsewhere = tmp_path / "elsewhere.db"
    with Store.open(tmp_path / "plans.db") as store, Store.open(elsewhere) as target:
        target.put_device(store.device(record.device_key))
        target.put_graph(store.graph(record.graph_key))
        for key, versions in (("near", {"torch": "2.0"}), ("far", {"torch": "2.0", "cuda": "9"})):
            target.save_plan(replace(record, key=key, versions=record.versions | versions))
    found = missed(planner, stored_net, "same", "--store", elsewhere)
    assert found["key"] == "near"
    (difference,) = found["differences"]
    assert (difference["field"], difference["stored"]) == ("torch", "2.0")
    assert difference["now"] == record.versions["torch"]


@pytest.mark.dynamo
def test_a_miss_in_words(planner, stored_net):
    result = planner("why-miss", stored_net, "--inputs", f"{stored_net}:wider")
    assert result.code == 0
    for word in ("no plan fits", "shape", "[8, 32]", "[8, 64]", "--dynamic"):
        assert word in result.out, result.out


@pytest.mark.dynamo
def test_a_miss_by_numerics(planner, stored_net):
    result = planner(
        "why-miss", stored_net, "--inputs", f"{stored_net}:same", "--numerics", "eager"
    )
    assert result.code == 0
    for word in ("no plan fits", "numerics", "fast", "eager"):
        assert word in result.out, result.out
    assert "operations" not in result.out


@pytest.mark.parametrize(
    "evidence, told", [("measured", "runs it"), ("modelled", 'evidence="any"')]
)
def test_a_hit_that_does_not_run_by_itself(capsys, evidence, told):
    """Without a GPU the cost model's plan fits; `load` leaves it alone unless it may take any."""
    why_miss._print(
        why_miss.Answer("net", "inference", True, "k" * 32, "net", (), evidence), "x.db"
    )
    assert told in capsys.readouterr().out


@pytest.mark.dynamo
def test_a_hit_says_what_it_was_not_compared_with(planner, stored_net, tmp_path):
    with Store.open(tmp_path / "plans.db") as store:
        (record,) = store.plans()
        own = Contestant("plan", 1e-6, 1e-6, 1.0, 1.0, 1.0, 9)
        held = Contest((own,), "plan", 8, left_out=(("max-autotune", "no time"),))
        plan = replace(Plan.from_json(record.payload), contest=held)
        store.save_plan(replace(record, payload=plan.to_json(), evidence="measured"))
    found = missed(planner, stored_net, "same")
    assert found["hit"]
    assert found["not_compared"] == ["not compared: max-autotune (no time)"]
    told = planner("why-miss", stored_net, "--inputs", f"{stored_net}:same").out
    assert "not compared: max-autotune (no time)" in told


# diff


def test_diff(planner, filled):
    data = document(planner, "diff", "old", "chain")
    assert data["differences"]["evidence"] == ["modelled", "measured"]
    (group,) = data["groups"]
    assert (group["a"], group["b"], group["what"]) == (0, 0, "same")
    record = filled.find_plan("chain")
    plan = Plan.from_json(record.payload)
    (group,) = plan.groups
    faster = replace(group, config=replace(group.config, num_warps=8), measured=3e-6)
    alone = replace(group, nodes=(3,), kernel_key="n" * 32)
    for key, groups in (("cccc", (faster,)), ("dddd", (alone,))):
        versions = record.versions | {"codegen": key}
        changed = replace(plan, groups=groups, versions=tuple(versions.items()))
        payload = changed.to_json()
        filled.save_plan(replace(record, key=key, name=key, payload=payload, versions=versions))
    told = planner("diff", "chain", "cccc")
    for word in ("config: x0=2 x1=128 warps=4", "now x0=2", "-2 us", "1 of 1 groups differ"):
        assert word in told.out, told.out
    data = document(planner, "diff", "chain", "dddd")
    assert data["differences"] == {"codegen": ["1", "dddd"]}
    assert [g["what"] for g in data["groups"]] == ["only in A", "only in B"]


def test_diff_of_two_stores(planner, filled, tmp_path):
    other = tmp_path / "other.db"
    Store.open(other).close()
    assert planner("diff", "chain", "chain", "--other-store", other).code == 5
    assert document(planner, "diff", "chain", "chain")["differences"] == {}


def test_diff_of_two_dates(planner, filled):
    """As tunes of three days leave it behind: the same graph by other configs."""
    record = filled.find_plan("chain")
    plan = Plan.from_json(record.payload)
    (group,) = plan.groups
    ledger = Ledger(filled, plan.device, record.versions, plan.graph_key)
    for day, warps, seconds in ((1, 2, 9e-6), (2, 8, 7e-6), (2, 16, 8e-6)):
        config = replace(group.config, num_warps=warps)
        older = replace(plan, groups=(replace(group, config=config),), measured=seconds)
        ledger.add_plan(older, "chain")
        (trial,) = filled.trials(level="partition", newest_first=True, limit=1)
        _set(filled, "trial", "created_at", "id", trial.id, f"2025-03-0{day} 12:00:00.000000")
    _set(filled, "plan", "updated_at", "key", record.key, "2025-04-01 12:00:00.000000")
    data = document(planner, "diff", "chain@2025-03-01", "chain@2025-03-02")
    assert data["measured_s"] == [9e-6, 7e-6]  # of the second day the fastest
    (change,) = data["groups"]
    assert "warps=2" in change["what"].split(", now ")[0]
    assert "warps=8" in change["what"].split(", now ")[1]
    assert document(planner, "diff", "chain@2025-03-02T11:00", "chain")["measured_s"][0] == 9e-6
    today = document(planner, "diff", "chain@2999-01-01", "chain")
    assert (today["differences"], [g["what"] for g in today["groups"]]) == ({}, ["same"])
    assert "2025-03-01" in planner("diff", "chain@2024-01-01", "chain").err
    assert planner("diff", "chain@2024-01-01", "chain").code == 5
    assert "'yesterday' is no date" in planner("diff", "chain@yesterday", "chain").err


def _set(store, table, column, name, key, value):
    with closing(sqlite3.connect(store.location)) as database, database:
        database.execute(f"UPDATE {table} SET {column} = ? WHERE {name} = ?", (value, key))


# repro


@pytest.mark.dynamo
def test_repro_runs_alone(planner, stored_net, tmp_path):
    """Without fusionplan on the path, in Triton's interpreter; and it fails for a wrong kernel."""
    script = tmp_path / "alone.py"
    result = planner("repro", "net", "-o", script)
    assert result.code == 0, result
    assert "fusionplan" not in script.read_text()

    def run():
        return forked([str(script)], interpret="1")

    done = run()
    assert (done.returncode, done.stdout.split()[-1]) == (0, "ok"), done.stderr
    text = script.read_text()
    assert text.count("= relu(") == 1
    script.write_text(text.replace("= relu(", "= 1.01 * relu("))
    assert run().returncode == 1


@pytest.mark.dynamo
def test_repro_runs_in_the_interpreter_what_that_has_no_code_for(planner, quick, write, tmp_path):
    """libdevice, and functions of ours in PTX: NumPy's take their place."""
    path = write("net.py", NET.replace("torch.log(torch.relu(x + b) + 1)", "torch.expm1(x + b)"))
    assert planner("tune", path, "--inputs", f"{path}:same").code == 0
    script = tmp_path / "alone.py"
    assert planner("repro", "net", "-o", script).code == 0
    assert "libdevice.expm1(" in script.read_text()
    done = forked([str(script)], interpret="1")
    assert (done.returncode, done.stdout.split()[-1]) == (0, "ok"), done.stderr


@pytest.mark.process
def test_repro_of_a_wrong_trial(planner, filled, tmp_path):
    """Whatever the search said of it: its reason is a comment, and the script judges anew."""
    record = filled.find_plan("chain")
    graph = stored.graph_of(filled, record.graph_key)
    config = Config((("x0", 2), ("x1", 128)), num_warps=8, num_stages=1)
    about = Group.of(graph, "fused_add_relu")
    ledger = Ledger(filled, record.device_key, record.versions, record.graph_key)
    ledger.open(about)
    outcome = Wrong("a NaN at 3\nraise SystemExit(7)")
    ledger.add(about, Candidate.generated(config), outcome, None, None)
    (trial,) = filled.trials(outcome="wrong", newest_first=True, limit=1)
    result = planner("repro", "--trial", str(trial.id), "-o", tmp_path / "alone.py")
    assert result.code == 0, result
    text = (tmp_path / "alone.py").read_text()
    assert text.startswith(f'# Trial {trial.id} of "fused_add_relu')
    assert "raise SystemExit(7)" in text.splitlines()[0]
    assert "num_warps=8" in text
    done = forked([str(tmp_path / "alone.py")], interpret="1")
    assert (done.returncode, done.stdout.split()[-1]) == (0, "ok"), done.stderr


def test_repro_of_a_trial_that_is_not_there(planner, filled):
    (first, *_) = filled.trials()
    assert "no such trial" in planner("repro", "--trial", "9999").err
    assert planner("repro", "--trial", str(first.id), "chain").code == 2
    assert planner("repro", "--trial", str(first.id)).code == 5  # its kernel's graph is not stored


@pytest.mark.parametrize("arguments, code", [(["--group", "7"], 2), (["nothing"], 5)])
def test_repro_of_what_is_not_there(planner, filled, arguments, code):
    assert planner("repro", *arguments).code == code


def test_repro_of_a_hostile_graph(filled):
    """A stored name never becomes code."""
    from fusionplan.cli.stored import find
    from fusionplan.planner.errors import PlanError
    from fusionplan.planner.graph.graph import Graph
    from fusionplan.planner.standalone import _eager

    graph = find(filled, "chain").graph
    for changed in (
        {"op": "aten.add.Tensor(0); import os; os.system.x"},
        {"kwargs": (("alpha=__import__('os')", 1),)},
    ):
        nodes = (*graph.nodes[:3], replace(graph.nodes[3], **changed))
        with pytest.raises(PlanError):
            _eager(Graph(nodes, graph.outputs))
