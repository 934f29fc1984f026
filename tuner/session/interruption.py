"""Remembers that Ctrl-C was pressed in a tune, so that it ends with its best result so far."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def interruption() -> Iterator[threading.Event]:
    """Set once Ctrl-C was pressed. A search answers it by ending early with what it has, so the
    exception alone does not tell those who wait for its result."""
    pressed = threading.Event()
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield pressed
        return

    def handle(number: int, frame: Any) -> None:
        pressed.set()
        before(number, frame)

    signal.signal(signal.SIGINT, handle)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, before)
