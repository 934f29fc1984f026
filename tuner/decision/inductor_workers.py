"""The processes that Inductor compiles kernels in, forked where they would be started anew.

Inductor starts a process that imports torch, which takes ten seconds of a slow core, and forks the
others from that. A forked process of ours forks one more at its very beginning, before it imports
Inductor, starts a thread or uses CUDA. That one imports what Inductor's process does at the same
time, and becomes that process when Inductor asks for one.
"""

from __future__ import annotations

import fcntl
import importlib
import logging
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NoReturn

from ..workers.fork_server import receive_with_files, send
from ..workers.pipes import die_with_parent

log = logging.getLogger(__name__)

PROGRAM = "torch._inductor.compile_worker.__main__"

MOST_FILES = 8
_HIGH = 200
"""The least number of a file while files are put in their places."""

LOOK_S = 0.02
"""Seconds between looks at whether a process has ended."""


@contextmanager
def found_in_caches() -> Iterator[None]:
    """In the block, Inductor compiles what its caches have: it starts no processes for that."""
    from torch._inductor import config

    with config.patch(compile_threads=1):
        yield


def leave_failed_workers(within_s: float = 20.0) -> None:
    """Where those that were begun do not answer, Inductor is to start its own."""
    from torch._inductor.async_compile import AsyncCompile

    made: Any = AsyncCompile
    ready = getattr(made, "_ready_future", None)
    if ready is None:
        return
    try:
        ready.result(within_s)
    except Exception as error:  # noqa: BLE001 - whatever has ended them
        log.debug("Inductor's workers are not forked: %s", error)
        made.process_pool.cache_clear()
        made._ready_future = None


class SpareProcess:
    """A fork of this process that waits for Inductor's command. `begin` has Inductor start its
    workers by it; then it is what Inductor has of a `subprocess.Popen`."""

    def __init__(self) -> None:
        """To be made before there is another thread, and before CUDA is used."""
        self._own, its = socket.socketpair()
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            self._own.close()
            _wait_and_run(its)
        its.close()

    def begin(self) -> None:
        """Start as many workers as Inductor is set to use."""
        from torch._inductor.async_compile import AsyncCompile
        from torch._inductor.compile_worker import subproc_pool

        pool: Any = subproc_pool
        inductor: Any = AsyncCompile
        given = pool.subprocess
        pool.subprocess = SimpleNamespace(Popen=self._started)
        try:
            inductor.use_process_pool()
        except (TypeError, AttributeError, OSError) as error:  # another torch's, or it has died
            log.debug("Inductor starts its workers itself: %s", error)
        finally:
            pool.subprocess = given

    def _started(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        pass_fds: Sequence[int],
        stdout: Any = None,
        stderr: Any = None,
    ) -> SpareProcess:
        streams = {1: stdout, 2: stderr}
        places = {number: number for number in pass_fds}
        places |= {place: s.fileno() for place, s in streams.items() if s is not None}
        message = {"command": list(command), "environment": dict(env), "places": list(places)}
        send(self._own, message, list(places.values()))
        self._own.close()
        return self

    def poll(self) -> int | None:
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                self.returncode = -signal.SIGKILL
            else:
                self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        until = time.monotonic() + (float("inf") if timeout is None else timeout)
        while (code := self.poll()) is None:
            if time.monotonic() >= until:
                raise subprocess.TimeoutExpired("Inductor's workers", timeout or 0.0)
            time.sleep(LOOK_S)
        return code

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    terminate = kill


def _wait_and_run(parent: socket.socket) -> NoReturn:
    try:
        die_with_parent()
        os.dup2(2, 1)  # What was its stdout has the answers of the process before it.
        os.environ["TORCH_WARM_POOL"] = "0"
        before = dict(os.environ)
        program: Any = importlib.import_module(PROGRAM)
        chosen = {n: value for n, value in os.environ.items() if n not in before}
        message, files = receive_with_files(parent, MOST_FILES)
        if message is not None:
            high = [fcntl.fcntl(file, fcntl.F_DUPFD, _HIGH) for file in files]
            for place, file in zip(message["places"], high, strict=True):
                os.dup2(file, place)
            for file in (*high, *(set(files) - set(message["places"]))):
                os.close(file)
            os.environ.clear()
            os.environ.update(chosen | message["environment"])
            sys.argv = message["command"][1:]
            program.main()
    except BaseException:  # noqa: BLE001 - as an interpreter ends
        traceback.print_exc()
    finally:
        os._exit(0)
