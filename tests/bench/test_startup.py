"""Time to a first result: processes of their own, here on a CPU and without torch.compile."""

import json
import re
import subprocess
from pathlib import Path

import pytest
from compiling import forked
from fusionplan.bench import startup
from fusionplan.bench.started import COMPILED, EAGER, OURS
from fusionplan.bench.workloads import ROOT, Workload

MODEL = """
import torch

def get_model():
    return torch.nn.Linear(4, 4)

def get_inputs(device):
    return [torch.ones(2, 4, device=device)]
"""


@pytest.fixture
def workload(tmp_path: Path) -> Workload:
    (tmp_path / "small.py").write_text(MODEL)
    return Workload("small", "a small model", str(tmp_path / "small.py"), 1)


def test_what_can_be_started_is_in_its_file():
    """By path, in a process that imports nothing of ours."""
    for each in startup.STARTED.values():
        text = (ROOT / each.file).read_text()
        for name in filter(None, (each.model, each.inputs)):
            assert re.search(rf"^(def|class) {name}\b", text, re.MULTILINE), each.name


@pytest.mark.process
def test_a_plan_that_is_not_there_is_said(workload, monkeypatch, tmp_path):
    monkeypatch.setattr(startup, "WAYS", (OURS,))
    started = ["-m", "fusionplan.bench.started"]
    monkeypatch.setattr(
        startup.subprocess, "run", lambda command, **_: forked(started + command[3:])
    )
    found = startup.measured(workload, "cpu", str(tmp_path / "none.db"), 1)
    assert found.failed.startswith(f"{OURS}: ")
    assert "none.db" in found.failed
    assert found.failed in startup.table([found])


def test_the_table_counts_what_comes_on_top_of_eager():
    found = startup.Startup("w", {EAGER: [3.0, 2.0, 9.0], COMPILED: [7.0] * 3, OURS: [4.0] * 3})
    assert found.ratio == 0.25
    assert "| w | 3.00 | 4.00 | 1.00 | 0.25 |  |" in startup.table([found])


@pytest.mark.process
def test_a_process_of_its_own_tells_its_time_and_where_it_went(workload, monkeypatch):
    """Also what is not ours: of torch.compile all that is no import and no run is Dynamo's."""
    monkeypatch.setattr(startup, "WAYS", (EAGER,))
    found = startup.measured(workload, "cpu", "", 1)
    assert not found.failed
    assert [len(found.seconds[way]) for way in found.seconds] == [1]
    assert found.seconds[EAGER][0] > 0.1
    (told,) = found.phases[EAGER]
    assert list(told) == list(startup.PHASES)
    assert told["torch"] > 0.1
    assert told["run"] > 0
    assert told["trace"] == told["lookup"] == 0.0


def test_a_start_ends_with_the_first_result(workload, monkeypatch):
    told = {"torch": 1.0, "model": 0.5, "import": 0.0, "first": 1.0, "second": 0.5, "at": 102.5}
    monkeypatch.setattr(startup, "WAYS", (EAGER,))
    monkeypatch.setattr(startup.time, "time", lambda: 100.0)
    done = subprocess.CompletedProcess([], 0, stdout=f"noise\n{json.dumps(told)}\n")
    monkeypatch.setattr(startup, "_started", lambda *_: done)
    assert startup.measured(workload, "cpu", "", 2).seconds == {EAGER: [2.5, 2.5]}


def test_phases_are_those_of_the_first_call():
    told = {"torch": 2.0, "model": 1.0, "import": 3.0, "first": 7.0, "second": 0.5}
    ours = {"trace": 1.8, "lookup": 0.1, "plan": 0.2, "generate": 0.2}
    ours |= {"compile": 0.3, "load": 0.4, "build": 0.5}
    assert startup.phases(told)["Dynamo"] == 6.5
    found = startup.phases(told | ours)
    assert found == {"torch": 2.0, "import": 3.0, "Dynamo": 3.0, **ours, "run": 0.5}
    each = startup.Startup("w", phases={EAGER: [found], OURS: [found]})
    (row,) = startup.phase_table([each]).splitlines()[2:]
    figures = "2.00 | 3.00 | 3.00 | 1.80 | 0.10 | 0.20 | 0.20 | 0.30 | 0.40 | 0.50 | 0.50"
    assert row == f"| w | fusionplan.load | {figures} |"


def test_an_unknown_workload_is_refused(capsys):
    with pytest.raises(SystemExit) as stopped:
        startup.main(["nonsense"])
    assert stopped.value.code == 2
    assert "'nonsense' is no workload" in capsys.readouterr().err
