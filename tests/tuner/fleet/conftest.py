"""A store with a device, and jobs in it; `fleet_sites` importable here and in worker processes."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fusionplan.db import Store
from fusionplan.planner.graph.graph import Graph
from fusionplan.planner.versions import versions
from fusionplan.tuner.records.jobs import OfferedJob, Offers, SearchLimits
from fusionplan.tuner.records.ledger import device_record

sys.path.insert(0, str(Path(__file__).parent))

from fleet_sites import H200

Offer = Callable[..., OfferedJob]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    with Store.open(tmp_path / "plans.db") as store:
        store.put_device(device_record(H200))
    return tmp_path / "plans.db"


@pytest.fixture
def store(place: Path) -> Iterator[Store]:
    with Store.open(place) as opened:
        yield opened


@pytest.fixture
def offers(store: Store) -> Iterator[Offers]:
    with Offers(store, H200.key, versions()) as opened:
        yield opened


@pytest.fixture
def offer(offers: Offers) -> Offer:
    """Opens a job for a graph."""

    def give(graph: Graph, trials: int = 8, name: str = "g", seconds: float = 60.0) -> OfferedJob:
        return offers.offer(graph, name, SearchLimits(trials, 0, 0), seconds)

    return give


@pytest.fixture
def workers_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that are started import what this one can."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
