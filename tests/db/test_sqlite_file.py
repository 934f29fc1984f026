"""Files in every state: damaged, foreign, read-only, locked, full, on a network."""

import os
import random
import shutil
import sqlite3
from contextlib import closing

import pytest
from fusionplan.db import (
    Store,
    StoreCorrupt,
    StoreError,
    StoreReadOnly,
    StoreUnavailable,
    engine,
    sqlite_file,
)


@pytest.fixture(scope="session")
def template(tmp_path_factory, fill, plan, trial):
    path = tmp_path_factory.mktemp("template") / "plans.db"
    with Store.open(path) as store:
        fill(store).save_plan(plan())
        for number in range(50):
            store.add_trial(trial(number))
    return path


@pytest.fixture
def filled(template, path):
    """A closed store with one plan and some trials."""
    shutil.copy(template, path)
    return path


def journal_mode(path):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("PRAGMA journal_mode").fetchone()[0]


def overwrite(path, old, new):
    data = path.read_bytes()
    assert data.count(old) == 1
    path.write_bytes(data.replace(old, new))


# Damage


def damaged(kind, data):
    match kind:
        case "garbage":
            return os.urandom(8192)
        case "text":
            return b"plans: none\n"
        case "header":
            return data[:60]
        case "first page":
            return data[:4096]
        case "half":
            return data[: len(data) // 8192 * 4096]
        case "ragged":
            return data[:-100]
        case "page overwritten":
            return data[:4096] + b"\xff" * 4096 + data[8192:]


KINDS = ["garbage", "text", "header", "first page", "half", "ragged", "page overwritten"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("read_only", [False, True])
def test_a_damaged_file_is_left_untouched(filled, kind, read_only):
    data = damaged(kind, filled.read_bytes())
    filled.write_bytes(data)
    with pytest.raises(StoreCorrupt, match="damaged") as caught:
        Store.open(filled, read_only=read_only)
    assert str(filled) in str(caught.value)
    assert filled.read_bytes() == data


def test_one_changed_byte_in_a_payload_is_found(filled, plan, graph, device):
    overwrite(filled, b"abcdefgh", b"abcdeFgh")
    data = filled.read_bytes()
    with Store.open(filled) as store:
        with pytest.raises(StoreCorrupt, match="table plan, key c0ffee01"):
            store.plan(graph.key, device.key, plan().versions)
        assert ["c0ffee01" in problem for problem in store.problems()] == [True]
        assert len(store.trials()) == 50
    assert filled.read_bytes() == data


def test_a_byte_that_is_no_text_is_found_too(filled):
    overwrite(filled, b"abcdefgh", b"abcd\xffxgh")
    with (
        Store.open(filled, read_only=True) as store,
        pytest.raises(StoreCorrupt, match="table plan, key c0ffee01"),
    ):
        store.plans()


@pytest.mark.slow
def test_whatever_bit_changes_the_error_is_ours(filled, plan, graph, device):
    """Random damage is found or harmless; no other exception, and no write, comes of it."""
    sound = filled.read_bytes()
    used = [place for place, byte in enumerate(sound) if byte]
    dice = random.Random(7)
    refusals = 0
    for _ in range(120):
        data = bytearray(sound)
        data[dice.choice(used)] ^= 1 << dice.randrange(8)
        filled.write_bytes(data)
        try:
            with Store.open(filled, read_only=True) as store:
                store.problems()
                for read in (store.trials, store.studies, store.plans, store.devices):
                    read()
                assert store.plan(graph.key, device.key, plan().versions) in (plan(), None)
        except StoreError:
            refusals += 1
        assert filled.read_bytes() == data
        for end in ("-wal", "-shm"):
            filled.with_name(filled.name + end).unlink(missing_ok=True)
    assert refusals > 10


def test_a_reference_to_nothing_is_a_problem(filled):
    with closing(sqlite3.connect(filled)) as connection:
        connection.execute("DELETE FROM device")
        connection.commit()
    with Store.open(filled) as store:
        problems = store.problems()
    assert any("table plan" in problem and "missing device" in problem for problem in problems)


def test_damage_during_use_is_told(filled):
    with Store.open(filled) as store:
        filled.write_bytes(b"\xff" * filled.stat().st_size)
        with pytest.raises(StoreCorrupt):
            store.trials()


def test_an_interrupted_transaction_is_rolled_back_by_a_writer(filled, tmp_path):
    with closing(sqlite3.connect(filled, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("PRAGMA cache_size = 5")  # so that the change spills to the file
        connection.execute("BEGIN")
        connection.execute("UPDATE trial SET study = study || 'x', reason = hex(zeroblob(4000))")
        copy = tmp_path / "copy.db"
        shutil.copy(filled, copy)
        shutil.copy(f"{filled}-journal", f"{copy}-journal")
        connection.execute("ROLLBACK")
    with pytest.raises((StoreReadOnly, StoreUnavailable)):
        Store.open(copy, read_only=True)
    with Store.open(copy) as store:
        assert {trial.study for trial in store.trials()} == {"config"}
        assert store.problems() == []


# Read-only places


@pytest.mark.process
def test_a_read_only_folder(filled, frozen_folder, plan, trial):
    """The file is in WAL mode, and SQLite cannot put its shared memory beside it."""
    frozen_folder(filled.parent)
    names = sorted(os.listdir(filled.parent))
    with pytest.raises(StoreReadOnly):
        Store.open(filled)
    with Store.open(filled, read_only=True) as store:
        assert store.plans() == [plan()]
        assert len(store.trials()) == 50
        assert store.problems() == []
    assert sorted(os.listdir(filled.parent)) == names


@pytest.mark.process
def test_a_new_store_in_a_read_only_folder(tmp_path, frozen_folder):
    folder = tmp_path / "frozen"
    folder.mkdir()
    frozen_folder(folder)
    for path in (folder / "plans.db", folder / "deeper" / "plans.db"):
        with pytest.raises(StoreReadOnly):
            Store.open(path)


@pytest.mark.process
def test_a_log_in_a_read_only_folder_is_not_passed_over(filled, tmp_path, frozen_folder, trial):
    folder = tmp_path / "frozen"
    folder.mkdir()
    with Store.open(filled) as store:
        store.add_trial(trial(77))
        for end in ("", "-wal"):
            shutil.copy(f"{filled}{end}", f"{folder / 'plans.db'}{end}")
    frozen_folder(folder)
    with pytest.raises(StoreUnavailable, match="log beside it"):
        Store.open(folder / "plans.db", read_only=True)


def test_a_store_that_turns_read_only_during_use(filled, trial, monkeypatch):
    """SQLite's own refusal, as when the disk is remounted: the connection is read-only."""
    real = engine.connect
    monkeypatch.setattr(engine, "connect", lambda path, mode: real(path, "ro"))
    with Store.open(filled) as store, pytest.raises(StoreReadOnly, match="PLANNER_STORE"):
        store.add_trial(trial(99))


def test_reading_leaves_the_file_as_it_was(filled):
    data = filled.read_bytes()
    with Store.open(filled, read_only=True) as store:
        assert store.trials()
        assert store.studies()
    assert filled.read_bytes() == data


# Places that are no file


def test_a_folder_is_not_a_store(tmp_path):
    with pytest.raises(StoreUnavailable, match="is a folder"):
        Store.open(tmp_path)


def test_a_device_file_is_not_a_store():
    with pytest.raises(StoreUnavailable, match="not a regular file"):
        Store.open("/dev/null")


@pytest.mark.parametrize("parent", ["file", "proc"])
def test_a_folder_that_cannot_be_made(tmp_path, parent):
    (tmp_path / "file").touch()
    folder = tmp_path / "file" if parent == "file" else "/proc/fusionplan"
    with pytest.raises((StoreUnavailable, StoreReadOnly)):
        Store.open(f"{folder}/plans.db")


def test_an_empty_file_becomes_a_store(path):
    path.touch()
    with pytest.raises(StoreUnavailable):
        Store.open(path, create=False)
    assert path.stat().st_size == 0
    with Store.open(path) as store:
        assert store.problems() == []


def test_odd_names(tmp_path):
    path = tmp_path / "a folder?#%41" / "plans é&mode=ro.db"
    with Store.open(path) as store:
        assert store.location == str(path)
    assert path.is_file()
    with Store.open(store.url, create=False) as again:
        assert again.location == str(path)


# Contention and space


def test_a_lock_that_stays_is_told(filled, trial, monkeypatch):
    monkeypatch.setattr(engine, "BUSY_S", 0.05)
    with Store.open(filled) as store, closing(sqlite3.connect(filled)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="locked"):
            store.add_trial(trial(99))
        assert len(store.trials()) == 50  # readers do not wait for a writer
        other.rollback()
        store.add_trial(trial(99))


def test_a_full_disk_is_told(filled, trial, monkeypatch):
    real = engine.connect

    def small(path, mode):
        connection = real(path, mode)
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")
        return connection

    monkeypatch.setattr(engine, "connect", small)
    with Store.open(filled) as store:
        with pytest.raises(StoreUnavailable, match="disk is full") as caught:
            store.add_trial(trial(99, reason="x" * 100_000))
        assert caught.value.__cause__ is not None
        assert len(store.trials()) == 50


# Journals


def test_wal_on_a_local_disk(filled):
    assert journal_mode(filled) == "wal"


def test_no_wal_on_a_network(filled, trial, monkeypatch):
    monkeypatch.setattr(sqlite_file, "on_network", lambda path: True)
    with Store.open(filled) as store:
        store.add_trial(trial(99))
        with store._engine.connect() as connection:
            assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "delete"
            assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2
    assert not filled.with_name("plans.db-wal").exists()


def test_settings_of_a_connection(filled):
    with Store.open(filled) as store, store._engine.connect() as connection:
        for name, value in [("foreign_keys", 1), ("busy_timeout", 30_000), ("synchronous", 2)]:
            assert connection.exec_driver_sql(f"PRAGMA {name}").scalar() == value
