"""planner bench and planner check, in Triton's interpreter, where the CPU is the device."""

import json
from dataclasses import replace

import pytest
import torch
from fusionplan.cli.check import slower
from fusionplan.cli.time_models import Beside
from fusionplan.planner.plan import Contest, Contestant, Plan


@pytest.fixture
def tuned(planner, quick, small):
    assert planner("tune", small).code == 0
    return small


@pytest.mark.dynamo
def test_bench(planner, tuned):
    data = json.loads(planner("bench", tuned, "--json").out)
    assert data["kernels"] == 1  # ours ran, and not a baseline in its place
    found = {each["name"]: each for each in data["contest"]["contestants"]}
    assert {"plan", "eager"} == found.keys()
    assert data["gain_cold"] == found["eager"]["cold_s"] / found["plan"]["cold_s"]
    assert data["gain_busy"] == found["eager"]["busy_s"] / found["plan"]["busy_s"]
    torch._dynamo.reset()  # else the second call would run what was compiled for the first
    told = planner("bench", tuned)
    assert told.code == 0, told
    for word in ("plan", "eager", "cold", "busy", "sets of inputs in turn", "1 kernels"):
        assert word in told.out, told.out


def contest(monkeypatch, behind):
    from fusionplan.tuner.measure.contest import Ring

    def held(ring, calls):
        for call in calls.values():
            call(0)
        own = Contestant("plan", behind, behind, behind, behind - 1e-3, behind + 1e-3, 20)
        eager = Contestant("eager", 1.0, 1.0, 1.0, 1.0, 1.0, 20)
        return Contest((own, eager), "eager" if behind > 1 else "plan", 8)

    monkeypatch.setattr(Ring, "contest", held)


@pytest.mark.dynamo
@pytest.mark.parametrize(
    "behind, options, code",
    [(1.01, [], 0), (1.03, [], 7), (1.03, ["--fail-if-slower", "5%"], 0), (1.0, [], 0)],
)
def test_check(planner, tuned, monkeypatch, behind, options, code):
    contest(monkeypatch, behind)
    result = planner("check", tuned, "--json", *options)
    assert result.code == code, result
    data = json.loads(result.out)
    assert data["holds"] == (code == 0)
    assert ("3.0% longer than eager; 2.0% is allowed" in result.err) == (code == 7)


def test_within_noise_is_not_slower():
    own = Contestant("plan", 1.1, 1.1, 1.1, 0.9, 1.3, 20)
    found = Beside("m", "d", [], 1, Contest((own,), "plan", 8))
    assert not slower(found, 0.02)
    assert slower(replace(found, contest=Contest((replace(own, low=1.05),), "eager", 8)), 0.02)


def test_show_the_contest(planner, filled):
    assert "no record of a contest" in planner("show", "--contest").err
    record = filled.find_plan("chain")
    own = Contestant("plan", 5e-6, 6e-6, 1.0, 0.99, 1.01, 40)
    other = Contestant("eager", 9e-6, 9e-6, 1.8, 1.7, 1.9, 10)
    held = Contest(
        (own, other), "plan", 8, 1, True, (("max-autotune", "no memory"),), (("sm_mhz", 1980),)
    )
    plan = replace(Plan.from_json(record.payload), contest=held)
    filled.save_plan(replace(record, payload=plan.to_json()))
    out = planner("show", "--contest").out
    for word in (
        "1.800x",
        "1.700 to 1.900",
        "9 us",
        "max-autotune was left out: no memory",
        "decided",
        "sm_mhz 1980",
    ):
        assert word in out, out
    assert "not compared: max-autotune (no memory)" in planner("show").out


@pytest.mark.dynamo
@pytest.mark.parametrize("command", ["bench", "check"])
def test_without_a_plan(planner, small, filled, command):
    result = planner(command, small)
    assert result.code == 5, result
    assert "no plan is stored" in result.err


@pytest.mark.parametrize("arguments", [["--seconds", "0"], ["--seconds", "nan"]])
def test_usage(planner, small, arguments):
    assert planner("bench", small, *arguments).code == 2


def test_no_device(planner, small, filled, monkeypatch):
    monkeypatch.setattr("fusionplan.tuner.session.place.interpreted", lambda: False)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert planner("bench", small).code == 4
