"""The interface of worker processes for those who send them requests."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Protocol


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
    return {**os.environ, "PYTHONPATH": import_path(), **_bytecode()}


def _bytecode() -> dict[str, str]:
    """Where torch was installed without bytecode and none may be written beside it, as in many
    images of containers, a folder of the user's for it. Without any each process compiles all that
    it imports anew, which took 6 to 10 s on a machine with H200s."""
    torch = sys.modules.get("torch")
    if torch is None or torch.__file__ is None or sys.pycache_prefix is not None:
        return {}
    if Path(importlib.util.cache_from_source(torch.__file__)).exists():
        return {}
    try:
        caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(caches, "fusionplan", "bytecode")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # there is no such folder, or no home
        return {}
    return {"PYTHONPYCACHEPREFIX": str(folder), "PYTHONDONTWRITEBYTECODE": ""}


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
