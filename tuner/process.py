"""A worker process's two pipes, and that it never outlives its parent."""

from __future__ import annotations

import ctypes
import os
import queue
import signal
import sys
import threading
from collections.abc import Mapping
from typing import Any

from .wire import decode, encode

_PR_SET_PDEATHSIG = 1


class Pipe:
    """Messages from and to the parent. Whatever else writes to stdout goes to stderr.

    When the parent closes its end, or dies, the process exits at once, whatever it is doing.
    """

    def __init__(self) -> None:
        self._out = os.dup(1)
        os.dup2(2, 1)
        sys.stdout = sys.stderr
        self._requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def receive(self) -> dict[str, Any]:
        """The next request; waits for it."""
        return self._requests.get()

    def send(self, message: Mapping[str, Any]) -> None:
        data = encode(message)
        while data:
            data = data[os.write(self._out, data) :]

    def _read(self) -> None:
        for line in sys.stdin.buffer:
            self._requests.put(decode(line))
        os._exit(0)


def die_with_parent() -> None:
    """Ask the kernel for SIGKILL when the parent dies: a compiler that holds the interpreter's
    lock keeps the thread that watches stdin from running. Elsewhere than on Linux, nothing."""
    if not sys.platform.startswith("linux"):
        return
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the call
        os._exit(0)
