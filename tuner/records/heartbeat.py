"""A thread that says again and again that this tuner is alive, while the tuner waits for others."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Heartbeat:
    """Calls `beat` every so many seconds between `start` and `stop`. Starting twice is fine."""

    def __init__(self, beat: Callable[[], None], every_s: float) -> None:
        self._beat, self._every_s = beat, every_s
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> bool:
        """Whether it was not under way before."""
        if self._thread is not None:
            return False
        self._over.clear()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()
        return True

    def stop(self) -> None:
        """No call is under way any more when this returns."""
        if self._thread is not None:
            self._over.set()
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while not self._over.wait(self._every_s):
            self._beat()
