"""planner bench and planner check, in Triton's interpreter, where the CPU is the device."""

import json

import pytest
import torch
from fusionplan.tuner.measure import Interleaved


@pytest.fixture
def tuned(planner, quick, small):
    assert planner("tune", small).code == 0
    return small


def test_bench(planner, tuned):
    data = json.loads(planner("bench", tuned, "--json").out)
    assert data["kernels"] == 1  # ours ran, and not a baseline in its place
    assert {"plan", "eager"} == data["seconds"].keys()
    assert data["best"] == "eager"
    assert data["rounds"] == 2
    low, middle, high = (data["slowdown"][name] for name in ("low", "median", "high"))
    assert 0 < low <= middle <= high
    torch._dynamo.reset()  # else the second call would run what was compiled for the first
    told = planner("bench", tuned)
    assert told.code == 0, told
    for word in ("plan", "eager", "the fastest baseline", "1 kernels"):
        assert word in told.out, told.out


def laps(monkeypatch, plan, eager):
    from fusionplan.tuner.measure import Timer

    def interleaved(timer, calls, *, budget_s):
        for call in calls.values():
            call()
        return Interleaved({"plan": [plan] * 20, "eager": [eager] * 20})

    monkeypatch.setattr(Timer, "interleaved", interleaved)


@pytest.mark.parametrize(
    "plan, options, code",
    [(1.01, [], 0), (1.03, [], 7), (1.03, ["--fail-if-slower", "5%"], 0), (0.5, [], 0)],
)
def test_check(planner, tuned, monkeypatch, plan, options, code):
    laps(monkeypatch, plan, 1.0)
    result = planner("check", tuned, "--json", *options)
    assert result.code == code, result
    data = json.loads(result.out)
    assert data["holds"] == (code == 0)
    assert data["slowdown"]["median"] == plan
    assert ("3.0% longer than eager; 2.0% is allowed" in result.err) == (code == 7)


@pytest.mark.parametrize("command", ["bench", "check"])
def test_without_a_plan(planner, small, filled, command):
    result = planner(command, small)
    assert result.code == 5, result
    assert "no plan is stored" in result.err


@pytest.mark.parametrize("arguments", [["--seconds", "0"], ["--seconds", "nan"]])
def test_usage(planner, small, arguments):
    assert planner("bench", small, *arguments).code == 2


def test_no_device(planner, small, filled, monkeypatch):
    monkeypatch.setattr("fusionplan.tuning.interpreted", lambda: False)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert planner("bench", small).code == 4
