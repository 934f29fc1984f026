"""What a profiler is told of the launches."""

import inspect

import pytest
import torch
from fusionplan.planner.capture.source_lines import SourceLine
from fusionplan.planner.config import Config
from fusionplan.planner.graph.graph import key
from fusionplan.planner.plan import GroupPlan, Plan
from fusionplan.planner.runtime.execution.executor import Executor
from fusionplan.planner.runtime.execution.profiled import MOST_LINES, label
from oracle import DEVICE


def model(x):
    y = torch.relu(x + 1)
    return torch.log(y + 2)


@pytest.mark.dynamo
def test_a_launch_is_in_a_range_that_names_the_users_lines(captured):
    x = torch.randn(64, 32, device=DEVICE)
    found = captured(model, x)
    nodes = tuple(n.id for n in found.graph.nodes if n.op != "input")
    group = GroupPlan(nodes, "triton", "", Config((("x0", 512),), tiling="flat"))
    plan = Plan(key(found.graph), "cpu", (), "modelled", (group,))
    executor = Executor(found, plan, torch.device(DEVICE))
    plain = executor(x)
    with torch.profiler.profile() as profile:
        ranged = executor(x)
        executor(x)
    torch.testing.assert_close(ranged, plain)
    assert executor.calls == 3
    first = inspect.getsourcelines(model)[1]
    lines = f"test_profiled.py:{first + 1}, test_profiled.py:{first + 2}"
    (event,) = [e for e in profile.key_averages() if e.key.startswith("fused_")]
    assert event.key == f"fused_add_relu_add_log {lines}"
    assert event.count == 2
    with torch.profiler.profile() as without:
        pass
    executor(x)
    assert not [e for e in without.key_averages() if e.key.startswith("fused_")]


def test_a_name_is_of_few_lines():
    lines = {n: SourceLine("m.py", n // 2, "") for n in range(20)}
    assert label("k", [0, 1, 2, 99], lines) == "k m.py:0, m.py:1"
    assert label("k", [], lines) == "k"
    long = label("k", range(20), lines)
    assert long == f"k m.py:0, m.py:1, m.py:2, m.py:3, and {10 - MOST_LINES} more"
