"""Back ends for the store's contract, sample records, and writers in processes of their own."""

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fusionplan.db import DeviceRecord, GraphRecord, KernelRecord, PlanRecord, Store, TrialRecord
from sqlalchemy import create_engine, make_url

VERSIONS = {"torch": "2.11.0", "triton": "3.6.0", "cuda": "13.0", "codegen": "1"}
START = datetime(2025, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "plans.db"


@pytest.fixture(params=["sqlite", "postgresql"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty place of each kind, gone after the test."""
    if request.param == "sqlite":
        yield str(tmp_path / "plans.db")
        return
    server = request.getfixturevalue("postgresql")()
    name = f"fusionplan_{uuid.uuid4().hex}"
    engine = create_engine(server, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    yield make_url(server).set(database=name).render_as_string(hide_password=False)
    with engine.connect() as connection:
        connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
    engine.dispose()


@pytest.fixture(scope="session")
def device() -> DeviceRecord:
    return DeviceRecord("dev-1", "NVIDIA H200", 132, 151_000_000_000, "9.0", {"hbm": [4.2e12, 1]})


@pytest.fixture(scope="session")
def graph() -> GraphRecord:
    return GraphRecord(
        "graph-1", "gelu \u00e9\u4e2d", 7, {"nodes": [{"op": "aten.mul"}], "é": None}
    )


@pytest.fixture(scope="session")
def kernel(graph: GraphRecord) -> KernelRecord:
    return KernelRecord("kernel-1", graph.key, "pointwise", {"shape": [1, 127], "dtype": "bf16"})


@pytest.fixture(scope="session")
def trial(device: DeviceRecord, kernel: KernelRecord) -> Callable[..., TrialRecord]:
    def build(number: int = 0, **changes: Any) -> TrialRecord:
        values: dict[str, Any] = {
            "study": "config",
            "level": "kernel",
            "subject": kernel.key,
            "device_key": device.key,
            "versions": VERSIONS,
            "config": {"BLOCK_M": number, "num_warps": 4},
            "outcome": "timed",
            "timing": "cold",
            "measured_s": 1e-3 / (1 + number),
            "created_at": START + timedelta(seconds=number),
        }
        return TrialRecord(**(values | changes))

    return build


@pytest.fixture(scope="session")
def plan(device: DeviceRecord, graph: GraphRecord) -> Callable[..., PlanRecord]:
    def build(**changes: Any) -> PlanRecord:
        values: dict[str, Any] = {
            "key": "c0ffee01",
            "graph_key": graph.key,
            "device_key": device.key,
            "versions": VERSIONS,
            "name": "bert",
            "evidence": "measured",
            "speedup": 1.25,
            "payload": {"groups": [{"lowering": "triton", "marker": "abcdefgh"}]},
            "created_at": START,
            "updated_at": START,
        }
        return PlanRecord(**(values | changes))

    return build


@pytest.fixture(scope="session")
def fill(
    device: DeviceRecord, graph: GraphRecord, kernel: KernelRecord
) -> Callable[[Store], Store]:
    """Puts the device, the graph and the kernel that the sample trials and plans name."""

    def put(store: Store) -> Store:
        store.put_device(device)
        store.put_graph(graph)
        store.put_kernel(kernel)
        return store

    return put


@pytest.fixture
def store(location: str, fill: Callable[[Store], Store]) -> Iterator[Store]:
    with Store.open(location) as opened:
        yield fill(opened)


@pytest.fixture
def start_writer() -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Starts tests/db/writer.py; what still runs when the test ends is killed."""
    started: list[subprocess.Popen[str]] = []

    def start(location: str, first: int, count: int) -> "subprocess.Popen[str]":
        script = Path(__file__).with_name("writer.py")
        process = subprocess.Popen(
            [sys.executable, str(script), location, str(first), str(count)],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
