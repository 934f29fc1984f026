"""A tune whose search is shared: it takes over what a worker found, and alone keeps the plan."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest
import torch
from fleet_sites import H200, measured, seconds_of
from fusionplan.db import Store
from fusionplan.planner.plan import Plan
from fusionplan.planner.versions import versions
from fusionplan.tuner.fleet.site import WorkerSite
from fusionplan.tuner.fleet.worker import FleetWorker, ProgressLines
from fusionplan.tuner.progress.progress import RecordedProgress
from fusionplan.tuner.records.jobs import Offers, SearchLimits
from fusionplan.tuner.records.ledger import device_record
from fusionplan.tuner.session.effort import TuneLimits
from fusionplan.tuner.session.session import Session
from fusionplan.tuner.session.tune_site import TuneSite
from tuner_fakes import FakeLab, FakeStopwatch, OpenLab, baselines, captured

pytestmark = pytest.mark.interpreter

X, B = torch.randn(4, 256), torch.randn(256)
TRIALS = 16


def softmax_of_sum(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x + b, -1)


def tune(place: Path, lab: FakeLab, help_it: Callable[[str], None]) -> Plan:
    """A tune of one graph, and what helps it by the tune's id."""
    graph = captured(softmax_of_sum, X, B)
    with Store.open(place) as store, Offers(store, H200.key, versions()) as offers:
        store.put_device(device_record(H200))
        job = offers.offer(graph.graph, "m", SearchLimits(TRIALS, 0, 0), 60.0)
        site = TuneSite(OpenLab(lab), lambda device, l2: FakeStopwatch())
        limits = TuneLimits(TRIALS, 600.0)
        session = Session(graph, (X, B), store, limits, RecordedProgress(), "m", site=site, job=job)
        help_it(offers.tune)
        plan = session.measured(H200, baselines(eager=3.0))
        assert store.jobs.open() == []  # over before the best plans were compared
        (record,) = store.plans()
        assert Plan.from_json(record.payload) == plan
    return plan


def test_a_tune_and_its_worker_share_the_trials_and_one_plan(tmp_path: Path):
    theirs, ours = (FakeLab(partial(measured, takes_s=0.1)) for _ in range(2))
    threads = []

    def work(tune: str) -> None:
        with Store.open(tmp_path / "shared.db") as store:
            site = WorkerSite(H200, lambda: nullcontext(theirs))
            FleetWorker(store, site, ProgressLines(lambda text: None)).run(tune=tune)

    def help_it(tune: str) -> None:
        threads.append(threading.Thread(target=work, args=(tune,)))
        threads[0].start()
        end = time.monotonic() + 30
        while not theirs.measured:
            assert time.monotonic() < end
            time.sleep(0.01)

    shared = tune(tmp_path / "shared.db", ours, help_it)
    threads[0].join(timeout=30)
    assert not threads[0].is_alive()
    times = Counter([*theirs.measured, *ours.measured])
    assert max(times.values()) == 1
    assert len(theirs.measured) >= 3
    assert len(ours.measured) >= 3
    assert theirs.duels == []
    with Store.open(tmp_path / "shared.db") as store:
        assert len(store.trials(level="kernel")) == len(times)
    alone = tune(tmp_path / "alone.db", FakeLab(seconds_of), lambda tune: None)
    assert [g.nodes for g in shared.groups] == [g.nodes for g in alone.groups]
    assert [g.measured for g in shared.groups] == [g.measured for g in alone.groups]
