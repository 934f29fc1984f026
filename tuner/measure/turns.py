"""Turns of processes that share one GPU: a lock on a file, held while one of them works on it.

Off unless $PLANNER_TURNS names a folder for the files. Then many tunes may share a GPU: they
compile side by side, and none times or checks a kernel while another does. A check in float64 that
runs beside a measurement makes the measured time several times too long.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

from .fair_lock import FairLock

VARIABLE = "PLANNER_TURNS"

_lock = cache(FairLock)


def turn(gpu: str) -> AbstractContextManager[Any]:
    """Around what is timed on the GPU of this name, in this process alone of all that have the
    same folder. A thread that has the turn may take it again."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        return nullcontext()
    path = Path(folder, f"{gpu}.lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    return _lock(path)


def current_gpu_turn() -> AbstractContextManager[Any]:
    """The turn on the GPU that torch runs on in this process, if there is one."""
    if not os.environ.get(VARIABLE):
        return nullcontext()
    import torch

    if not torch.cuda.is_available():
        return nullcontext()
    return turn(str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid))
