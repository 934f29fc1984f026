"""A process that compiles a model in modes of torch.compile, as its user would, so that what it
leaves in Inductor's caches need not be made again: `python -m ...decision.mode_start TURN`.

The tune's own process then compiles the same mode in the same way, and finds the code, and what
the autotuning chose. Here a mode can be given up at any time: the process is killed.

The model comes by pickle, as nothing else hands over a user's own classes. The file is one that the
tune wrote into a folder of its own, which no other user can enter; no store and no bundle has such.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ...planner.settings import adopt
from ..capture.capture_model import CallArguments, run_step
from ..capture.traced_model import TracedGraph, TracedModel, traced
from ..measure.fair_lock import FairLock
from ..measure.lost_device import why_lost
from ..workers.assembler import as_in_workers
from ..workers.worker import Role, serve
from .device_turns import timed_in_turn
from .inductor_workers import SpareProcess, leave_failed_workers
from .modes_ahead import BROKE
from .silence_inductor import quiet_autotuning


def main(arguments: Sequence[str] | None, spare: SpareProcess | None = None) -> int:
    """spare: a process for Inductor's workers; None: Inductor starts one."""
    parser = argparse.ArgumentParser(prog="fusionplan.tuner.decision.mode_start")
    parser.add_argument("turn", type=Path, help="the file by which turns on the device are taken")
    parser.add_argument("--settings", default="{}", help="of torch, as in the tune's own process")
    options = parser.parse_args(arguments)

    def role() -> Role:
        adopt(json.loads(options.settings))
        # Importing it takes seconds, in which the model is captured.
        prepare()
        return Compiling(FairLock(options.turn)).handle, Broke

    _begin_workers(spare)
    return serve(role)


def prepare() -> None:
    """What every such process needs: imports, and digests of the sources of torch and Triton that
    are part of Inductor's keys."""
    import torch._inductor.compile_fx  # noqa: F401
    from torch._inductor.codecache import torch_key
    from torch._inductor.runtime.triton_compat import HAS_TRITON, triton_key

    torch_key()
    if HAS_TRITON:
        triton_key()


def _begin_workers(spare: SpareProcess | None) -> None:
    """Those of Inductor, as many as the environment says."""
    from torch._inductor import config

    # In a forked process it may have been imported under another environment.
    config.compile_threads = config.decide_compile_threads()
    if spare is not None:
        spare.begin()


class Broke(Exception):
    """A kernel of the mode has broken the device for this process. The answer is its argument."""


@dataclass(slots=True)
class Compiling:
    """Compiles one model in one mode after the other. Dynamo traces it for the first of them; for
    training steps, in each."""

    turn: AbstractContextManager[Any]
    _file: str | None = None
    _given: Mapping[str, Any] | None = None
    _traced: TracedModel | None = None

    def handle(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """{"mode", "model", "path", "training"}: compile the model of a file (see
        `modes_ahead.write_model`) in a mode, by one call, or by a training step; to {}. path: where
        modules are found, as in the process that wrote it. Raises Broke."""
        sys.path += [each for each in request["path"] if each not in sys.path]
        run = self._run(request["model"], request["mode"], request["training"])
        turns = timed_in_turn(self.turn, runs=True)
        on_gpu = torch.cuda.is_available()
        try:
            with as_in_workers(), quiet_autotuning(), turns, torch.no_grad():
                run()
                if on_gpu:
                    torch.cuda.synchronize()
                    torch.cuda.empty_cache()
        except Exception as error:
            why = why_lost(torch.device("cuda")) if on_gpu else None
            if why is None:
                raise
            raise Broke({BROKE: why}) from error
        return {}

    def _run(self, file: str, mode: str, training: bool) -> Callable[[], object]:
        """One call of the model in a mode, as the tune's own process makes it: Inductor's cache
        knows a graph by more than what it computes."""
        if self._file != file or self._given is None:
            self._given, self._traced = torch.load(file, weights_only=False), None
            self._file = file
            leave_failed_workers()
        given = self._given
        call = CallArguments(given["args"], given["kwargs"])
        if training:
            step = torch.compile(given["model"], mode=mode, dynamic=False)
            return lambda: run_step(step, call)
        if self._traced is None:
            self._traced = traced(given["model"])
        run = self._traced.by(partial(TracedGraph.by_mode, mode=mode))
        return lambda: call.run(run)
