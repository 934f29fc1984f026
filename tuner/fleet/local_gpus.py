"""The other GPUs of this host: one worker process for each, which ends with the tune."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

import torch

from ...db.store import Store
from ...planner.costs.device import profile_of
from ...planner.errors import DeviceError
from ..workers.processes import child_environment, worker_log

END_S = 5.0
"""Seconds that a worker has to let go of what it is at, before it is killed."""


@dataclass(frozen=True, slots=True)
class LocalGpus:
    """first: the GPU of the tune itself; others: those of its workers, by the indices that torch
    has here. note: what is told of those that are left out."""

    first: int
    others: tuple[int, ...] = ()
    note: str | None = None


def local_gpus(text: str) -> LocalGpus:
    """The GPUs of `all`, of a number of them, or of a list of indices such as `0,2`. Raises
    DeviceError for what is none of these, or not there."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        raise DeviceError(f"--gpus {text}: torch {torch.__version__} finds no CUDA device")
    chosen = _indices(text.strip(), count)
    kinds = {index: profile_of(torch.device("cuda", index)) for index in chosen}
    first = chosen[0]
    alike = [index for index in chosen[1:] if kinds[index].key == kinds[first].key]
    left = [f"cuda:{i} ({kinds[i].name})" for i in chosen[1:] if i not in alike]
    note = None
    if left:
        note = f"{', '.join(left)}: of another kind than cuda:{first}, and not used"
    return LocalGpus(first, tuple(alike), note)


def _indices(text: str, count: int) -> list[int]:
    if text == "all":
        return list(range(count))
    numbers = text.split(",")
    if not all(number.strip().isdigit() for number in numbers):
        raise DeviceError(f"--gpus {text}: give all, a number of GPUs, or indices such as 0,2")
    values = [int(number) for number in numbers]
    if len(values) == 1:
        if not 1 <= values[0] <= count:
            raise DeviceError(f"--gpus {text}: this host has {count}; give a number up to that")
        return list(range(values[0]))
    missing = [str(value) for value in values if value >= count]
    if missing or len(set(values)) < len(values):
        wrong = f"there is no GPU {', '.join(missing)}" if missing else "one is named twice"
        raise DeviceError(f"--gpus {text}: {wrong}; this host has 0 to {count - 1}")
    return values


@contextmanager
def local_workers(
    store: Store,
    gpus: Sequence[int],
    tune: str,
    compilers: int | None,
    tell: Callable[[str], None],
    module: str = f"{__package__}.worker_process",
) -> Iterator[None]:
    """A worker on each of these GPUs while the block runs. That one of them failed is told.
    module: what is run as one."""
    command = [sys.executable, "-P", "-m", module, "--tune", tune]
    if compilers is not None:
        command += ["--compilers", str(compilers)]
    started: list[tuple[int, subprocess.Popen[bytes], IO[bytes]]] = []
    try:
        for gpu in gpus:
            log = worker_log()
            variables = {"CUDA_VISIBLE_DEVICES": _visible(gpu), "PLANNER_STORE": store.url}
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=child_environment() | variables,
                start_new_session=True,  # Ctrl-C is the tune's, which then ends its workers
            )
            started.append((gpu, process, log))
        yield
    finally:
        for gpu, process, log in started:
            failed = process.poll()
            _end(process)
            if failed:
                tell(f"the worker on cuda:{gpu} ended with exit status {failed}: {_last(log)}")
            log.close()


def _visible(gpu: int) -> str:
    """What CUDA_VISIBLE_DEVICES calls the GPU that torch has under this index here."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = [name.strip() for name in listed.split(",") if name.strip()]
    return names[gpu] if gpu < len(names) else str(gpu)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(timeout=END_S)
            return
        except subprocess.TimeoutExpired:
            pass
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=END_S)


def _last(log: IO[bytes]) -> str:
    log.seek(max(0, log.seek(0, os.SEEK_END) - 4000))
    lines = log.read().decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
