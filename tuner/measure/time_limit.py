"""Ends a block of code after some seconds, wherever it is, as Ctrl-C would."""

from __future__ import annotations

import math
import signal
import threading
import time
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
    """Raises OutOfTime in the block after so many seconds; a block inside it ends by the time of
    either. Only in the main thread, and where nobody else uses the process's timer: elsewhere the
    block runs to its end."""
    before = signal.getsignal(signal.SIGALRM)
    free = signal.getitimer(signal.ITIMER_REAL)[0] == 0 and before is signal.SIG_DFL
    main = threading.current_thread() is threading.main_thread()
    if not main or math.isinf(seconds) or not (free or before is _stop):
        yield
        return
    until = time.monotonic() + seconds
    signal.signal(signal.SIGALRM, _stop)
    try:
        _ends.append(until)
        _set_timer()
        with _lock:
            _running[0] = True
        yield
    finally:
        with _lock:  # Once the handler is gone the signal would end the process.
            _running[0] = len(_ends) > 1
        _ends.remove(until)
        if _ends:
            _set_timer()
        else:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


_ends: list[float] = []
"""The times at which the blocks under way end, on `time.monotonic`."""


def _stop(number: int, frame: Any) -> None:
    raise OutOfTime


def _set_timer() -> None:
    left = min(_ends) - time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, max(left, 1e-3), AGAIN_S)
