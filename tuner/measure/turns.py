"""Turns of processes that time on one GPU at once: a lock on a file, held while one of them times.

Off unless $PLANNER_TURNS names a folder for the files. Then many tunes may share a GPU: they
compile side by side, and none times while another does. What they run on it besides, as checks of
candidates, takes no turn and may fall into a measurement.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

VARIABLE = "PLANNER_TURNS"

_LOCK = threading.RLock()
_held: set[str] = set()
"""Files of which this process has the lock; changed by the holder of `_LOCK`."""


@contextmanager
def turn(gpu: str) -> Iterator[None]:
    """Around what is timed on the GPU of this name, in this process alone of all that have the
    same folder. A process that has the turn may take it again."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        yield
        return
    path = Path(folder, f"{gpu}.lock")
    with _LOCK:
        if str(path) in _held:
            yield
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            _held.add(str(path))
            try:
                yield
            finally:
                _held.remove(str(path))


def current_gpu_turn() -> AbstractContextManager[None]:
    """The turn on the GPU that torch runs on in this process, if there is one."""
    if not os.environ.get(VARIABLE):
        return nullcontext()
    import torch

    if not torch.cuda.is_available():
        return nullcontext()
    return turn(str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid))
