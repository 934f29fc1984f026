"""Processes of a group, forked from one that has imported what they need: a rank each."""

from __future__ import annotations

import gc
import importlib
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import quick_dynamo
import quick_interpreter

PRELOADED = (
    "fusionplan.db.sqlite_file",
    "fusionplan.db.user_store",
    "fusionplan.planner.runtime.dispatch.front_end",
    "fusionplan.planner.runtime.dispatch.loaded",
    "networkx",  # which torch imports to cut a graph in two
    "scipy.optimize",
    "torch._inductor.compile_fx",
)
"""What each would import when its model is first called."""


def forked_ranks(count: int, folder: Path, run: Callable[[int], object]) -> int:
    """Runs a function of a rank in a process for each, and gives the largest exit status. What rank
    0 prints is in the files `0.out` and `0.err` of the folder, and so on."""
    os.environ["TORCH_WARM_POOL"] = "0"  # Inductor would start a process, and a thread
    for name in PRELOADED:
        importlib.import_module(name)
    quick_dynamo.quicken()
    quick_interpreter.quicken()
    gc.freeze()  # collections in a rank would copy what it shares with the others
    gc.set_threshold(2_000_000, 4, 20)
    pids = []
    for rank in range(count):
        pid = os.fork()
        if not pid:
            _become(rank, folder, run)
        pids.append(pid)
    return max(abs(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])) for pid in pids)


def said(folder: Path, count: int) -> list[tuple[str, str]]:
    """What each rank has printed: its output and its errors."""
    names = ((folder / f"{rank}.out", folder / f"{rank}.err") for rank in range(count))
    return [(out.read_text(), err.read_text()) for out, err in names]


def _become(rank: int, folder: Path, run: Callable[[int], object]) -> None:
    status = 1
    try:
        for number, name in ((1, "out"), (2, "err")):
            file = os.open(folder / f"{rank}.{name}", os.O_WRONLY | os.O_CREAT)
            os.dup2(file, number)
        run(rank)
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001 - as Python itself tells of an error at its end
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # Gloo's threads may wait for each other for minutes while processes end.
