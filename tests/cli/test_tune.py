"""`planner tune`: naming a model, what is printed and stored, Ctrl-C."""

import json

import pytest
import torch
from fusionplan.db import Store
from fusionplan.planner.plan import Plan

pytestmark = pytest.mark.dynamo

CLASS = """\
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, features, eps):
        super().__init__()
        self.norm = nn.LayerNorm(features, eps=eps)

    def forward(self, x, residual):
        return self.norm(x + residual)


def get_init_inputs():
    return [32, 1e-5]


def get_inputs():
    return [torch.randn(4, 32), torch.randn(4, 32)]
"""

OBJECTS = """\
import torch
from torch import nn


class Net(nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2


instance = Net()


def function(x):
    return torch.exp(x) + 1


def factory():
    return Net()


class Holder:
    net = Net()
"""

INPUTS = """\
import torch


def named():
    return {"x": torch.ones(4, 16)}


def single(device):
    return torch.ones(4, 16, device=device)


pair = (torch.ones(4, 16),)
"""

BREAKS = """\
import torch


def model(x):
    y = torch.relu(x + 1)
    torch._dynamo.graph_break()
    return torch.exp(y * 2)


example_inputs = torch.ones(4, 16)
"""


def tuned(planner, *arguments):
    result = planner("tune", *arguments, "--target", "h200", "--json")
    assert result.code == 0, result
    return json.loads(result.out)


def test_for_real(planner, small, tmp_path):
    """Compiled for the target and checked in the interpreter, in processes of their own."""
    result = planner("tune", small, "--target", "h200")
    assert result.code == 0, result
    assert "evidence: modelled" in result.out
    assert "triton" in result.out
    assert "Nothing was measured" in result.out
    assert "registers" in result.err
    assert "interpreter: all of it on random" in result.err
    with Store.open(tmp_path / "plans.db", create=False) as store:
        (record,) = store.plans()
    assert record.name == "small"
    assert record.evidence == "modelled"
    plan = Plan.from_json(record.payload)
    assert [g.lowering for g in plan.groups] == ["triton"]
    assert planner("show", "small").code == 0


def test_json(planner, quick, small, tmp_path):
    data = tuned(planner, small)
    assert data["evidence"] == "modelled"
    assert data["device"] == "NVIDIA H200"
    assert data["store"] == str(tmp_path / "plans.db")
    (plan,) = data["plans"]
    assert plan["stage"] == "inference"
    assert [g["lowering"] for g in plan["plan"]["groups"]] == ["triton"]
    shown = planner("show", plan["key"], "--json")
    assert json.loads(shown.out)["plan"] == plan["plan"]


def test_what_the_model_prints_is_no_result(planner, quick, write):
    file = write(
        "loud.py",
        "import torch\nprint('hello')\n\n\ndef model(x):\n    return x + 1\n\n\n"
        "example_inputs = [torch.ones(4, 8)]\n",
    )
    assert len(tuned(planner, file)["plans"]) == 1


def test_suffix_may_be_left_out(planner, quick, small):
    assert tuned(planner, "small")["plans"][0]["name"] == "small"


def test_class_with_init_inputs(planner, quick, write):
    data = tuned(planner, write("kernel.py", CLASS))
    assert len(data["plans"]) == 1


@pytest.mark.parametrize("name", ["instance", "Net", "function", "factory", "Holder.net"])
def test_object(planner, quick, write, name):
    write("objects.py", OBJECTS)
    write("inputs.py", INPUTS)
    data = tuned(planner, f"objects.py:{name}", "--inputs", "inputs.py:named")
    assert data["plans"][0]["name"] == f"objects:{name}"


@pytest.mark.parametrize("name", ["single", "pair"])
def test_inputs(planner, quick, write, name):
    write("objects.py", OBJECTS)
    write("inputs.py", INPUTS)
    assert tuned(planner, "objects.py:Net", "--inputs", f"inputs.py:{name}")["plans"]


def test_training(planner, quick, write):
    data = tuned(planner, write("kernel.py", CLASS), "--training")
    assert [p["stage"] for p in data["plans"]] == ["forward", "backward"]


def test_dynamic(planner, quick, write, tmp_path):
    store = tmp_path / "dynamic.db"
    file = write("kernel.py", CLASS)
    for options in ([], ["--dynamic"]):
        result = planner("tune", file, "--target", "h200", "--store", str(store), *options)
        assert result.code == 0, result
        with Store.open(store) as opened:
            (plan,) = opened.plans()
        assert (plan.bucket_key is None) == (not options)


def test_graph_breaks(planner, quick, write):
    data = tuned(planner, write("breaks.py", BREAKS))
    assert [p["name"] for p in data["plans"]] == ["breaks 0 inference", "breaks 1 inference"]


def test_nothing_to_fuse(planner, quick, write):
    file = write(
        "sums.py",
        "import torch\n\ndef model(x):\n    return x.digamma()\n\n"
        "example_inputs = [torch.ones(4, 4)]\n",
    )
    result = planner("tune", file, "--target", "h200")
    assert result.code == 0, result
    assert "no groups: the whole graph runs as eager" in result.out.replace("\n", " ")


def test_measured_plan_is_shown_with_its_peers(planner, quick, small):
    """In the interpreter the CPU is the device."""
    result = planner("tune", small)
    assert result.code == 0, result
    assert "speed-up 2.00x over eager" in result.out
    assert 'torch.compile(model, backend="planner")' in result.out


def test_modelled_plan_does_not_replace_a_measured_one(planner, quick, small, monkeypatch):
    from fusionplan.planner.costs.device import CPU
    from fusionplan.tuner.session import place

    assert planner("tune", small).code == 0
    monkeypatch.setattr(place, "builtin", lambda name: CPU)
    result = planner("tune", small, "--target", "h200")
    assert result.code == 0, result
    assert "the store keeps its plan" in result.err
    assert json.loads(planner("show", "--json").out)["evidence"] == "measured"


def interrupt(monkeypatch, after):
    """Ctrl-C in the part that comes after so many."""
    from fusionplan.tuner.session.session import Session

    modelled = Session.modelled
    seen = []

    def stops(session, profile):
        if len(seen) == after:
            raise KeyboardInterrupt
        seen.append(session)
        return modelled(session, profile)

    monkeypatch.setattr(Session, "modelled", stops)


def test_interrupted_with_a_plan(planner, quick, write, monkeypatch):
    interrupt(monkeypatch, 1)
    result = planner("tune", write("breaks.py", BREAKS), "--target", "h200", "--json")
    assert result.code == 130
    data = json.loads(result.out)
    assert data["interrupted"]
    assert len(data["plans"]) == 1
    assert planner("show").code == 0
    assert "best so far" in result.err


def test_interrupted_without_a_plan(planner, quick, small, monkeypatch):
    interrupt(monkeypatch, 0)
    result = planner("tune", small, "--target", "h200")
    assert result.code == 130
    assert result.out == ""
    assert "interrupted" in result.err.splitlines()[-1]


def test_interrupted_when_a_plan_is_stored(planner, quick, small, monkeypatch):
    """A second Ctrl-C reaches the command line; the store knows what there is."""

    def stops(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("fusionplan.tuning.load", stops)
    result = planner("tune", small, "--json")
    assert result.code == 130
    stored = json.loads(planner("plans", "--json").out)["plans"][0]["key"]
    assert f"stored before that: {stored[:12]} (small, measured)" in result.err
    assert stored[:12] in json.loads(result.out)["error"]["message"]


def test_interrupted_when_an_earlier_tune_left_a_plan(planner, quick, small, monkeypatch):
    assert planner("tune", small, "--target", "h200").code == 0
    stored = json.loads(planner("plans", "--json").out)["plans"][0]["key"]
    interrupt(monkeypatch, 0)
    result = planner("tune", small, "--target", "h200")
    assert result.code == 130
    assert "interrupted before there was a plan" in result.err
    assert f"an earlier plan: {stored[:12]} (small, modelled)" in result.err


@pytest.mark.parametrize("baseline_s, code", [(2e-3, 0), (0.99e-3, 0), (0.97e-3, 7)])
def test_fail_if_slower(planner, quick, small, monkeypatch, baseline_s, code):
    """The plan of these tests takes 1 ms."""
    from dataclasses import replace

    from fusionplan.tuner.decision.decide import Decision

    plans = Decision.plans

    def slower(decision):
        return [replace(plan, baselines=(("eager", baseline_s),)) for plan in plans(decision)]

    monkeypatch.setattr(Decision, "plans", slower)
    result = planner("tune", small, "--fail-if-slower", "2%")
    assert result.code == code, result
    assert ("3.1% longer" in result.err) == (code == 7)


@pytest.mark.parametrize("share", ["-1%", "200%", "much", "2%3", "nan"])
def test_impossible_share(planner, small, share):
    assert planner("tune", small, "--fail-if-slower", share).code == 2


def test_a_share_of_nothing_measured(planner, quick, small):
    result = planner("tune", small, "--target", "h200", "--fail-if-slower", "0.02")
    assert result.code == 2
    assert "nothing was measured" in result.err


def test_graphs_share_one_time_by_what_they_take(monkeypatch, quick, tmp_path):
    """What the first took beyond its share, the next one lacks; the last has all that is left."""
    from fusionplan import tuning
    from fusionplan.tuner.measure.wall import Wall
    from fusionplan.tuner.session.session import Session

    now, shares, left = [0.0], [], []
    searched = Session.searched

    def slow(session, profile, *rest):
        shares.append(session.share)
        left.append(session.wall.before_end_s)
        now[0] += 20.0
        return searched(session, profile, *rest)

    monkeypatch.setattr(Session, "searched", slow)
    monkeypatch.setattr(tuning, "Wall", lambda seconds: Wall(seconds, lambda: now[0]))
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU())
    given = {"seconds": 60.0, "training": True, "store": tmp_path / "s.db"}
    assert len(tuning.tune(model, torch.randn(4, 8), **given).plans) == 2
    assert left == [51.0, 31.0]
    assert shares[0] < 1.0 == shares[1]


def test_effort(planner, quick, small, monkeypatch):
    """What an effort allows reaches the search; trials and seconds take the place of its own."""
    from fusionplan.tuner.session.session import Session

    allowed = []
    modelled = Session.modelled

    def spy(session, profile):
        allowed.append((session.limits.trials, round(session.limits.seconds)))
        return modelled(session, profile)

    monkeypatch.setattr(Session, "modelled", spy)
    for more in ((), ("--effort", "quick"), ("--effort", "thorough", "--trials", "5")):
        assert planner("tune", small, "--target", "h200", *more).code == 0
    assert allowed == [(64, 180), (16, 60), (5, 900)]
    result = planner("tune", small, "--effort", "endless")
    assert result.code == 2
    assert "quick, default, thorough" in result.err


def test_python(quick, tmp_path):
    import fusionplan.tuning

    def model(x):
        return torch.relu(x + 1)

    tuned = fusionplan.tuning.tune(model, torch.ones(4, 16), store=tmp_path / "own.db")
    assert tuned.plan.groups[0].lowering == "triton"
    assert tuned.speedup == pytest.approx(2.0)
    assert repr(tuned) == f"<Tuned: 1 plan; model; {tuned.place.profile.name}; measured; 2.00x>"
    x = torch.randn(4, 16)
    torch.testing.assert_close(tuned(x), model(x))
    (live,) = fusionplan.plans(tuned._run)
    assert live == tuned.plan


def test_python_tells_by_logging(quick, tmp_path):
    """Nothing is drawn where stderr is no terminal; the log has it all."""
    import logging

    import fusionplan

    lines = []

    class Keeps(logging.Handler):
        def emit(self, record):
            lines.append((record.name, record.getMessage()))

    logger, handler = logging.getLogger("fusionplan"), Keeps()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        store, x = tmp_path / "own.db", torch.ones(4, 16)
        tuned = fusionplan.tune(lambda x: torch.relu(x + 1), x, store=store, name="logged")
        tuned(x)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
    assert ("fusionplan.tuner.progress.progress", "capture: running the model once") in lines
    (hit,) = [text for name, text in lines if name == "fusionplan.api"]
    assert tuned.records[0].key[:12] in hit
