"""Stores kept open for look-ups at run time: quick, and no hindrance in any state of theirs."""

import gc
import os
import sqlite3
import time
import weakref
from contextlib import closing
from pathlib import Path

import pytest
from fusionplan.db import Store, StoreError, StoreUnavailable, engine, readers
from fusionplan.db.readers import failed, reader


@pytest.fixture
def filled(path, fill, plan):
    with Store.open(path) as store:
        fill(store).save_plan(plan())
    return path


def found(path, plan):
    wanted = plan()
    return reader(path).plan(wanted.graph_key, wanted.device_key, wanted.versions)


def test_a_store_is_opened_once_and_sees_what_is_written_later(filled, plan):
    assert found(filled, plan) == plan()
    assert reader(filled) is reader(str(filled))
    with Store.open(filled) as store:
        store.save_plan(plan(name="anew"))
    assert found(filled, plan).name == "anew"


def test_a_file_that_was_replaced_is_opened_again(filled, plan, tmp_path, fill):
    assert found(filled, plan) is not None
    with Store.open(tmp_path / "other.db") as other:
        fill(other)
    os.replace(tmp_path / "other.db", filled)
    for end in ("-wal", "-shm"):
        filled.with_name(filled.name + end).unlink(missing_ok=True)
    assert found(filled, plan) is None


def test_a_store_that_comes_later_is_found_at_once(path, fill, plan):
    with pytest.raises(StoreUnavailable, match="no store"):
        reader(path)
    with Store.open(path) as store:
        fill(store).save_plan(plan())
    assert found(path, plan) == plan()


def test_what_failed_is_not_asked_again_for_a_while(filled, plan, monkeypatch):
    failed(filled, StoreUnavailable("it stayed locked"))
    for _ in range(3):
        with pytest.raises(StoreUnavailable, match="it stayed locked"):
            reader(filled)
    monkeypatch.setattr(readers, "AGAIN_S", 0.0)
    assert found(filled, plan) == plan()


def test_a_locked_store_is_waited_for_once_and_briefly(filled, plan, monkeypatch):
    """In WAL mode only what takes the whole file keeps readers out."""
    monkeypatch.setattr(engine, "READ_BUSY_S", 0.2)
    with closing(sqlite3.connect(filled, isolation_level=None)) as other:
        other.execute("PRAGMA journal_mode = DELETE")
        other.execute("BEGIN EXCLUSIVE")
        begin = time.monotonic()
        for _ in range(100):  # the graphs of a model
            with pytest.raises(StoreError) as caught:
                found(filled, plan)
            failed(filled, caught.value)
        assert time.monotonic() - begin < 10.0  # 20 where each waits


def test_few_stores_are_kept(tmp_path, fill):
    for number in range(readers.MOST + 3):
        path = tmp_path / f"{number}.db"
        Store.open(path).close()
        reader(path)
    assert len(readers._KEPT) <= readers.MOST


def test_a_child_opens_its_own(filled, plan):
    ours = reader(filled)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        theirs = reader(filled)
        os.write(write, b"y" if theirs is not ours and found(filled, plan) == plan() else b"n")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 1) == b"y"
    assert reader(filled) is ours


def test_no_home_folder_is_no_crash(monkeypatch):
    monkeypatch.delenv("PLANNER_STORE", raising=False)
    for folder in ("XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(folder, raising=False)

    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(StoreUnavailable, match=r"home folder.*PLANNER_STORE"):
        reader()


def test_reading_does_not_check_the_whole_file(filled, monkeypatch):
    monkeypatch.setattr("fusionplan.db.sqlite_file.sound", lambda connection: "asked")
    reader(filled)
    with pytest.raises(StoreError, match="asked"):
        Store.open(filled)


class Result:
    """Stands for a tensor of the user's own."""


def in_vain(store):
    """Asks for a store that is not there, as a model's graph does, while there is a result."""
    result = Result()
    try:
        reader(store)
    except StoreError as error:
        failed(store, error)
    return weakref.ref(result)


def test_a_store_that_fails_keeps_nothing_of_who_asked(path, young):
    for _ in range(3):
        result = in_vain(path)
        gc.collect()
        assert result() is None
