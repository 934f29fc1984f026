"""`planner bisect`: what it prints, its JSON, and its errors."""

import json

import pytest
from fusionplan.planner.runtime.machine_code import compile as compilation

SMALL = """
import torch
model = lambda x: torch.relu(x) * 2
get_inputs = lambda: [torch.randn(8, 16)]
"""


@pytest.mark.dynamo
def test_each_group_has_its_error_beside_eagers(planner, write):
    file = write("small.py", SMALL)
    result = planner("bisect", file)
    assert result.code == 0, result.err
    assert "no group is beyond the accuracy rule" in result.out
    assert "relu mul" in result.out
    document = json.loads(planner("bisect", file, "--json").out)
    assert document["first"] is None
    (plan,) = document["plans"]
    (group,) = plan["groups"]
    assert group["operations"] == ["relu", "mul"]
    assert group["fault"] == group["left_out"] == ""


@pytest.mark.dynamo
def test_it_needs_what_runs_kernels(planner, write, monkeypatch):
    monkeypatch.setattr(compilation, "interpreted", lambda: False)
    result = planner("bisect", write("small.py", SMALL), "--device", "cpu")
    assert result.code == 4
    assert "TRITON_INTERPRET=1" in result.err


def test_a_mode_that_there_is_not(planner, write):
    result = planner("bisect", write("small.py", SMALL), "--numerics", "exact")
    assert result.code == 2
    assert "give one of fast, eager" in result.err
