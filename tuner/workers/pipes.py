"""The two pipes of a worker process, at both ends. The worker ends when its parent does."""

from __future__ import annotations

import ctypes
import os
import queue
import select
import signal
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from ..trial.wire import decode, encode
from .processes import Process

_PR_SET_PDEATHSIG = 1
_LONGEST_LINE = 1 << 28
"""Bytes; what prints more without a line's end sends no message."""


class LinePipe:
    """The parent's end: lines to and from a process that may be stopped, or print without end.
    Neither `send` nor `next` waits beyond its deadline on `time.monotonic`."""

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._in, self._out = process.stdin.fileno(), process.stdout.fileno()
        os.set_blocking(self._in, False)
        self._parts: list[bytes] = []
        self._size = 0
        self._rest = b""

    def send(self, data: bytes, deadline: float) -> bool:
        """Whether all of it was taken in time. Raises BrokenPipeError."""
        view = memoryview(data)
        while view:
            if not _wait(self._in, select.POLLOUT, deadline):
                return False
            view = view[os.write(self._in, view) :]
        return True

    def next(self, deadline: float) -> bytes | None:
        """The next line; b"" when the deadline came first, None when the pipe ended."""
        while b"\n" not in self._rest:
            if not _wait(self._out, select.POLLIN | select.POLLHUP, deadline):
                return b""
            chunk = os.read(self._out, 1 << 16)
            if not chunk or self._size > _LONGEST_LINE:
                return None
            self._parts.append(chunk)
            self._size += len(chunk)
            if b"\n" in chunk:
                self._rest, self._parts, self._size = b"".join(self._parts), [], 0
        line, _, rest = self._rest.partition(b"\n")
        self._rest = rest
        if rest and b"\n" not in rest:
            self._rest, self._parts, self._size = b"", [rest], len(rest)
        return line or b" "


def _wait(file: int, events: int, deadline: float) -> bool:
    poll = select.poll()
    poll.register(file, events)
    left = deadline - time.monotonic()
    return left > 0 and bool(poll.poll(min(left, 3600) * 1e3))


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
