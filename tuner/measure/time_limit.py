"""Ends a block of code after some seconds, wherever it is, as Ctrl-C would."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from types import FrameType

AGAIN_S = 5.0
"""Seconds after which the block is ended once more: code that ends nowhere swallows exceptions."""

SOON_S = 1e-3
"""Seconds after which it is tried again where the code must not be left half done,"""

PATIENT_S = 1.0
"""and seconds after which that is no longer asked."""

UNINTERRUPTED = frozenset({"__enter__", "__exit__", "__del__"})
"""Methods that run to their end: torch's modes and settings, which a context puts in place, would
outlive it, and what `__del__` raises is lost."""


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
        _asked.clear()
        if _ends:
            _set_timer()
        else:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


_ends: list[float] = []
"""The times at which the blocks under way end, on `time.monotonic`."""


_asked: list[float] = []
"""When the block was first to end, while it cannot be left where it is."""


def _stop(number: int, frame: FrameType | None) -> None:
    """The handler of the timer's signal. frame: where the signal came."""
    now = time.monotonic()
    if _is_within(UNINTERRUPTED, frame) and now - (_asked or [now])[0] < PATIENT_S:
        if not _asked:
            _asked.append(now)
        signal.setitimer(signal.ITIMER_REAL, SOON_S, AGAIN_S)
        return
    _asked.clear()
    raise OutOfTime


def _is_within(names: Collection[str], frame: FrameType | None) -> bool:
    """Whether a function of such a name is under way."""
    while frame is not None:
        if frame.f_code.co_name in names:
            return True
        frame = frame.f_back
    return False


def _set_timer() -> None:
    left = min(_ends) - time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, max(left, 1e-3), AGAIN_S)
