"""Worker processes with time limits: a hang or a crash costs one request, never the others.

One thread serves each worker: it takes a request from its role's queue, waits for the answer, and
starts the process anew when it died or had to be killed. Workers live in sessions of their own,
so that Ctrl-C reaches only the parent, which kills them when it closes the pool or exits.

A process that has answered before may fail for what an earlier request left behind. A request on
which such a process crashes is therefore sent once more, to a new process.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import queue
import signal
import subprocess
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import IO, Any, TypeAlias

from ..trial.outcome import Crashed, TimedOut, TunerError
from ..trial.wire import decode, encode
from .pipes import LinePipe
from .processes import Fork, Process, child_environment, started, worker_log

START_LIMIT_S = 180.0
"""For imports and the device's context, on a loaded machine."""

COMPILE_LIMIT_S = 20.0
MEASURE_LIMIT_S = 30.0
RANK_LIMIT_S = 60.0
PLAN_LIMIT_S = 300.0
"""Seconds that a worker may take for one request: to compile a kernel, to check and time one, to
order a group's configs by the cost model, to find the covers of a graph."""

KILL_LIMIT_S = 10.0
"""Seconds that a killed process has to be gone."""

LOOK_S = 0.5
"""Seconds between looks at whether an answer is still waited for."""

PAUSE_S = 1.0
"""Seconds before a process that did not start is started once more."""

_FROM_OUTSIDE = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGXCPU})
"""Signals with which others end a process, such as the kernel where memory is short."""

Answer: TypeAlias = "dict[str, Any] | TimedOut | Crashed"


@dataclass(frozen=True, slots=True)
class WorkerRole:
    """count processes of `command`; limit_s: of one request, unless it says otherwise. env: what
    differs from the parent's environment (None: unset). politeness: by how much they stand back for
    others, from their first import on. fork: the same process, started in another way; None: by
    the command only."""

    command: Sequence[str]
    count: int
    limit_s: float
    env: Mapping[str, str | None] = field(default_factory=dict)
    politeness: int = 0
    fork: Fork | None = None


@dataclass(slots=True)
class _Exchange:
    message: dict[str, Any]
    limit_s: float
    future: Future[Answer]
    alone: bool = False
    given_up: threading.Event = field(default_factory=threading.Event)


Requests: TypeAlias = "queue.PriorityQueue[tuple[bool, int, _Exchange | None]]"
"""Those that are urgent first, then in the order in which they came. None ends a worker."""

_NUMBERS = itertools.count()
_END = (False, -1, None)


class _NotStarted(TunerError):
    """A worker process does not come up."""


class _Ended(Exception):
    """The process is gone, or is not to be trusted any more; the text says how that was seen.
    outside: something else than the request may have ended it."""

    def __init__(self, how: str, outside: bool = False) -> None:
        super().__init__(how)
        self.outside = outside


class Pool:
    """`submit(role, message)` gives a future of the answer: the worker's own, `TimedOut` or
    `Crashed`. The future raises TunerError when no worker of the role starts."""

    def __init__(self, roles: Mapping[str, WorkerRole]) -> None:
        self.roles = dict(roles)
        self._queues: dict[str, Requests] = {name: queue.PriorityQueue() for name in roles}
        self._closing = threading.Event()
        self._workers = [
            WorkerProcess(role, self._queues[name], self._closing, f"{name} {i}")
            for name, role in self.roles.items()
            for i in range(role.count)
        ]
        for worker in self._workers:
            worker.thread.start()
        _OPEN.add(self)

    def submit(
        self,
        role: str,
        message: Mapping[str, Any],
        limit_s: float | None = None,
        *,
        alone: bool = False,
        urgent: bool = False,
        given_up: threading.Event | None = None,
    ) -> Future[Answer]:
        """Queue a request; any free worker of the role takes it. alone: in a new process. urgent:
        before all that are not. given_up: set when nobody waits for the answer any more; the worker
        that is at it is then ended, and the answer is `TimedOut`."""
        if self._closing.is_set():
            raise TunerError("the pool of workers is closed")
        future: Future[Answer] = Future()
        limit = self.roles[role].limit_s if limit_s is None else limit_s
        exchange = _Exchange(dict(message), limit, future, alone)
        if given_up is not None:
            exchange.given_up = given_up
        self._queues[role].put((not urgent, next(_NUMBERS), exchange))
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
                jobs.put(_END)
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


def _cancel(jobs: Requests) -> None:
    with contextlib.suppress(queue.Empty):
        while True:
            _, _, job = jobs.get_nowait()
            if job is not None:
                job.future.cancel()


class WorkerProcess:
    """One process, started again as often as it dies, and the thread that talks to it."""

    def __init__(
        self,
        role: WorkerRole,
        jobs: Requests,
        closing: threading.Event,
        name: str,
    ) -> None:
        self._role, self._jobs, self._closing = role, jobs, closing
        # Not a daemon thread's death but close() ends the process: PR_SET_PDEATHSIG counts
        # the death of the thread that started it as the parent's.
        self.thread = threading.Thread(target=self._serve, name=f"worker {name}", daemon=True)
        self._lock = threading.Lock()
        self._process: Process | None = None
        self._lines: LinePipe | None = None
        self._log: IO[bytes] | None = None
        self._ready = False
        self._number = 0
        self._answered = 0
        self._was_ready = False
        self._broken: _NotStarted | None = None

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
            # A process that waits for a lost device cannot even be killed: it is left behind.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=KILL_LIMIT_S)

    def _serve(self) -> None:
        with contextlib.suppress(OSError):  # told to the first request
            self._start()
        while (job := self._jobs.get()[2]) is not None:
            if not job.future.set_running_or_notify_cancel():
                continue
            try:
                job.future.set_result(self._ask(job))
            except Exception as error:  # noqa: BLE001 - raised where the answer is awaited
                self._stop()
                job.future.set_exception(error)
            if self._process is None and self._broken is None:
                with contextlib.suppress(OSError):  # ready when the next request comes
                    self._start()
        self._stop()

    def _ask(self, job: _Exchange) -> Answer:
        """The answer; where a process that has answered before ends on the request, that of a new
        process."""
        if job.alone and self._answered:
            self._stop()
        try:
            answer, doubtful = self._try(job)
            if doubtful and not self._closing.is_set():
                answer, _ = self._try(job)
        except _NotStarted as error:
            if not self._was_ready:
                raise
            self._broken = error
            return Crashed(str(error), transient=True)
        return answer

    def _try(self, job: _Exchange) -> tuple[Answer, bool]:
        """One attempt, and whether it ended a process that had answered another request before.
        Raises _NotStarted."""
        self._wait_until_ready()
        used = self._answered > 0
        try:
            answer = self._exchange(job)
        except _Ended as ended:
            self._stop()
            return Crashed(str(ended), transient=ended.outside), used
        if isinstance(answer, TimedOut):
            self._stop()
            return answer, False  # a hang takes long enough
        self._answered += 1
        leaving = answer.pop("leaving", False)
        if leaving:
            self._stop()
        if "error" in answer:
            # Whatever it did not foresee, the next request may meet.
            self._stop()
            said = str(answer["error"]).strip().splitlines() or ["no message"]
            outside = bool(answer.get("transient", False))
            return Crashed(f"the worker failed: {said[-1][:300]}", transient=outside), used
        return answer, used and bool(leaving)

    def _exchange(self, job: _Exchange) -> dict[str, Any] | TimedOut:
        """Send the request and wait for its answer. Raises _Ended."""
        lines = self._lines
        assert lines is not None
        self._number += 1
        deadline = time.monotonic() + job.limit_s
        late = TimedOut(f"no answer within {job.limit_s:g} s", transient=True)
        try:
            if not lines.send(encode({**job.message, "id": self._number}), deadline):
                return late
            while time.monotonic() < deadline and not job.given_up.is_set():
                line = lines.next(min(deadline, time.monotonic() + LOOK_S))
                if line is None:
                    raise self._ending()
                answer = _message(line) if line else None
                if answer is not None and answer.pop("id", None) == self._number:
                    return answer
            return late
        except BrokenPipeError:
            raise self._ending() from None

    def _ending(self) -> _Ended:
        """How the process ended, with the last line of what it had to say."""
        process = self._process
        assert process is not None
        try:
            code = process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return _Ended("the worker closed its pipe")
        how = f"exit status {code}"
        if code < 0:
            how = f"signal {signal.Signals(-code).name if -code in _SIGNALS else -code}"
        said = self._said().splitlines()
        text = f"the worker died with {how}" + (f": {said[-1]}" if said else "")
        return _Ended(text, outside=-code in _FROM_OUTSIDE)

    def _said(self) -> str:
        if self._log is None:
            return ""
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - 4000))
        return self._log.read().decode(errors="replace").strip()

    # The process

    def _start(self) -> None:
        """Raises OSError when there can be no process."""
        if self._closing.is_set():
            return
        environment = child_environment()
        for name, value in self._role.env.items():
            if value is None:
                environment.pop(name, None)
            else:
                environment[name] = value
        log = worker_log()
        try:
            process = self._forked(environment, log)
            if process is None:
                if self._closing.is_set():
                    log.close()
                    return
                process = started(self._role.command, environment, log)
        except BaseException:
            log.close()
            raise
        if self._role.politeness:
            with contextlib.suppress(OSError):
                nice = os.getpriority(os.PRIO_PROCESS, 0) + self._role.politeness
                os.setpriority(os.PRIO_PROCESS, process.pid, nice)
        with self._lock:
            self._process, self._log = process, log
        self._lines = LinePipe(process)
        self._ready, self._answered = False, 0
        if self._closing.is_set():  # close() came between and has killed only the old one
            self.kill()

    def _forked(self, environment: Mapping[str, str], log: IO[bytes]) -> Process | None:
        fork = self._role.fork
        return None if fork is None else fork(environment, log, self._closing.is_set)

    def _stop(self) -> None:
        self.kill()
        process, self._process = self._process, None
        self._answered = 0
        if process is not None:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
        if self._log is not None:
            self._log.close()
            self._log = None

    def _wait_until_ready(self) -> None:
        """Raises _NotStarted when the process does not come up at the second try; from then on at
        once."""
        if self._broken is not None:
            raise self._broken
        for attempt in (1, 2):
            try:
                if self._process is None or self._process.poll() is not None:
                    self._stop()
                    self._start()
                if self._process is None:
                    raise _NotStarted("the pool of workers is closed")
                if self._ready or self._comes_up():
                    self._ready = self._was_ready = True
                    return
                how = f"{self._ending()}\n{self._said()}" if attempt == 2 else ""
            except OSError as error:
                how = f"{self._role.command[0]}: {error.strerror or error}"
            self._stop()
            if attempt == 1:  # what it lacked may be there again
                self._closing.wait(PAUSE_S)
        raise _NotStarted(f"a worker does not start: {how.strip()}")

    def _comes_up(self) -> bool:
        """Whether it says that it is ready. What else is printed at its start is passed over."""
        assert self._lines is not None
        deadline = time.monotonic() + START_LIMIT_S
        while line := self._lines.next(deadline):
            if (message := _message(line)) is not None and message.get("ready"):
                return True
        return False


_SIGNALS = frozenset(signal.Signals)


def _message(line: bytes) -> dict[str, Any] | None:
    """The message of a line; None for one that somebody else printed. Raises _Ended for what began
    as a message and is none."""
    if not line.lstrip().startswith(b"{"):
        return None
    try:
        return decode(line)
    except ValueError:
        raise _Ended(f"the worker's answer is no message: {line[:80]!r}") from None
