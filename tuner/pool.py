"""Worker processes with time limits: a hang or a crash costs one request, never the others.

One thread serves each worker: it takes a request from its role's queue, waits for the answer, and
starts the process anew when it died or had to be killed. Workers live in sessions of their own,
so that Ctrl-C reaches only the parent, which kills them when it closes the pool or exits.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TypeAlias

from .outcome import Crashed, TimedOut, TunerError
from .wire import decode, encode

START_LIMIT_S = 180.0
"""For imports and the device's context, on a loaded machine."""

Answer: TypeAlias = "dict[str, Any] | TimedOut | Crashed"


@dataclass(frozen=True, slots=True)
class Role:
    """count processes of `command`; limit_s: of one request, unless it says otherwise. env: what
    differs from the parent's environment (None: unset)."""

    command: Sequence[str]
    count: int
    limit_s: float
    env: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(slots=True)
class _Job:
    message: dict[str, Any]
    limit_s: float
    future: Future[Answer]


def worker_command(*arguments: str) -> list[str]:
    """How to start a worker with this interpreter. -P: the current folder is the user's, and its
    modules are not to be found before ours."""
    return [sys.executable, "-P", "-m", f"{__package__}.worker", *arguments]


def import_path() -> str:
    """A PYTHONPATH under which the workers find the package that the parent runs."""
    package, _, _ = (__package__ or "").partition(".")
    root = Path(sys.modules[package].__file__ or "").parent
    inherited = os.environ.get("PYTHONPATH", "")
    # Installed as an editable package the root's folder may have another name, and the
    # interpreter finds it by itself.
    added = str(root.parent) if root.name == package else ""
    return os.pathsep.join(filter(None, [added, inherited]))


class Pool:
    """`submit(role, message)` gives a future of the answer: the worker's own, `TimedOut` or
    `Crashed`. The future raises TunerError when a worker does not start or has a bug."""

    def __init__(self, roles: Mapping[str, Role]) -> None:
        self.roles = dict(roles)
        self._queues: dict[str, queue.SimpleQueue[_Job | None]] = {
            name: queue.SimpleQueue() for name in roles
        }
        self._closing = threading.Event()
        self._workers = [
            Worker(role, self._queues[name], self._closing, f"{name} {i}")
            for name, role in self.roles.items()
            for i in range(role.count)
        ]
        for worker in self._workers:
            worker.thread.start()
        _OPEN.add(self)

    def submit(
        self, role: str, message: Mapping[str, Any], limit_s: float | None = None
    ) -> Future[Answer]:
        """Queue a request; any free worker of the role takes it."""
        if self._closing.is_set():
            raise TunerError("the pool of workers is closed")
        future: Future[Answer] = Future()
        limit = self.roles[role].limit_s if limit_s is None else limit_s
        self._queues[role].put(_Job(dict(message), limit, future))
        return future

    def pids(self) -> list[int]:
        """Processes that run now."""
        return [pid for worker in self._workers if (pid := worker.pid) is not None]

    def close(self) -> None:
        """Kill all workers and cancel what is queued. Closing twice is fine."""
        self._closing.set()
        for name, jobs in self._queues.items():
            _cancel(jobs)
            for _ in range(self.roles[name].count):
                jobs.put(None)
        for worker in self._workers:
            worker.kill()
        for worker in self._workers:
            worker.thread.join(timeout=5)
        for jobs in self._queues.values():
            _cancel(jobs)
        _OPEN.discard(self)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


_OPEN: weakref.WeakSet[Pool] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for pool in list(_OPEN):
        pool.close()


def _cancel(jobs: queue.SimpleQueue[_Job | None]) -> None:
    with contextlib.suppress(queue.Empty):
        while True:
            job = jobs.get_nowait()
            if job is not None:
                job.future.cancel()


class Worker:
    """One process, started again as often as it dies, and the thread that talks to it."""

    def __init__(
        self,
        role: Role,
        jobs: queue.SimpleQueue[_Job | None],
        closing: threading.Event,
        name: str,
    ) -> None:
        self._role, self._jobs, self._closing = role, jobs, closing
        # Not a daemon thread's death but close() ends the process: PR_SET_PDEATHSIG counts
        # the death of the thread that started it as the parent's.
        self.thread = threading.Thread(target=self._serve, name=f"worker {name}", daemon=True)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._ready = False
        self._rest = b""
        self._number = 0

    @property
    def pid(self) -> int | None:
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def kill(self) -> None:
        """Kill the process and what it started."""
        with self._lock:
            process = self._process
            if process is None:
                return
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _serve(self) -> None:
        self._start()
        while (job := self._jobs.get()) is not None:
            if not job.future.set_running_or_notify_cancel():
                continue
            try:
                job.future.set_result(self._ask(job))
            except TunerError as error:
                job.future.set_exception(error)
            except Exception as error:  # noqa: BLE001 - raised where the answer is awaited
                self._stop()
                job.future.set_exception(error)
        self._stop()

    def _ask(self, job: _Job) -> Answer:
        self._wait_until_ready()
        self._number += 1
        request = encode({**job.message, "id": self._number})
        process = self._process
        assert process is not None
        assert process.stdin is not None
        try:
            process.stdin.write(request)
            process.stdin.flush()
        except BrokenPipeError:
            return self._died()
        deadline = time.monotonic() + job.limit_s
        while True:
            line = self._line(deadline)
            if line is None:
                return self._died()
            if line == b"":
                self._restart()
                return TimedOut(f"no answer within {job.limit_s:g} s")
            answer = decode(line)
            if answer.pop("id", None) != self._number:
                continue
            if answer.pop("leaving", False):
                self._restart()
            if "error" in answer:
                raise TunerError(f"a worker failed:\n{answer['error']}")
            return answer

    def _died(self) -> Crashed:
        how = self._ending()
        self._restart()
        return Crashed(how)

    def _ending(self) -> str:
        """How the process ended, with the last line of what it had to say."""
        process = self._process
        assert process is not None
        try:
            code = process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return "the worker closed its pipe"
        how = f"exit status {code}"
        if code < 0:
            how = f"signal {signal.Signals(-code).name}"
        said = self._said().splitlines()
        return f"the worker died with {how}" + (f": {said[-1]}" if said else "")

    def _said(self) -> str:
        if self._log is None:
            return ""
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - 4000))
        return self._log.read().decode(errors="replace").strip()

    # The process

    def _start(self) -> None:
        if self._closing.is_set():
            return
        environment: dict[str, str] = {**os.environ, "PYTHONPATH": import_path()}
        for name, value in self._role.env.items():
            if value is None:
                environment.pop(name, None)
            else:
                environment[name] = value
        log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        process = subprocess.Popen(
            list(self._role.command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
            start_new_session=True,
        )
        with self._lock:
            self._process, self._log = process, log
        self._ready, self._rest = False, b""
        if self._closing.is_set():  # close() came between and has killed only the old one
            self.kill()

    def _stop(self) -> None:
        self.kill()
        process, self._process = self._process, None
        if process is not None:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
        if self._log is not None:
            self._log.close()
            self._log = None

    def _restart(self) -> None:
        self._stop()
        self._start()

    def _wait_until_ready(self) -> None:
        """Raises TunerError when the process does not come up at the second try."""
        for attempt in (1, 2):
            if self._process is None or self._process.poll() is not None:
                self._restart()
            if self._process is None:
                raise TunerError("the pool of workers is closed")
            if self._ready:
                return
            line = self._line(time.monotonic() + START_LIMIT_S)
            if line and decode(line).get("ready"):
                self._ready = True
                return
            if attempt == 2:
                raise TunerError(f"a worker does not start: {self._ending()}\n{self._said()}")
            self.kill()

    def _line(self, deadline: float) -> bytes | None:
        """The next line; b"" when the deadline came first, None when the pipe ended."""
        process = self._process
        assert process is not None
        assert process.stdout is not None
        poll = select.poll()
        poll.register(process.stdout, select.POLLIN | select.POLLHUP)
        while b"\n" not in self._rest:
            left = deadline - time.monotonic()
            if left <= 0 or not poll.poll(min(left, 3600) * 1e3):
                return b""
            chunk = os.read(process.stdout.fileno(), 1 << 16)
            if not chunk:
                return None
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        return line
