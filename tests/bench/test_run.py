"""The run over its processes, with fakes in their place, and the command line."""

import json
import math
import sys

import pytest
from compiling import forked
from fusionplan.bench import run as running
from fusionplan.bench.__main__ import _parser as main_parser
from fusionplan.bench.__main__ import main
from fusionplan.bench.result import CountedTraffic, HostCosts, Missing, Predicted, Requirement
from fusionplan.bench.run import BenchError, Children, SoFar, add_host, run
from fusionplan.bench.workloads import CONTRACTIONS, WORKLOADS
from fusionplan.planner.errors import DeviceError

pytestmark = pytest.mark.process

ROTARY, CHAIN = WORKLOADS["rotary"], WORKLOADS["article_chain"]


class FakeProcesses:
    """Has plans for some workloads, and for those it tunes; measuring those in `broken` fails.
    traffic: what is counted, or the error."""

    def __init__(self, measured, planned=(), broken=(), traffic=None):
        self.make, self.planned, self.broken, self.log = measured, set(planned), broken, []
        self.traffic = traffic

    def measure(self, workload):
        self.log.append(("measure", workload.name))
        if workload.name in self.broken:
            raise BenchError("it died")
        if workload.name not in self.planned:
            return Missing("no plan is stored")
        return self.make(workload.name)

    def tune(self, workload):
        self.log.append(("tune", workload.name))
        self.planned.add(workload.name)
        return 12.5

    def watch(self, workload):
        self.log.append(("watch", workload.name))
        if isinstance(self.traffic, Exception):
            raise self.traffic
        return self.traffic

    def host(self):
        return HostCosts(self.make().machine, ())


def run_fake(processes, *workloads, tune=True, host=False, count=False):
    said, found = [], SoFar(workloads, ["--json", "a b"])
    run(found, processes, tune=tune, say=said.append, count=count)
    if host:
        add_host(found, processes, said.append, math.inf)
    return found.report(), said


def test_only_what_has_no_plan_is_tuned(measured):
    processes = FakeProcesses(measured, planned=["rotary"])
    report, _ = run_fake(processes, ROTARY, CHAIN, host=True)
    assert [m.tune_s for m in report.workloads] == [None, 12.5]
    chain = [what for what, name in processes.log if name == "article_chain"]
    assert chain == ["measure", "tune", "measure"]
    assert report.host is not None
    assert report.command == "scripts/bench --json 'a b'"


def test_each_workload_is_kept_as_soon_as_it_is_done(measured):
    kept = []
    found, processes = SoFar([ROTARY, CHAIN], []), FakeProcesses(measured, planned=["rotary"])
    run(found, processes, tune=False, say=lambda text: None, keep=kept.append)
    assert [(len(r.workloads), list(r.failed)) for r in kept] == [(1, []), (1, ["article_chain"])]


def test_without_tuning_a_missing_plan_is_a_failure(measured):
    report, said = run_fake(FakeProcesses(measured), CHAIN, tune=False)
    assert report.failed == {"article_chain": "no plan is stored; --tune makes one"}
    assert any("--tune makes one" in line for line in said)


def test_one_failure_leaves_the_others(measured):
    processes = FakeProcesses(measured, planned=["rotary", "article_chain"], broken=["rotary"])
    report, _ = run_fake(processes, ROTARY, CHAIN)
    assert report.failed == {"rotary": "it died"}
    assert [m.name for m in report.workloads] == ["article_chain"]


TRAFFIC = CountedTraffic(3, 2, 9, 1e-6, 1, Predicted(5))


def test_bytes_are_counted_where_they_are_asked_for(measured):
    processes = FakeProcesses(measured, planned=["rotary"], traffic=TRAFFIC)
    report, _ = run_fake(processes, ROTARY, count=True)
    assert report.workloads[0].traffic == TRAFFIC
    report, _ = run_fake(processes, ROTARY)
    assert report.workloads[0].traffic is None
    assert processes.log.count(("watch", "rotary")) == 1


@pytest.mark.parametrize("traffic", [DeviceError("no program ncu"), Missing("no program ncu")])
def test_times_stay_where_bytes_cannot_be_counted(measured, traffic):
    processes = FakeProcesses(measured, planned=["rotary"], traffic=traffic)
    report, said = run_fake(processes, ROTARY, count=True)
    assert report.workloads[0].traffic == Missing("no program ncu")
    assert not report.failed
    assert any("bytes not counted: no program ncu" in line for line in said)


def test_what_is_asked_is_in_the_report(measured):
    processes = FakeProcesses(measured, planned=["rotary", "splade_head"])
    report, _ = run_fake(processes, ROTARY, WORKLOADS["splade_head"])
    assert report.asked == {"splade_head": Requirement(1.3e-3, 16 * 2**20)}


def test_a_child_that_fails_or_prints_nonsense_is_told(monkeypatch):
    children = Children(None, "cpu", 1.0)
    monkeypatch.setattr(sys, "executable", "false")
    with pytest.raises(BenchError, match="exit code 1"):
        children.measure(ROTARY)
    monkeypatch.setattr(sys, "executable", "echo")
    with pytest.raises(BenchError, match="no result"):
        children.measure(ROTARY)


def test_tuning_names_model_inputs_limit_and_store(monkeypatch):
    commands = []
    monkeypatch.setattr(running, "_answer", lambda command: commands.append(command) or "")
    Children("plans.db", "cuda:1", 1.0, 60.0).tune(WORKLOADS["groupnorm_silu"])
    words = commands[0][commands[0].index("tune") :]
    assert words[1].endswith("memory_bound.py:GroupNormSiLU")
    assert words[4:] == [
        "--quiet",
        "--device",
        "cuda:1",
        "--seconds",
        "60.0",
        "--store",
        "plans.db",
    ]


def test_measuring_names_what_is_compared_and_how_often(monkeypatch):
    children = Children(None, "cpu", 0.5, modes=["default", "max-autotune"], rounds=30)
    words = children.measure_command(ROTARY)
    told = main_parser().parse_args(words[words.index("--measure") :])
    assert (told.measure, told.budget, told.rounds) == ("rotary", 0.5, 30)
    assert told.modes == ["default", "max-autotune"]


def test_an_unknown_workload_names_the_known_ones(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["nonsense"])
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert "'nonsense'" in told
    assert all(name in told for name in WORKLOADS)


def _run_main(monkeypatch, measured, *arguments, **fake):
    monkeypatch.setattr(running, "Children", lambda *_: FakeProcesses(measured, **fake))
    return main([*map(str, arguments), "--no-host"])


def test_check_decides_the_exit_code(monkeypatch, capsys, measured, tmp_path):
    def slow(name="rotary"):
        return measured(name, kernels=2)

    planned = {"planned": ["rotary"]}
    assert _run_main(monkeypatch, slow, "rotary", **planned) == 0
    assert _run_main(monkeypatch, slow, "rotary", "--check", **planned) == 1
    assert "check: rotary: 2 generated kernels" in capsys.readouterr().err
    assert _run_main(monkeypatch, measured, "rotary", "--check", **planned) == 0
    assert _run_main(monkeypatch, measured, "rotary", broken=["rotary"]) == 1


def test_without_ncu_the_exit_code_tells(monkeypatch, capsys, measured):
    fake = {"planned": ["rotary"], "traffic": DeviceError("no program ncu")}
    assert _run_main(monkeypatch, measured, "rotary", **fake) == 0
    assert _run_main(monkeypatch, measured, "rotary", "--ncu", **fake) == 1
    assert "- rotary: bytes not counted: no program ncu" in capsys.readouterr().out
    assert _run_main(monkeypatch, measured, "rotary", "--ncu", "--check", **fake) == 1
    fake["traffic"] = TRAFFIC
    assert _run_main(monkeypatch, measured, "rotary", "--ncu", "--check", **fake) == 0


def test_contractions_are_a_set_of_their_own(monkeypatch, capsys, measured, tmp_path):
    names = [w.name for w in CONTRACTIONS]
    written = tmp_path / "report.json"
    options = ("rotary", "splade_head", "--contractions", "--json", written)
    assert _run_main(monkeypatch, measured, *options, planned=["rotary", *names]) == 0
    found = [m["name"] for m in json.loads(written.read_text())["workloads"]]
    assert found == ["rotary", "splade_head", *(n for n in names if n != "splade_head")]


def test_json_markdown_and_an_earlier_report(monkeypatch, capsys, measured, tmp_path):
    first, page = tmp_path / "first.json", tmp_path / "page.md"
    assert _run_main(monkeypatch, measured, "rotary", "--json", first) == 0
    assert [m["name"] for m in json.loads(first.read_text())["workloads"]] == ["rotary"]
    capsys.readouterr()
    include = ("--include", first, "--markdown", page)
    assert _run_main(monkeypatch, measured, "article_chain", *include) == 0
    out = capsys.readouterr().out
    assert "| rotary |" in out
    assert "| article_chain |" in out
    assert out in page.read_text()


def test_an_included_file_that_is_no_report(monkeypatch, capsys, measured, tmp_path):
    assert _run_main(monkeypatch, measured, "rotary", "--include", tmp_path / "no.json") == 1
    assert "no.json is no report" in capsys.readouterr().err


@pytest.mark.slow
def test_a_child_prints_one_document_and_nothing_else(tmp_path):
    options = ["--device", "cpu", "--store", str(tmp_path / "none.db")]
    measured = ["--measure", "custom_loss_many_small_ops"]
    done = forked(["-m", "fusionplan.bench", *measured, *options])
    assert done.returncode == 0, done.stderr
    assert "why" in json.loads(done.stdout)
