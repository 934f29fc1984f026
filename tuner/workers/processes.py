"""The interface of worker processes for those who send them requests."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Protocol

from ...planner import bytecode


class Process(Protocol):
    """A process that leads a session of its own. It has what `subprocess.Popen` has under these
    names."""

    @property
    def pid(self) -> int: ...
    @property
    def stdin(self) -> IO[bytes] | None: ...
    @property
    def stdout(self) -> IO[bytes] | None: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...


class Fork(Protocol):
    """Starts a process with an environment and a file for its stderr, without a new interpreter:
    None where that cannot be, or `is_over` says that nobody wants it any more."""

    def __call__(
        self, environment: Mapping[str, str], log: IO[bytes], is_over: Callable[[], bool]
    ) -> Process | None: ...


def started(command: Sequence[str], environment: Mapping[str, str], log: IO[bytes]) -> Process:
    """A process of its own. Raises OSError."""
    return subprocess.Popen(
        list(command),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        env=dict(environment),
        start_new_session=True,
        bufsize=0,
    )


def child_environment() -> dict[str, str]:
    """The environment of a process that this one starts: it finds the package, and bytecode."""
    return {**os.environ, "PYTHONPATH": import_path(), **bytecode.environment()}


def import_path() -> str:
    """A PYTHONPATH under which the workers find the package that the parent runs."""
    package, _, _ = (__package__ or "").partition(".")
    root = Path(sys.modules[package].__file__ or "").parent
    inherited = os.environ.get("PYTHONPATH", "")
    # Installed as an editable package the root's folder may have another name, and the
    # interpreter finds it by itself.
    added = str(root.parent) if root.name == package else ""
    return os.pathsep.join(filter(None, [added, inherited]))


def worker_log() -> IO[bytes]:
    """Where a worker's stderr goes: a file without a name, in memory where there is no folder for
    temporary ones."""
    try:
        return tempfile.TemporaryFile()
    except OSError:
        return os.fdopen(os.memfd_create("worker"), "w+b")
