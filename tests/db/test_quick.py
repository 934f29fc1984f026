"""A plan read without SQLAlchemy: the same as the store gives, or none."""

import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from fusionplan.db import DeviceRecord, GraphRecord, PlanRecord, Store
from fusionplan.db.quick import quick_plan

VERSIONS = {"torch": "2.11.0", "codegen": "1"}
ASKED = ("graph", "device", VERSIONS)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "plans.db"
    with Store.open(path) as store:
        store.put_device(DeviceRecord("device", "NVIDIA H200", 132, 1, "90", {}))
        store.put_graph(GraphRecord("graph", "graph", 1, {}))
        store.save_plan(
            PlanRecord(
                key="plan",
                graph_key="graph",
                device_key="device",
                versions=VERSIONS,
                name="plan",
                evidence="measured",
                payload={"groups": [1, 2.5, None, "ü"]},
                speedup=1.25,
                bucket_key="bucket",
            )
        )
    return path


def changed(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)


def test_it_is_the_plan_of_the_store(path: Path):
    with Store.open(path, read_only=True) as store:
        wanted = store.plan(*ASKED)
    assert wanted is not None
    assert quick_plan(path, *ASKED) == wanted
    assert quick_plan(str(path), *ASKED) == wanted


def test_the_store_that_is_meant_where_none_is_named(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PLANNER_STORE", str(path))
    assert quick_plan(None, *ASKED) is not None
    monkeypatch.setenv("PLANNER_STORE", f"sqlite:///{path}")
    assert quick_plan(None, *ASKED) is None


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE plan SET payload = '{}'",
        "UPDATE plan SET versions = '{}'",
        "UPDATE plan SET payload = x'ff'",
        "UPDATE plan SET created_at = 'yesterday'",
        "UPDATE fusionplan_version SET version_num = '9999'",
        "DELETE FROM fusionplan_version",
        "DELETE FROM plan",
        "DROP TABLE plan",
    ],
)
def test_what_is_not_whole_is_left_to_the_store(path: Path, statement: str):
    changed(path, statement)
    assert quick_plan(path, *ASKED) is None


def test_others_are_not_found(path: Path):
    assert quick_plan(path, "other", "device", VERSIONS) is None
    assert quick_plan(path, "graph", "other", VERSIONS) is None
    assert quick_plan(path, "graph", "device", {"torch": "2.12.0"}) is None
    assert quick_plan(path.with_name("none.db"), *ASKED) is None
    assert quick_plan(path.parent, *ASKED) is None
    path.write_bytes(b"no database")
    assert quick_plan(path, *ASKED) is None


def test_a_locked_store_is_not_waited_for(path: Path):
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("BEGIN EXCLUSIVE")
        connection.execute("DELETE FROM plan")
        begin = time.monotonic()
        quick_plan(path, *ASKED)
        assert time.monotonic() - begin < 4.0  # SQLite's own patience is five seconds


@pytest.mark.process
def test_it_does_without_sqlalchemy(path: Path):
    code = (
        "import sys; from fusionplan.db.quick import quick_plan; "
        f"assert quick_plan({str(path)!r}, 'graph', 'device', {VERSIONS!r}); "
        "assert 'sqlalchemy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-P", "-c", code], check=True)
