"""Models by all ways, measured in a process that a mode may end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from compiling import forked
from fusionplan.bench.real import (
    CASES,
    CONTEST,
    KINDS,
    Real,
    _is_asked,
    _parser,
    made,
    row,
)
from fusionplan.bench.real_models import REAL
from fusionplan.tuner.workers.processes import import_path
from torch._subclasses.fake_tensor import FakeTensorMode

STORES = ("none", "dies")
_MEASURED = (
    f"STORES = {STORES}"
    + """
import os, signal, sys
import torch
from fusionplan.bench import real

class Doubled(torch.nn.Module):
    def forward(self, x):
        return x * 2

def dies(turn=0, **given):
    os.kill(os.getpid(), signal.SIGKILL)

def breaks(turn):
    real.why_lost = lambda device: "an illegal memory access"
    raise RuntimeError("of another kernel")

def fails(turn):
    raise ValueError("only this mode")

def ways(model, turns, modes):
    eager = real.through(model, turns)
    given = {"default": fails, "reduce-overhead": dies, "max-autotune-no-cudagraphs": breaks}
    return {"eager": eager, **given, "max-autotune": eager}

real.CASES["doubled"] = lambda: real.RealCase(Doubled(), {"x": torch.ones(2, 3)})
real.load = lambda model, store, on_miss: dies if store == "dies" else model
real.plans = lambda model: []
real.executors = lambda model: []
real.why_lost = lambda device: None
real.model_baselines = ways
first, codes = os.getpid(), []
for store in STORES:
    given = ["--measure", "doubled", "--into", sys.argv[1] + store, "--store", store]
    codes.append(real.main([*given, "--budget", "0.01"]))
    if os.getpid() != first:
        raise SystemExit(codes[-1])
print(codes)
"""
)


@pytest.mark.process
def test_a_mode_that_ends_the_process_is_left_out(tmp_path: Path):
    script, into = tmp_path / "measured.py", tmp_path / "doubled"
    script.write_text(_MEASURED)
    done = forked([str(script), str(into)], variables={"PYTHONPATH": import_path()})
    assert done.stdout == "[0, 137]\n", done.stderr
    found, ours = (Real(**json.loads(Path(f"{into}{store}").read_text())) for store in STORES)
    assert list(found.seconds) == ["fusionplan", "eager", "max-autotune"]
    assert set(found.errors) == set(found.seconds)
    assert found.left_out == {
        "reduce-overhead": "its process ended with -9",
        "max-autotune-no-cudagraphs": "it breaks the device: an illegal memory access",
    }
    assert any("only this mode" in note for note in found.notes)
    assert not found.under_way
    assert (ours.under_way, ours.left_out) == ("fusionplan", {}), "ours is never left out"
    assert "fusionplan is not measured" in done.stderr


def test_times_from_before_the_contest_say_so():
    found = Real("doubled", seconds={"eager": (2e-6, 1e-6)}, under_way=CONTEST)
    assert "| 2.0 / 1.0 |" in row(found)
    assert row(found).endswith("ended in the contest; each way by itself |")


@pytest.mark.parametrize(
    "given, wanted",
    [
        (["relu"], {"relu, small", "instance norm and relu"}),
        (["--kind", "functions", "relu"], {"relu, small"}),
        (["--kind", "odd-rows"], {"instance norm and relu"}),
        ([], set()),
    ],
)
def test_names_choose_among_the_cases_of_a_kind(given: list[str], wanted: set[str]):
    options = _parser().parse_args(given)
    asked = {name for name in CASES if _is_asked(name, options)}
    several = {"relu, small", "instance norm and relu"}
    found = {part for part in several if any(name.startswith(part) for name in asked)}
    assert found == wanted
    assert bool(asked & set(REAL)) == (not given)


def test_every_case_has_a_name_of_its_own_and_a_kind():
    assert len(CASES) == sum(map(len, KINDS.values()))
    assert set(CASES) == {name for names in KINDS.values() for name in names}


@pytest.mark.parametrize(
    "name, dtype",
    [("add, small", torch.bfloat16), ("variance, 2000003 x 33, float32", torch.float32)],
)
def test_a_case_is_of_its_type(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with FakeTensorMode():
        model, inputs = made(CASES[name]())
        result = model(**inputs)
    assert {x.dtype for x in inputs.values()} == {result.dtype} == {dtype}
