"""Workers as Ray tasks: a cluster of three nodes and a PostgreSQL server, all on this host."""

import os
import signal
import socket
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fleet_sites import H200, open_site, seconds_of
from fusionplan.db import Store
from fusionplan.planner.errors import DeviceError
from fusionplan.planner.graph.graph import key
from fusionplan.planner.versions import versions
from fusionplan.tuner.fleet.ray_cluster import Cluster, ExtraMissing, probe_node
from fusionplan.tuner.progress.progress import Silent
from fusionplan.tuner.records.findings import Findings
from fusionplan.tuner.records.jobs import OfferedJob, Offers, SearchLimits
from fusionplan.tuner.records.ledger import Ledger, device_record
from fusionplan.tuner.search.graph_search import GraphSearch
from fusionplan.tuner.search.group_trials import Budget
from fusionplan.tuner.search.runoff import SharedSearch
from fusionplan.tuner.search.tuned_groups import Identity, Partition, Tasks
from sqlalchemy import create_engine, make_url
from tuner_fakes import FakeLab
from tuner_graphs import pointwise

GRAPH = pointwise(512, 1000)
TRIALS = 24
Offer = Callable[..., OfferedJob]


@pytest.fixture
def url(postgresql: Callable[[], str]) -> Iterator[str]:
    """A database of its own."""
    server, name = postgresql(), f"fusionplan_{uuid.uuid4().hex}"
    engine = create_engine(server, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    yield make_url(server).set(database=name).render_as_string(hide_password=False)
    with engine.connect() as connection:
        connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
    engine.dispose()


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """A head without a GPU, a node with two H200 that are none, and one with another GPU."""
    pytest.importorskip("ray", reason="Ray is not installed")
    from ray.cluster_utils import Cluster as Nodes

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    monkeypatch.setenv("FLEET_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("FLEET_SECONDS", "0.3")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    small = {"object_store_memory": 80 * 2**20, "include_dashboard": False}
    # Where nothing runs Ray starts no process for it, nor any that is to read its logs.
    alone = {"num_cpus": 0, "num_gpus": 0, "no_monitor": True, "include_log_monitor": False}
    nodes = Nodes(initialize_head=True, head_node_args=small | alone)
    try:
        for device, count in ((H200.name, 2), ("NVIDIA A100", 1)):
            own = {"num_cpus": count, "num_gpus": count, "env_vars": {"FLEET_DEVICE": device}}
            nodes.add_node(wait=False, **small, **own)
        nodes.wait_for_nodes()
        yield nodes
    finally:
        nodes.shutdown()


def log_of(tmp_path: Path) -> list[list[str]]:
    log = tmp_path / "log"
    return [line.split(maxsplit=1) for line in log.read_text().splitlines()] if log.exists() else []


def search(store: Store, lab: FakeLab) -> list[Partition]:
    """As a tune searches."""
    tasks = Tasks(GRAPH, H200)
    ledger = Ledger(store, H200.key, versions(), key(GRAPH))
    bench = SharedSearch(lab, ledger, Findings(), Silent())
    identity = Identity(key(GRAPH), H200.key, versions())
    found = GraphSearch(tasks, bench, identity, Budget(TRIALS, time.monotonic() + 120))
    found.run()
    return found.partitions.best(1)


def await_trials(count: int, folder: Path) -> None:
    end = time.monotonic() + 120
    while len(log_of(folder)) < count:
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.process
def test_a_cluster_shares_a_search(cluster: Any, url: str, tmp_path: Path):
    """One of two workers is killed in the midst of a trial: Ray starts another, nothing that was
    measured is measured again but what it was at, and the tune's choice is the fastest of all that
    the store has, whoever measured it."""
    told: list[str] = []
    with Store.open(url) as store, Offers(store, H200.key, versions()) as offers:
        store.put_device(device_record(H200))
        offers.offer(GRAPH, "g", SearchLimits(TRIALS, 0, 0), 300.0)
        with (
            Cluster.connected(cluster.address, open_site) as connected,
            connected.workers(store, offers.tune, told.append) as count,
        ):
            assert count == 2
            (refused,) = told
            assert "its device is NVIDIA H200, here it is NVIDIA A100" in refused
            await_trials(3, tmp_path)
            at = log_of(tmp_path)[-1]
            os.kill(int(at[0]), signal.SIGKILL)
            await_trials(TRIALS // 2, tmp_path)  # by the other, and by what Ray starts
            assert search(store, FakeLab(seconds_of))
            offers.close()
        assert told == [refused]
        (best,) = search(store, FakeLab(seconds_of))  # nobody adds a trial any more
        trials = store.trials(level="kernel", versions=versions())
    assert {trial.device_key for trial in trials} == {H200.key}
    times = Counter(text for _, text in log_of(tmp_path))
    assert {text for text, count in times.items() if count > 1} <= {at[1]}
    assert len({pid for pid, _ in log_of(tmp_path)}) >= 2
    assert len(trials) >= TRIALS
    (group,) = Tasks(GRAPH, H200).all(best.groups)
    found = [t.measured_s for t in trials if t.subject == group.group.key and t.measured_s]
    assert best.measured_s == pytest.approx(min(found), rel=0.01)  # what counts as equally fast


def test_nobody_answers(monkeypatch: pytest.MonkeyPatch):
    """Which is seen before Ray is asked: it would try for half a minute."""
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    monkeypatch.setattr(ray, "init", None)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(DeviceError, match=f"--ray {address}: no Ray cluster answers"):
            Cluster.connected(address).__enter__()


@pytest.mark.process
def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ExtraMissing, match=r"fusionplan\[fleet\]"):
        Cluster.connected("auto").__enter__()


@pytest.mark.parametrize(
    "place, said",
    [("other.db", "sees another store"), ("none.db", "does not reach the tune's store")],
)
def test_a_node_that_does_not_see_the_store_cannot_help(tmp_path: Path, place: str, said: str):
    """A path that is another file there, or none."""
    Store.open(tmp_path / "other.db").close()
    answer = probe_node(open_site, str(tmp_path / place), "tune")
    assert answer is not None
    assert said in answer


@pytest.mark.process
def test_a_node_with_the_right_gpu_can_help(store: Store, offers: Offers, offer: Offer):
    offer(GRAPH)
    assert probe_node(open_site, store.url, offers.tune) is None
