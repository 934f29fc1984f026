"""`planner explain`: which plan it finds, what it prints, its JSON, and its errors."""

import json
from dataclasses import replace

import pytest
from fusionplan.db import Store, TrialRecord
from fusionplan.planner.costs.device import CPU, H200
from fusionplan.planner.explanation import Explanation
from fusionplan.planner.graph.graph import key
from fusionplan.planner.graph.ops import is_compute
from fusionplan.planner.groups.group import subgraph, with_free_nodes
from fusionplan.planner.plan import GroupPlan, Plan
from fusionplan.planner.space.space import space_of
from fusionplan.planner.versions import versions
from fusionplan.tuner.trial.outcome import Candidate

pytestmark = pytest.mark.dynamo

ATTENTION = """\
import torch


def model(q, k, v):
    scores = 30 * torch.tanh(q @ k.transpose(-1, -2) * 0.125 / 30)
    i = torch.arange(q.shape[-2], device=q.device)
    scores = scores.masked_fill(i[None, :] > i[:, None], float("-inf"))
    return torch.softmax(scores, -1) @ v


def get_inputs(device="cuda"):
    return [torch.randn(2, 512, 64, dtype=torch.bfloat16, device=device) for _ in range(3)]
"""

APART = """\
import torch


def model(x):
    y = torch.exp(x).sum(-1)
    return torch.exp(y[2:]) + 1


example_inputs = torch.ones(8, 64)
"""


def whole(graph, device):
    """One group of everything, with the model's best config of one that loops."""
    nodes = with_free_nodes(graph, [n.id for n in graph.nodes if is_compute(n)])
    part = subgraph(graph, nodes).graph
    ranked = space_of(part, device).ranked(1 << 20)
    config = next(config for config, _ in ranked if config.reduction != "held")
    group = GroupPlan(nodes, "triton", key(part), config)
    return Plan(key(graph), device.key, tuple(versions().items()), "modelled", (group,))


def explained(planner, *arguments):
    result = planner("explain", *arguments, "--json")
    assert result.code == 0, result
    return json.loads(result.out)


def test_attention(planner, write, monkeypatch):
    monkeypatch.setattr("fusionplan.tuner.records.found_plan.modelled_plan", whole)
    result = planner("explain", write("attention.py", ATTENTION), "--target", "h200")
    assert result.code == 0, result
    assert "group 0: triton" in result.out
    assert "attention.py:8: return torch.softmax(scores, -1) @ v" in result.out
    assert "arg0_1: bfloat16[2, 512, 64], 128.0 KiB" in result.out
    assert "bmm: bfloat16[2, 512, 512], 1.0 MiB never stored" in result.out
    assert "bmm_1, exponent: H(t, x, x') = t * exp(x - x'), x = amax" in result.out
    assert "of r0 the masks keep only r0 <= x1: " in result.out
    assert "loop r0 carrying" in result.out
    assert "\n    flat: flat tiling is for groups without a reduction" in result.out
    for figure in ("memory traffic", "matrix flops", "registers a thread", "occupancy", "bound by"):
        assert figure in result.out, figure
    assert "@triton.jit" not in result.out


def test_without_a_store(planner, small, tmp_path):
    result = planner("explain", small, "--target", "h200")
    assert result.code == 0, result
    assert "evidence: modelled" in result.out
    assert "nothing was measured" in result.out
    assert "there is no store" in result.err
    assert "add relu add_1 log" in result.out
    assert not (tmp_path / "plans.db").exists()


def test_json_is_an_explanation(planner, small):
    data = explained(planner, small, "--target", "h200")
    assert data["device"] == H200.name
    assert data["notes"] == []
    (plan,) = data["plans"]
    assert (plan["name"], plan["stage"], plan["times"]) == ("small", "inference", 1)
    assert plan["plan_key"] is None
    own = {name: plan[name] for name in Explanation.__dataclass_fields__}
    explanation = Explanation.from_json(own)
    assert explanation.to_json() == own
    assert [o.name for o in explanation.groups[0].operations] == ["add", "relu", "add_1", "log"]
    lines = {o.source for o in explanation.groups[0].operations}
    assert lines == {"small.py:7: return torch.log(torch.relu(x + b) + 1)"}


def test_the_stored_plan(planner, quick, small, tmp_path):
    assert planner("tune", small, "--target", "h200").code == 0
    result = planner("explain", small, "--target", "h200")
    assert result.code == 0, result
    assert f"in {tmp_path / 'plans.db'}" in result.out
    with Store.open(tmp_path / "plans.db", create=False) as store:
        (record,) = store.plans()
    (plan,) = explained(planner, small, "--target", "h200")["plans"]
    assert plan["plan_key"] == record.key
    assert [g["config"] for g in plan["groups"]] == [g["config"] for g in record.payload["groups"]]
    (plan,) = explained(planner, small, "--target", "h200", "--modelled")["plans"]
    assert plan["plan_key"] is None
    (plan,) = explained(planner, small, "--target", "a100")["plans"]
    assert plan["plan_key"] is None
    assert "has no plan of this for NVIDIA A100" in plan["note"]


def test_measured_figures(planner, quick, small, tmp_path):
    """In the interpreter a tune measures, and its trials tell of registers and spills."""
    assert planner("tune", small).code == 0
    with Store.open(tmp_path / "plans.db", create=False) as store:
        (record,) = store.plans()
        group = Plan.from_json(record.payload).groups[0]
        for registers, config in ((99, None), (37, group.config)):
            candidate = Candidate("triton" if config else "aten", config)
            store.add_trial(
                TrialRecord(
                    study="fused",
                    level="kernel",
                    subject=group.kernel_key,
                    device_key=CPU.key,
                    versions=versions(),
                    config=candidate.to_json(),
                    outcome="timed",
                    timing="cold",
                    measured_s=5e-6,
                    registers=registers,
                    spill_bytes=8,
                    shared_bytes=2048,
                )
            )
    (plan,) = explained(planner, small)["plans"]
    assert plan["evidence"] == "measured"
    assert plan["measured_s"] == 1e-3
    assert plan["groups"][0]["measured"] == {
        "seconds": 5e-6,
        "registers": 37,
        "spill_bytes": 8,
        "shared_bytes": 2048,
    }
    rows = {tuple(line.split()) for line in planner("explain", small).out.splitlines()}
    predicted = plan["groups"][0]["predicted"]["registers"]
    assert ("registers", "a", "thread", str(predicted), "37") in rows


def test_a_plan_of_other_versions(planner, quick, small, tmp_path):
    """The newest of the graph and the device, where none is of these versions."""
    path = tmp_path / "plans.db"
    assert planner("tune", small, "--target", "h200").code == 0
    with Store.open(path, create=False) as store:
        (record,) = store.plans()
        graph, device = store.graph(record.graph_key), store.device(record.device_key)
    older = replace(record, key="older", versions=record.versions | {"triton": "2.0.0"})
    path.unlink()
    with Store.open(path) as store:
        store.put_device(device)
        store.put_graph(graph)
        store.save_plan(older)
    (plan,) = explained(planner, small, "--target", "h200")["plans"]
    assert plan["plan_key"] == "older"
    assert "triton=2.0.0" in plan["note"]
    with Store.open(path) as store:
        store.save_plan(record)
        store.save_plan(older)
    (plan,) = explained(planner, small, "--target", "h200")["plans"]
    assert plan["plan_key"] == record.key


def test_kernels(planner, small):
    result = planner("explain", small, "--target", "h200", "--kernel")
    assert result.code == 0, result
    lines = result.out.splitlines()
    assert "@triton.jit" in lines
    assert any(line.startswith("def fused_add_relu_add_log(") for line in lines)


def test_one_group(planner, write):
    file = write("apart.py", APART)
    (plan,) = explained(planner, file, "--target", "h200")["plans"]
    assert [g["number"] for g in plan["groups"]] == [0, 1]
    (boundary,) = plan["boundaries"]
    assert boundary["refusal"]["rule"] == "window"
    result = planner("explain", file, "--target", "h200", "--group", "1")
    assert result.code == 0, result
    assert "group 1: triton" in result.out
    assert "group 0: triton" not in result.out
    assert (
        "group 0 and group 1 (sum_1, exp_1): window: sum_1 is a reduction read through a slice"
        in result.out
    )


def test_a_model_with_nothing_to_fuse(planner, write):
    text = "def model(x):\n    return x.sort()[0]\n\n\nimport torch\n\n\n"
    file = write("sorts.py", text + "example_inputs = torch.ones(4)\n")
    result = planner("explain", file, "--target", "h200")
    assert result.code == 0, result
    assert "nothing to fuse" in result.err
    (plan,) = explained(planner, file, "--target", "h200")["plans"]
    assert plan["groups"] == []


def test_what_the_model_prints_is_no_result(planner, write):
    file = write("loud.py", "print('hello')\n" + APART)
    assert len(explained(planner, file, "--target", "h200")["plans"]) == 1


@pytest.mark.parametrize(
    "arguments, code, word",
    [
        (["nowhere.py"], 3, "nowhere.py"),
        (["small.py", "--inputs", "nowhere.py:f"], 3, "nowhere.py"),
        (["small.py", "--target", "z80"], 4, "'z80'"),
        (["small.py", "--device", "abacus"], 4, "'abacus'"),
        (["small.py", "--target", "h200", "--group", "7"], 2, "groups in the plan: 1"),
        (["small.py", "--group", "-1"], 2, "--group"),
        (["small.py", "--no-such-option"], 2, "option"),
        ([], 2, "MODEL"),
    ],
)
def test_errors(planner, small, arguments, code, word):
    result = planner("explain", *arguments)
    assert result.code == code, result
    assert result.out == ""
    last = result.err.splitlines()[-1]
    assert last.startswith("planner: ")
    assert word in last


def test_a_damaged_store_stays_as_it_is(planner, small, tmp_path):
    path = tmp_path / "plans.db"
    path.write_bytes(b"no database at all" * 100)
    before = path.read_bytes()
    result = planner("explain", small, "--target", "h200")
    assert (result.code, result.out) == (6, "")
    assert path.read_bytes() == before
    assert planner("explain", small, "--target", "h200", "--modelled").code == 0


def test_a_damaged_plan(planner, quick, small, tmp_path):
    assert planner("tune", small, "--target", "h200").code == 0
    with Store.open(tmp_path / "plans.db", create=False) as store:
        (record,) = store.plans()
        store.save_plan(replace(record, payload={"groups": 3}))
    result = planner("explain", small, "--target", "h200")
    assert result.code == 6, result
    assert "tune it again" in result.err
