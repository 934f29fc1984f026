"""The processes that Inductor compiles kernels in, forked where they would be started anew.

Inductor starts a process that imports torch, which takes ten seconds of a slow core, and forks the
others from that. A process that is forked itself, and has not used CUDA yet, can fork the first of
them as well: then kernels are compiled side by side from the beginning.
"""

from __future__ import annotations

import importlib
import logging
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NoReturn

import torch

from ..workers.pipes import die_with_parent

log = logging.getLogger(__name__)

LOOK_S = 0.02
"""Seconds between looks at whether a process has ended."""


def forked_workers() -> None:
    """Start them, as many as Inductor is set to use, where kernels are compiled for CUDA. To be
    called before there is another thread, and before CUDA is used."""
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.compile_worker import subproc_pool

    if not torch.version.cuda:
        return
    pool: Any = subproc_pool
    inductor: Any = AsyncCompile
    given = pool.subprocess
    pool.subprocess = SimpleNamespace(Popen=ForkedInterpreter)
    try:
        inductor.use_process_pool()
    finally:
        pool.subprocess = given


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
    ready = made._ready_future
    if ready is None:
        return
    try:
        ready.result(within_s)
    except Exception as error:  # noqa: BLE001 - whatever has ended them
        log.debug("Inductor's workers are not forked: %s", error)
        made.process_pool.cache_clear()
        made._ready_future = None


class ForkedInterpreter:
    """A stand-in for `subprocess.Popen` as Inductor uses it for its own command: a fork of this
    process runs that module's `main` with the command's arguments."""

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        pass_fds: Sequence[int],
        stdout: Any = None,
        stderr: Any = None,
    ) -> None:
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            _run(command, env, pass_fds, stdout, stderr)

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


def _run(
    command: Sequence[str],
    env: Mapping[str, str],
    pass_fds: Sequence[int],
    stdout: Any,
    stderr: Any,
) -> NoReturn:
    try:
        die_with_parent()
        os.dup2(2 if stdout is None else stdout.fileno(), 1)  # ours has the answers of this process
        if stderr is not None:
            os.dup2(stderr.fileno(), 2)
        os.closerange(3, min(pass_fds))
        for low, high in zip(sorted(pass_fds), [*sorted(pass_fds)[1:], 1 << 12], strict=True):
            os.closerange(low + 1, high)
        os.environ.clear()
        os.environ.update(env)
        sys.argv = list(command[1:])
        program: Any = importlib.import_module("torch._inductor.compile_worker.__main__")
        program.torch_key = SimpleNamespace(set=lambda key: None)  # is known since before the fork
        program.main()
    except BaseException:  # noqa: BLE001 - as an interpreter ends
        traceback.print_exc()
    finally:
        os._exit(0)
