"""Workers: they search the graphs of open jobs from the store alone, and leave others' to them."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from fleet_sites import H200, seconds_of
from fusionplan.db import Store
from fusionplan.planner.covers.cover import Cover
from fusionplan.planner.errors import DeviceError
from fusionplan.planner.graph.graph import key
from fusionplan.planner.groups.group import GroupContent
from fusionplan.planner.plan import Chosen
from fusionplan.planner.versions import versions
from fusionplan.tuner.fleet import worker as fleet_worker
from fusionplan.tuner.fleet.gpu_claim import held
from fusionplan.tuner.fleet.local_gpus import _indices, _visible, local_gpus, local_workers
from fusionplan.tuner.fleet.site import WorkerSite, compilers_of, cuda_site
from fusionplan.tuner.fleet.worker import FleetWorker, ProgressLines
from fusionplan.tuner.records.jobs import OfferedJob, Offers, SearchLimits
from fusionplan.tuner.records.ledger import device_record
from fusionplan.tuner.search.tuned_groups import LARGE, CoverFunctions
from fusionplan.tuner.trial.outcome import Candidate
from fusionplan.tuner.workers.covering import Covering
from fusionplan.tuner.workers.lab import Group
from tuner_fakes import FakeLab
from tuner_graphs import chain, pointwise

GRAPH = pointwise(512, 1000)
Offer = Callable[..., OfferedJob]


def worker(
    store: Store, lab: FakeLab, told: list[str] | None = None, **site: object
) -> FleetWorker:
    said: list[str] = [] if told is None else told
    own = WorkerSite(H200, lambda: nullcontext(lab))
    return FleetWorker(store, replace(own, **site), ProgressLines(said.append))


def test_a_worker_searches_a_job_from_the_store_alone(store: Store, offer: Offer):
    offer(GRAPH, trials=12)
    lab = FakeLab(seconds_of)
    assert worker(store, lab).run(idle_s=0.0) == len(lab.measured) >= 8
    trials = store.trials(subject=key(GRAPH), device_key=H200.key, versions=versions())
    assert len(trials) == len(lab.measured)
    assert lab.duels == []  # winners are the tune's to settle
    assert store.plans() == []
    assert store.counts()["claim"] == 0


def test_a_worker_takes_over_the_plan_of_a_large_graph(store: Store, offer: Offer):
    """It waits for the covers that the tune finds, and looks for none itself."""
    graph = chain(LARGE)
    halves = tuple(range(1, 61)), tuple(range(61, LARGE + 1))
    job = offer(graph)
    found = Covering((Cover(halves, Chosen(1.0, 1.0, 1.0, True, 1, 1, 0)),), {})
    threading.Timer(0.2, lambda: job.planned(found)).start()
    asked: list[object] = []
    cover = CoverFunctions(best=lambda *of: asked.append(of) or ())
    worker(store, lab := FakeLab(seconds_of), cover=cover).run(idle_s=0.0)
    assert asked == []
    assert {GroupContent.of(graph, half).key for half in halves} <= {k for k, _ in lab.measured}


def test_a_worker_plans_a_graph_itself_while_the_tune_is_at_another(store: Store, offer: Offer):
    """And does not wait for it."""
    first, graph = offer(GRAPH, name="first"), chain(LARGE)
    offer(graph, name="second")
    first.planned(None)
    whole = (tuple(range(1, LARGE + 1)),)
    cover = CoverFunctions(best=lambda *of: (Cover(whole, Chosen(1.0, 1.0, 1.0, True, 1, 1, 0)),))
    worker(store, lab := FakeLab(seconds_of), cover=cover).run(idle_s=0.0)
    assert GroupContent.of(graph, whole[0]).key in {key for key, _ in lab.measured}


def test_nothing_is_searched_twice(store: Store, offer: Offer):
    job = offer(GRAPH)
    again = worker(store, FakeLab(seconds_of))
    assert again.run(idle_s=0.0) >= 8
    made = again.measured
    assert again.run(idle_s=0.0) == made
    job.end()
    offer(GRAPH)
    later = FakeLab(seconds_of)
    worker(store, later).run(idle_s=0.0)
    assert later.measured == []


def test_results_of_other_devices_and_versions_do_not_mix(store: Store, offer: Offer):
    offer(GRAPH)
    told: list[str] = []
    other = replace(H200, name="NVIDIA A100")
    assert worker(store, FakeLab(seconds_of), told, profile=other).run(idle_s=0.0) == 0
    assert told == ["g is left alone: its device is NVIDIA H200, here it is NVIDIA A100"]
    old = versions() | {"triton": "3.0.0", "deterministic algorithms": "yes"}
    with Offers(store, H200.key, old) as offers:
        offers.offer(GRAPH, "old", SearchLimits(8, 0, 0), 60.0)
        told.clear()
        worker(store, FakeLab(seconds_of), told).run(idle_s=0.0)
    (line,) = [line for line in told if line.startswith("old")]
    assert "its triton is 3.0.0" in line
    assert "deterministic" not in line


def test_a_job_that_is_none_costs_the_others_nothing(store: Store, offer: Offer):
    bad = offer(chain(3), name="bad")
    store.jobs.write(
        lambda c: c.exec_driver_sql(
            f"UPDATE job SET graph_key = '{key(GRAPH)}' WHERE key = '{bad.key}'"
        )
    )
    offer(GRAPH)
    told: list[str] = []
    assert worker(store, FakeLab(seconds_of), told).run(idle_s=0.0) >= 8
    assert any("bad is left alone" in line and "not the one" in line for line in told)


def test_a_worker_leaves_a_job_that_is_ended(
    store: Store, offers: Offers, offer: Offer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(fleet_worker, "LOOK_S", 0.0)
    job = offer(GRAPH, trials=500)

    def ends_the_job(group: Group, candidate: Candidate) -> float:
        if len(lab.measured) == 10:
            job.end()
        return seconds_of(group, candidate)

    lab = FakeLab(ends_the_job)
    worker(store, lab).run(tune=offers.tune)
    assert 10 <= len(lab.measured) < 100
    assert store.counts()["claim"] == 0


def test_a_gpu_has_one_worker(store: Store, offer: Offer):
    offer(GRAPH)
    told: list[str] = []
    with held(store, "GPU-1") as first:
        assert first
        assert worker(store, FakeLab(seconds_of), told, gpu="GPU-1").run(idle_s=0.0) == 0
        assert told == ["another process measures on this NVIDIA H200"]
        assert worker(store, FakeLab(seconds_of), gpu="GPU-2").run(idle_s=0.0) >= 8
    with held(store, "GPU-1") as again:
        assert again


@dataclass
class Rounds:
    """Time as the number of measurements that end together: a round ends when each worker at work
    is in a measurement, or when the others did not come. It is not the clock that is read: a busy
    machine changes nothing. together: measurements and rounds until the first worker left."""

    at_work: int
    patience_s: float = 3.0
    measuring: int = 0
    made: int = 0
    passed: int = 0
    together: tuple[int, int] | None = None
    turn: threading.Condition = field(default_factory=threading.Condition)

    def measure(self, group: Group, candidate: Candidate) -> float:
        with self.turn:
            mine = self.passed
            self.measuring += 1
            self._pass_if_all_are_here()
            if not self.turn.wait_for(lambda: self.passed != mine, self.patience_s):
                self._pass()
        return seconds_of(group, candidate)

    def leave(self) -> None:
        with self.turn:
            if self.together is None:
                self.together = self.made, self.passed
            self.at_work -= 1
            self._pass_if_all_are_here()

    def _pass_if_all_are_here(self) -> None:
        if self.measuring and self.measuring == self.at_work:
            self._pass()

    def _pass(self) -> None:
        self.made += self.measuring
        self.measuring = 0
        self.passed += 1
        self.turn.notify_all()


def trials_and_rounds(place: Path, count: int, trials: int) -> tuple[int, int]:
    """Of two graphs shared by so many workers, while all are at work; no trial is made twice."""
    rounds = Rounds(at_work=count)
    labs = [FakeLab(rounds.measure) for _ in range(count)]
    graphs = [pointwise(512, 1000 + 24 * number) for number in range(2)]
    with Store.open(place) as store, Offers(store, H200.key, versions()) as offers:
        store.put_device(device_record(H200))
        for graph in graphs:
            offers.offer(graph, "g", SearchLimits(trials // 2, 0, 0), 600.0)

        def run(lab: FakeLab) -> None:
            try:
                with Store.open(place) as own:
                    worker(own, lab).run(idle_s=0.0)
            finally:
                rounds.leave()

        threads = [threading.Thread(target=run, args=(lab,)) for lab in labs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        made = store.trials()
    times = Counter(each for lab in labs for each in lab.measured)
    assert max(times.values()) == 1
    assert len(made) == len(times) >= trials // 2
    assert rounds.together is not None
    return rounds.together


@pytest.mark.slow
def test_four_workers_are_three_times_as_fast_as_one(tmp_path: Path):
    trials, rounds = trials_and_rounds(tmp_path / "one.db", 1, 6)
    assert trials == rounds >= 6
    trials, rounds = trials_and_rounds(tmp_path / "four.db", 4, 40)
    assert trials >= 40
    assert trials >= 3 * rounds, f"{trials} trials of four workers in the time of {rounds}"


# Worker processes of this host


def started(store: Store, gpus: list[int], tune: str, told: list[str]):
    return local_workers(store, gpus, tune, 2, told.append, module="fleet_sites")


def running(log: Path) -> set[int]:
    lines = log.read_text().splitlines() if log.exists() else []
    return {int(line.split()[0]) for line in lines}


def until(condition, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.process
@pytest.mark.usefixtures("workers_path")
def test_worker_processes_end_with_the_tune(
    store: Store, offers: Offers, offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Also where it ends by an exception, and in the midst of a measurement."""
    log = tmp_path / "log"
    monkeypatch.setenv("FLEET_LOG", str(log))
    monkeypatch.setenv("FLEET_SECONDS", "0.5")
    offer(GRAPH, trials=500)
    told: list[str] = []
    pids: set[int] = set()

    def interrupted() -> None:
        with started(store, [0], offers.tune, told):
            until(lambda: running(log))
            pids.update(running(log))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    (pid,) = pids
    assert not Path(f"/proc/{pid}").exists()
    assert store.counts()["claim"] == 0
    assert told == []


ALONE = """
import os, signal, sys
from fusionplan.db import Store
from fusionplan.tuner.fleet.local_gpus import local_workers
from test_worker import running, until
from pathlib import Path
with Store.open(sys.argv[1]) as store:
    with local_workers(store, [0], sys.argv[2], 2, print, module="fleet_sites"):
        until(lambda: running(Path(os.environ["FLEET_LOG"])))
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.process
@pytest.mark.usefixtures("workers_path")
def test_worker_processes_do_not_outlive_a_tune_that_is_killed(
    place: Path, offers: Offers, offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    log = tmp_path / "log"
    monkeypatch.setenv("FLEET_LOG", str(log))
    offer(GRAPH, trials=5000)
    command = [sys.executable, "-c", ALONE, str(place), offers.tune]
    done = subprocess.run(command, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL
    (pid,) = running(log)
    until(lambda: not Path(f"/proc/{pid}").exists(), 10.0)


def an_end() -> object:
    """A child process that has ended and was not waited for."""
    return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)


@pytest.mark.process
@pytest.mark.usefixtures("workers_path")
def test_a_worker_process_that_fails_is_told(store: Store, offers: Offers, offer: Offer):
    offer(GRAPH)
    told: list[str] = []
    with local_workers(store, [3], offers.tune, 2, told.append, module="no_such_module"):
        until(lambda: an_end() is not None)
    (line,) = told
    assert line.startswith("the worker on cuda:3 ended with exit status 1: ")
    assert "no_such_module" in line


def test_a_worker_needs_a_gpu():
    with pytest.raises(DeviceError, match=r"finds 0 CUDA devices|measures on a CUDA device"):
        cuda_site("cpu" if torch.cuda.is_available() else "cuda:0")


# Choosing GPUs


@pytest.mark.parametrize(
    "text, chosen", [("all", [0, 1, 2, 3]), ("1", [0]), ("3", [0, 1, 2]), ("2,0", [2, 0])]
)
def test_gpus_are_chosen(text: str, chosen: list[int]):
    assert _indices(text, 4) == chosen


@pytest.mark.parametrize("text", ["", "0", "5", "0,4", "1,1", "cuda:0", "-1", "one"])
def test_gpus_that_are_not_there(text: str):
    with pytest.raises(DeviceError, match="--gpus"):
        _indices(text, 4)


def test_a_gpu_is_named_as_the_user_restricted_them(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,GPU-abc")
    assert (_visible(0), _visible(1)) == ("5", "GPU-abc")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert _visible(1) == "1"


def test_without_a_gpu_nothing_is_shared():
    with pytest.raises(DeviceError, match="finds no CUDA device"):
        local_gpus("all")


def test_compilers_are_shared_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(64))
    assert compilers_of(None, 1) is None
    assert compilers_of(None, 4) == 12
    assert compilers_of(None, 8) == 6
    assert compilers_of(10, 4) == 2
    assert compilers_of(1, 4) == 1
