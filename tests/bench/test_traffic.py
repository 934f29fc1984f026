"""Bytes of a call: what the cost model expects of a plan, and what ncu prints, from a false ncu."""

import json
import os
import stat
import sys

import pytest
import torch
from fusionplan.api import load
from fusionplan.bench import ncu, traffic
from fusionplan.bench.result import CountedTraffic, Missing, Predicted
from fusionplan.bench.run import Children
from fusionplan.bench.workloads import WORKLOADS
from fusionplan.planner.costs.device import profile_of
from fusionplan.planner.covers.cover import modelled_plan
from fusionplan.planner.errors import DeviceError
from fusionplan.planner.plan import GroupPlan, Plan
from fusionplan.tuner.capture.capture_model import capture_model

pytestmark = pytest.mark.process

CPU = torch.device("cpu")
HEAD = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size",'
    '"Grid Size","Device","CC","Section Name","Metric Name","Metric Unit","Metric Value"'
)
ONE = {ncu.READ: ("byte", "1,000"), ncu.WRITTEN: ("byte", "200")}
ONE |= {ncu.L2: ("byte", "5,000,000"), ncu.TIME: ("nsecond", "1,500")}
TWO = {ncu.READ: ("Kbyte", "2.5"), ncu.WRITTEN: ("Mbyte", "0")}
TWO |= {ncu.L2: ("byte", "10"), ncu.TIME: ("us", "2.5")}


def printed(*kernels):
    """What ncu prints of kernels, its own lines around it."""
    lines = ["==PROF== Connected to process 7 (/usr/bin/python3)", HEAD]
    for number, kernel in enumerate(kernels):
        about = f'"{number}","7","python3","127.0.0.1","fused_mul","1","7"'
        about += ',"(128, 1, 1)","(9, 1, 1)","0","9.0","Command line profiler metrics"'
        lines += [f'{about},"{m}","{unit}","{value}"' for m, (unit, value) in kernel.items()]
    return "\n".join([*lines, "==PROF== Disconnected from process 7"])


@pytest.fixture
def false_ncu(tmp_path, monkeypatch):
    """Puts a program `ncu` on PATH: it runs what it is given, and logs a text or fails."""

    def put(text, code=0, run=True):
        program = tmp_path / "bin" / "ncu"
        program.parent.mkdir(exist_ok=True)
        (tmp_path / "text").write_text(text)
        program.write_text(
            f"#!{sys.executable}\n"
            "import json, pathlib, subprocess, sys\n"
            "given = sys.argv[1:]\n"
            "end = given.index('--log-file') + 2\n"
            f"pathlib.Path({str(tmp_path / 'given')!r}).write_text(json.dumps(given))\n"
            f"text = pathlib.Path({str(tmp_path / 'text')!r}).read_text()\n"
            "pathlib.Path(given[end - 1]).write_text(text)\n"
            f"code = subprocess.run(given[end:]).returncode if {run} else 0\n"
            f"sys.exit(code or {code})\n"
        )
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
        return lambda: json.loads((tmp_path / "given").read_text())

    return put


def says(value):
    return [sys.executable, "-c", f"print({json.dumps(value)!r})"]


def test_the_kernels_of_a_call_are_added_up(false_ncu):
    given = false_ncu(printed(ONE, TWO))
    found = ncu.watch(says({"hbm_bytes": 3500, "whole": True}))
    assert isinstance(found, CountedTraffic)
    assert (found.read_bytes, found.written_bytes, found.l2_bytes) == (3500, 200, 5000010)
    assert found.kernels == 2
    assert found.seconds == pytest.approx(4e-6)
    assert found.hbm_bytes == 3700
    assert found.predicted == Predicted(3500)
    words = given()
    assert words[words.index("--metrics") + 1] == ",".join(ncu.METRICS)
    assert words[words.index("--profile-from-start") + 1] == "off"
    assert words[words.index("--clock-control") + 1] == "none"


def test_a_workload_without_a_plan_has_no_bytes(false_ncu):
    false_ncu(printed())
    assert ncu.watch(says({"why": "no plan"})) == Missing("no plan")


@pytest.mark.parametrize(
    "text, code, problem",
    [
        (printed(), 0, "ncu saw no kernel"),
        ("==ERROR== ERR_NVGPUCTRPERM - no permission", 1, "exit code 1: ERR_NVGPUCTRPERM"),
        ("==ERROR== ERR_NVGPUCTRPERM - no permission", 0, "no kernel: ERR_NVGPUCTRPERM"),
        (printed({**ONE, ncu.L2: ("byte", "n/a")}), 0, "lts__t_bytes.sum as 'n/a'"),
        (printed({**ONE, ncu.L2: ("byte", "nan")}), 0, "lts__t_bytes.sum as 'nan'"),
        (printed({**ONE, ncu.L2: ("furlong", "1")}), 0, "in 'furlong'"),
        (printed(ONE, {ncu.READ: ("byte", "1")}), 0, "did not count dram__bytes_write.sum"),
    ],
)
def test_what_ncu_cannot_do_is_told(false_ncu, text, code, problem):
    false_ncu(text, code)
    with pytest.raises(ncu.NcuError, match=problem):
        ncu.watch(says({"hbm_bytes": 1, "whole": True}))


def test_a_program_that_fails_under_ncu_or_prints_nonsense_is_told(false_ncu):
    false_ncu(printed(ONE))
    with pytest.raises(ncu.NcuError, match="exit code 3"):
        ncu.watch([sys.executable, "-c", "raise SystemExit(3)"])
    with pytest.raises(ncu.NcuError, match="no result: 'hm"):
        ncu.watch([sys.executable, "-c", "print('hm')"])


def test_without_ncu_the_error_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(ncu, "USUAL", str(tmp_path / "ncu"))
    with pytest.raises(DeviceError, match="install NVIDIA Nsight Compute"):
        ncu.watch(says({}))


@pytest.mark.slow
def test_the_child_under_ncu_prints_one_document(false_ncu, tmp_path, monkeypatch):
    false_ncu(printed(ONE))
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    children = Children(str(tmp_path / "none.db"), "cpu", 1.0)
    found = children.watch(WORKLOADS["custom_loss_many_small_ops"])
    assert isinstance(found, Missing)
    assert "planner tune" in found.why


def captured_of(function, *inputs):
    torch._dynamo.reset()
    (part,) = capture_model(function, inputs).parts
    return part.captured.graph


X = torch.empty(64, 32)
NBYTES = 64 * 32 * 4


def test_generated_kernels_count_as_the_model_says():
    graph, device = captured_of(lambda x: torch.relu(x + 1) * 2, X), profile_of(CPU)
    plan = modelled_plan(graph, device)
    assert [g.lowering for g in plan.groups] == ["triton"]
    assert traffic.of_plan(graph, plan, device) == Predicted(2 * NBYTES)


def test_what_is_not_generated_counts_its_ends_once():
    graph, device = captured_of(lambda x: torch.relu(x @ x.T), X), profile_of(CPU)
    eager = Plan("", device.key, (), "measured", ())
    product = 64 * 64 * 4
    assert traffic.of_plan(graph, eager, device) == Predicted(
        NBYTES * 2 + product + 2 * product, whole=False
    )
    nodes = tuple(n.id for n in graph.nodes if n.op != "input")
    whole = Plan("", device.key, (), "measured", (GroupPlan(nodes, "inductor", ""),))
    assert traffic.of_plan(graph, whole, device) == Predicted(NBYTES + product, whole=False)


@pytest.fixture
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_a_loaded_plan_has_the_bytes_of_its_kernels(fresh_dynamo):
    workload = WORKLOADS["custom_loss_many_small_ops"]
    found = traffic.watched(workload, CPU, None, on_miss="model", scale=64)
    inputs = 2 * 64 * 16 * 4
    assert isinstance(found, Predicted)
    assert found.whole
    assert inputs < found.hbm_bytes < 2 * inputs


def test_a_model_that_runs_without_a_plan_is_not_known(fresh_dynamo, tmp_path):
    fast = load(torch.relu, store=tmp_path / "none.db", on_miss="baseline")
    with torch.no_grad(), pytest.warns(UserWarning, match="no plan"):
        fast(X)
    assert traffic.predicted(fast, profile_of(CPU)) == Predicted(None, whole=False)
