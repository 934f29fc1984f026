"""Workloads that are tuned side by side and measured one at a time, by processes that invent it."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path

import pytest
from fusionplan.bench import run as running
from fusionplan.bench.__main__ import main
from fusionplan.bench.at_once import STRAGGLED
from fusionplan.bench.result import CHILD, REPORT, Missing
from fusionplan.bench.run import Children, SoFar
from fusionplan.bench.together import mixed, run_together
from fusionplan.bench.workloads import WORKLOADS

pytestmark = pytest.mark.process

NAMES = ("rotary", "linear_relu", "sigmoid_tanh", "splade_head")

NOTE = """
import sys, time
log, text, answer, wait, ends = sys.argv[1:]
with open(log, "a") as file:
    file.write(text + chr(10))
time.sleep(float(wait))
print(answer)
sys.exit(ends or 0)
"""


@pytest.fixture
def fake(tmp_path, measured, monkeypatch):
    """A class of children that print invented reports. broken: cannot be tuned. slow: is not done
    in a minute. lost: has no plan."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")

    def made(broken="", slow="", lost=""):
        class FakeChildren(Children):
            def tune_command(self, workload):
                ends = "no kernel" if workload.name == broken else ""
                return self.note(f"tune {workload.name} {self.jobs} {self.tune_s}", "", ends)

            def measure_command(self, workload):
                one = Missing("no plan is stored") if workload.name == lost else None
                answer = CHILD.dump_json(one or measured(workload.name, floor_s=1e-5)).decode()
                wait = 60 if workload.name == slow else 0
                return self.note(f"measure {workload.name}", answer, "", wait)

            def note(self, text, answer, ends, wait=0):
                log = str(tmp_path / "log")
                return [sys.executable, "-c", NOTE, log, text, answer, str(wait), ends]

        return FakeChildren

    return made


def logged(tmp_path: Path) -> list[str]:
    return (tmp_path / "log").read_text().splitlines()


def together(children, kept, until=math.inf, tune=True, patient_s=20.0):
    found = SoFar([WORKLOADS[name] for name in NAMES], ["--at-once", "3"])
    run_together(
        *(found, children),
        gpus=["0"],
        count=3,
        tune=tune,
        say=lambda text: None,
        keep=kept.append,
        until=until,
        patient_s=patient_s,
    )
    return found.report()


def test_all_are_tuned_and_then_measured(fake, tmp_path):
    kept = []
    report = together(fake()(None, "cpu", 1.0, 7.0), kept)
    assert [m.name for m in report.workloads] == list(NAMES)  # as asked for
    assert not report.failed
    assert all(m.tune_s is not None and m.tune_s > 0 for m in report.workloads)
    assert report.floors_s == dict.fromkeys(NAMES, 1e-5)
    lines = logged(tmp_path)
    assert [line.split()[0] for line in lines] == ["tune"] * 4 + ["measure"] * 4
    assert all(line.endswith(" 7.0") for line in lines[:4])  # seconds of each
    assert [len(each.workloads) for each in kept] == [0, 0, 0, 0, 1, 2, 3, 4, 4]


def test_what_fails_is_told_and_leaves_the_others(fake):
    report = together(fake(broken="rotary", lost="splade_head")(None, "cpu", 1.0), [])
    assert report.failed == {
        "rotary": "tune: no kernel",
        "splade_head": "measure: no plan is stored",
    }
    assert [m.name for m in report.workloads] == ["linear_relu", "sigmoid_tanh"]


def test_what_had_no_time_is_told(fake):
    children = fake(slow="splade_head")(None, "cpu", 1.0)
    report = together(children, [], time.monotonic() + 10.0, patient_s=0.5)
    assert report.failed == {"splade_head": f"measure: {STRAGGLED}"}
    report = together(fake()(None, "cpu", 1.0), [], time.monotonic() - 1.0)
    assert report.failed == dict.fromkeys(NAMES, "no time was left")


def test_plans_that_are_stored_need_no_tune(fake, tmp_path):
    report = together(fake()(None, "cpu", 1.0), [], tune=False)
    assert [m.tune_s for m in report.workloads] == [None] * 4
    assert {line.split()[0] for line in logged(tmp_path)} == {"measure"}


def test_products_are_among_the_others():
    mixture = mixed([WORKLOADS[name] for name in ("rotary", "sigmoid_tanh", "linear_relu")])
    assert [w.name for w in mixture] == ["linear_relu", "rotary", "sigmoid_tanh"]


def test_the_command_line(fake, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(running, "Children", fake(lost="rotary"))
    written, page = tmp_path / "report.json", tmp_path / "page.md"
    options = ("--at-once", "2", "--no-host", "--json", str(written), "--markdown", str(page))
    assert main(["rotary", "sigmoid_tanh", *options]) == 1
    assert "- rotary failed: measure: no plan is stored" in page.read_text()
    (one,) = REPORT.validate_json(written.read_bytes()).workloads
    assert one.name == "sigmoid_tanh"
    with pytest.raises(SystemExit):
        main(["rotary", "--at-once", "2", "--ncu"])


def test_after_the_limit_no_workload_begins_in_a_run_of_one_at_a_time(fake, monkeypatch, capsys):
    monkeypatch.setattr(running, "Children", fake())
    assert main(["rotary", "--no-host", "--limit", "1e-9"]) == 1
    assert "- rotary failed: no time was left" in capsys.readouterr().out
