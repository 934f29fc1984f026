"""A lock on a file, for the threads of many processes, that nobody waits for in vain."""

from __future__ import annotations

import fcntl
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class FairLock:
    """Held by one thread of one process, as often as it likes.

    Who lets go of a file's lock and asks for it again at once has it before those who waited are
    awake. So whoever waits for the lock holds a second one, of the next, which all others have to
    take before: one that comes back stands behind those who wait. A process that is forked while it
    is open needs one of its own: the two would not keep each other away.
    """

    def __init__(self, path: Path) -> None:
        flags = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC
        self._file = os.open(path, flags, 0o600)
        self._next = os.open(path.with_name(f"{path.name}.next"), flags, 0o600)
        weakref.finalize(self, _close, self._file, self._next)
        self._own, self._next_own = threading.Lock(), threading.Lock()
        self._holder, self._count = 0, 0

    @property
    def is_mine(self) -> bool:
        """Whether this thread holds it."""
        return self._holder == threading.get_ident()

    def __enter__(self) -> None:
        if not self.is_mine:
            self._take()
        self._count += 1

    def __exit__(self, *error: object) -> None:
        self._count -= 1
        if not self._count:
            self._release()

    @contextmanager
    def let_go(self) -> Iterator[None]:
        """In the block this thread does not hold it, however often it took it before."""
        if not self.is_mine:
            yield
            return
        count, self._count = self._count, 0
        self._release()
        try:
            yield
        finally:
            self._take()
            self._count = count

    def _take(self) -> None:
        with self._next_own:
            self._own.acquire()
            try:
                fcntl.flock(self._next, fcntl.LOCK_EX)
                try:
                    fcntl.flock(self._file, fcntl.LOCK_EX)
                finally:
                    fcntl.flock(self._next, fcntl.LOCK_UN)
            except BaseException:
                self._own.release()
                raise
        self._holder = threading.get_ident()

    def _release(self) -> None:
        self._holder = 0
        fcntl.flock(self._file, fcntl.LOCK_UN)
        self._own.release()


def _close(*files: int) -> None:
    for file in files:
        os.close(file)
