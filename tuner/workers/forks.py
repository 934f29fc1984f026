"""Workers forked from one process that has imported torch (see `fork_server`): each starts in
milliseconds. A Python process that imports torch by itself takes ten seconds of a slow core, and a
tune has some twenty.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any

from .fork_server import OWN_ENVIRONMENT, STREAMS, receive_message, send
from .processes import Fork, Process, child_environment, worker_log

log = logging.getLogger(__name__)

LOOK_S = 0.1
"""Seconds between looks at whether a process that is to start is still wanted."""

WAITS_S = 40.0
"""Seconds after which a worker is not waited for, but started by itself: the server may hang."""

TELLS_S = 0.5
"""Seconds in which the server says how a process has ended; while it imports it says nothing."""

LEAST_PROCESSES = 4
"""Of a tune, from which a server pays: it imports what not every one of them needs."""


@dataclass(frozen=True, slots=True)
class WorkerProgram:
    """`main` of a module of ours with arguments, as `python -m` runs it. imports: what the server
    imports first, once; rank: those of a lower one are started before others."""

    module: str
    arguments: Sequence[str] = ()
    imports: Sequence[str] = ()
    rank: int = 0
    politeness: int = 0
    """By how much it stands back for others, with all that it starts."""

    @property
    def command(self) -> list[str]:
        """The command that starts it with this interpreter. -P: the current folder is the user's,
        and its modules are not to be found before ours."""
        return [sys.executable, "-P", "-m", self.module, *self.arguments]


def forking(forks: Forks | None, program: WorkerProgram) -> Fork | None:
    """The function by which a role starts its processes, if there is a server that forks them."""
    return None if forks is None else partial(forks.start, program)


class Forked:
    """A process that the server has forked, as a `Process`."""

    def __init__(self, pid: int, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        self.pid, self.stdin, self.stdout = pid, stdin, stdout
        self._over = threading.Event()
        self._code = -signal.SIGKILL

    def end(self, code: int) -> None:
        """It has ended, as the server says."""
        self._code = code
        self._over.set()

    def poll(self) -> int | None:
        if not self._over.is_set() and _is_alive(self.pid):
            return None
        self._over.wait(TELLS_S)
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        until = time.monotonic() + (float("inf") if timeout is None else timeout)
        while (code := self.poll()) is None:
            left = until - time.monotonic()
            if left <= 0:
                raise subprocess.TimeoutExpired("a forked worker", timeout or 0.0)
            self._over.wait(min(left, LOOK_S))
        return code


@dataclass(slots=True)
class _Asked:
    """A request to the server. over: it was answered, or the server is gone."""

    streams: tuple[IO[bytes], IO[bytes]]
    over: threading.Event = field(default_factory=threading.Event)
    given_up: bool = False
    made: Forked | None = None


class Forks:
    """The server, as its parent has it. Its workers end with it, and it ends with this process."""

    def __init__(self) -> None:
        """Raises OSError where there can be no such process."""
        own, its = socket.socketpair()
        environment = child_environment() | OWN_ENVIRONMENT
        environment.pop("TRITON_INTERPRET", None)
        self._log = worker_log()
        with its:
            self._server = subprocess.Popen(
                [sys.executable, "-P", "-m", f"{__package__}.fork_server", str(its.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                env=environment,
                pass_fds=[its.fileno()],
                start_new_session=True,
            )
        self._socket, self._sending = own, threading.Lock()
        self._asked: dict[int, _Asked] = {}
        self._running: dict[int, Forked] = {}
        self._lock, self._gone = threading.Lock(), False
        self._numbers = itertools.count()
        self._reader = threading.Thread(target=self._read, name="forks", daemon=True)
        self._reader.start()

    @staticmethod
    def opened(processes: int) -> Forks | None:
        """A server for a tune of so many processes; None where each is to start by itself."""
        if processes < LEAST_PROCESSES or not sys.platform.startswith("linux"):
            return None
        try:
            return Forks()
        except OSError as error:
            log.debug("workers are not forked: %s", error)
            return None

    def start(
        self,
        program: WorkerProgram,
        environment: Mapping[str, str],
        log_to: IO[bytes],
        is_over: Callable[[], bool] = lambda: False,
    ) -> Process | None:
        """A process that runs the program; None where it is to start by itself, or nobody wants it
        any more. Waits until the server has imported what it needs."""
        if self._gone or environment.get("TRITON_INTERPRET") or is_over():
            return None
        (its_in, in_), (out, its_out) = os.pipe(), os.pipe()
        streams = os.fdopen(in_, "wb", 0), os.fdopen(out, "rb", 0)
        asked, number = _Asked(streams), next(self._numbers)
        with self._lock:
            self._asked[number] = asked
        message = {
            "number": number,
            "module": program.module,
            "arguments": list(program.arguments),
            "imports": list(program.imports),
            "rank": program.rank,
            "politeness": program.politeness,
            "environment": dict(environment),
        }
        files = (its_in, its_out, log_to.fileno())
        assert len(files) == STREAMS
        try:
            with self._sending:
                send(self._socket, message, files)
        except OSError:
            asked.over.set()
        finally:
            os.close(its_in)
            os.close(its_out)
        until = time.monotonic() + WAITS_S
        while not asked.over.wait(LOOK_S) and time.monotonic() < until:
            if is_over():
                break
        return self._taken(number, asked)

    def _taken(self, number: int, asked: _Asked) -> Forked | None:
        with self._lock:
            asked.given_up = asked.made is None
            if asked.over.is_set():
                self._asked.pop(number, None)
        if asked.made is None:
            for stream in asked.streams:
                stream.close()
        return asked.made

    def _read(self) -> None:
        """What the server says, until it is gone; its workers are gone then, too."""
        with contextlib.suppress(OSError, ValueError):
            while (message := receive_message(self._socket)) is not None:
                self._take(message)
        with self._lock:
            self._gone = True
            for forked in self._running.values():
                forked.end(-signal.SIGKILL)
            for asked in self._asked.values():
                asked.over.set()
            self._running.clear()

    def _take(self, message: Mapping[str, Any]) -> None:
        with self._lock:
            if "code" in message:
                forked = self._running.pop(message["pid"], None)
                if forked is not None:
                    forked.end(message["code"])
                return
            asked = self._asked[message["request"]]
            if "failed" in message:
                log.debug("a worker is not forked: %s", message["failed"])
            elif asked.given_up:
                with contextlib.suppress(OSError):
                    os.killpg(message["pid"], signal.SIGKILL)
            else:
                asked.made = Forked(message["pid"], *asked.streams)
                self._running[message["pid"]] = asked.made
            asked.over.set()
            if asked.given_up:
                del self._asked[message["request"]]

    def close(self) -> None:
        """End the server, and with it what it has forked. Closing twice is fine."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._server.kill()
        self._server.wait()
        self._reader.join()
        self._socket.close()
        self._log.close()


def _is_alive(pid: int) -> bool:
    """Whether a process runs: one that has ended is there until the server has looked."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"
