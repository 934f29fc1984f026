"""A lock on a file that nobody waits for in vain."""

from __future__ import annotations

import fcntl
import multiprocessing
import threading
import time
from pathlib import Path

import pytest
from fusionplan.tuner.measure.fair_lock import FairLock
from locked_files import is_free

LONG_S = 30.0


def greedy_process(path: Path, ready, over) -> None:
    greedy(FairLock(path), ready, over)


def greedy(lock: FairLock, ready, over) -> None:
    """Has the lock nearly always: it takes it again as soon as it has let it go."""
    while not over.is_set():
        with lock:
            ready.set()
            time.sleep(0.002)


def times_of_waiting(lock: FairLock, count: int = 5) -> list[float]:
    found = []
    for _ in range(count):
        began = time.monotonic()
        with lock:
            found.append(time.monotonic() - began)
    return found


@pytest.mark.process
def test_a_process_that_comes_back_at_once_stands_behind_those_who_wait(tmp_path: Path):
    context = multiprocessing.get_context("fork")
    ready, over = context.Event(), context.Event()
    other = context.Process(target=greedy_process, args=(tmp_path / "lock", ready, over))
    other.start()
    try:
        assert ready.wait(LONG_S)
        assert max(times_of_waiting(FairLock(tmp_path / "lock"))) < 0.5
    finally:
        over.set()
        other.join(LONG_S)
    assert other.exitcode == 0


def test_a_thread_that_comes_back_at_once_stands_behind_those_who_wait(tmp_path: Path):
    lock, ready, over = FairLock(tmp_path / "lock"), threading.Event(), threading.Event()
    other = threading.Thread(target=greedy, args=(lock, ready, over))
    other.start()
    try:
        assert ready.wait(LONG_S)
        assert max(times_of_waiting(lock)) < 0.5
    finally:
        over.set()
        other.join(LONG_S)


def test_it_is_free_when_it_was_let_go_as_often_as_it_was_taken(tmp_path: Path):
    path = tmp_path / "lock"
    lock = FairLock(path)
    assert not lock.is_mine
    with lock:
        with lock:
            assert lock.is_mine
        assert not is_free(path)
    assert is_free(path)
    assert not lock.is_mine


def test_in_a_block_it_is_let_go_and_then_taken_as_often_as_before(tmp_path: Path):
    path = tmp_path / "lock"
    lock = FairLock(path)
    with lock, lock:
        with lock.let_go():
            assert is_free(path)
            with lock:
                assert not is_free(path)
            assert is_free(path)
        assert not is_free(path)
    assert is_free(path)
    with lock.let_go():  # it does not hold it
        assert is_free(path)
    assert is_free(path)


def test_an_error_while_it_waits_leaves_it_to_others(tmp_path: Path, monkeypatch):
    lock = FairLock(tmp_path / "lock")

    def interrupted(file: int, how: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", interrupted)
        with pytest.raises(KeyboardInterrupt), lock:
            pytest.fail("it was taken")
    with lock:
        assert lock.is_mine
