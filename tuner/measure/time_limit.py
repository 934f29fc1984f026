"""A block of code that ends after some seconds, wherever it is, as Ctrl-C would end it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

AGAIN_S = 5.0
"""Seconds after which the block is ended once more: code that ends nowhere swallows exceptions."""


class OutOfTime(BaseException):
    """The time of a block is over. Not an Exception, for compilers catch those and go on."""


_lock = threading.Lock()
_running = [False]
"""Whether a block is under way that `end_now` may end."""


def end_now() -> None:
    """End the block that is under way in the main thread, as if its time were over. May be called
    in any thread."""
    with _lock:
        if _running[0]:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)


@contextmanager
def stopped_after(seconds: float) -> Iterator[None]:
    """Raises OutOfTime in the block after so many seconds. Only in the main thread, and where
    nobody else uses the process's timer: elsewhere the block runs to its end."""
    before = signal.getsignal(signal.SIGALRM)
    free = signal.getitimer(signal.ITIMER_REAL)[0] == 0 and before is signal.SIG_DFL
    if threading.current_thread() is not threading.main_thread() or not free:
        yield
        return

    def stop(number: int, frame: Any) -> None:
        raise OutOfTime

    signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-3), AGAIN_S)
        _running[0] = True
        yield
    finally:
        with _lock:  # Once the handler is gone the signal would end the process.
            _running[0] = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
