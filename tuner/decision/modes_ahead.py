"""Modes of torch.compile, each compiled in a process of its own at the same time, so that this
process finds their code in Inductor's caches when it compiles them in the same way.

What a process has not done in time is not compiled here either: a compilation under way cannot
always be ended, but a process can.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import torch

from ...planner.settings import settings
from ..capture.capture_model import CallArguments, Model
from ..measure.fair_lock import FairLock
from ..workers.forks import Forks, WorkerProgram, forking
from ..workers.pool import Answer, Pool, WorkerRole

log = logging.getLogger(__name__)

LIMIT_S = 3600.0
"""Seconds of one mode, at most; a tune ends it earlier."""

LEAST_PARAMETERS, LEAST_TRAINED = 60, 15
"""Tensors of parameters and buffers of a model from which this pays: a small one is compiled before
a process has started. A training step is two graphs, and modes with CUDA graphs are needed."""

MOST_BYTES = 4 << 30
"""The most bytes of weights and inputs that are written for the processes to read. They may also
take at most a tenth of the device's free memory: each process computes with a copy."""

MODULE = f"{__package__}.mode_start"
FOR_MODES = ("torch._dynamo",)
"""What the server imports that forks the processes. They import Inductor and the model's modules by
themselves: those may start threads, and a process that has some cannot be forked."""

POLITENESS = 5
"""By how much those that tune products stand back for all others."""

TUNED = "max-autotune"
"""Modes whose name begins so compile some hundred choices for products."""

BROKE = "broke"
"""In an answer, how the mode has broken the device."""

_THREADS = "TORCHINDUCTOR_COMPILE_THREADS"
SHARES = {False: 4, True: 2}
"""Of all cores, one in so many compiles for the modes that tune products (True), and for others."""

MOST_THREADS = {False: 4, True: 8}
"""Of each: a host with more cores may have other tunes on them."""


@dataclass(slots=True)
class ModesAhead:
    """begun: for each mode its pending request. An answer that is no failure means that the code is
    in Inductor's caches; where it is one, this process compiles the mode from the beginning."""

    begun: Mapping[str, Future[Answer]]
    turn: FairLock
    close: Callable[[], None] = lambda: None
    """Ends the processes, whatever they are at."""

    def next(self, names: Sequence[str]) -> str | None:
        """One of these modes that is in the caches or could not be put there; None as long as all
        are under way."""
        return next((name for name in names if name not in self or self.begun[name].done()), None)

    def __contains__(self, name: str) -> bool:
        return name in self.begun

    def has(self, name: str) -> bool:
        """Whether the mode is in the caches."""
        return isinstance(self._answer(name), dict) and self.broke(name) is None

    def broke(self, name: str) -> str | None:
        """How the mode has broken the device for the process that compiled it, as it would for this
        one; None where it has not."""
        answer = self._answer(name)
        return answer.get(BROKE) if isinstance(answer, dict) else None

    def _answer(self, name: str) -> Answer | None:
        begun = self.begun.get(name)
        return begun.result() if begun is not None and begun.done() else None


class ModeProcesses:
    """The processes, from the beginning of a tune on: what they import takes seconds. One compiles
    the modes that tune their products, one after the other, as the second finds the choices of the
    first; one the other modes. forks: starts them."""

    def __init__(self, modes: Sequence[str], forks: Forks | None = None) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="fusionplan-modes-"))
        self.modes, self.turn = tuple(modes), FairLock(self._folder / "turn")
        roles: dict[str, WorkerRole] = {}
        for tuned in sorted({tunes(mode) for mode in modes}):
            arguments = [str(self._folder / "turn"), "--settings", json.dumps(settings())]
            polite = POLITENESS if tuned else 0
            program = WorkerProgram(MODULE, arguments, FOR_MODES, 2, polite)
            env = {_THREADS: os.environ.get(_THREADS, str(_threads(tuned)))}
            fork = forking(forks, program)
            roles[str(tuned)] = WorkerRole(program.command, 1, LIMIT_S, env, polite, fork)
        self._pool = Pool(roles)

    @staticmethod
    def opened(modes: Sequence[str], forks: Forks | None = None) -> ModeProcesses | None:
        """None where there is no folder for temporary files, as on a full disk: the modes are then
        compiled one after the other in this process."""
        try:
            return ModeProcesses(modes, forks)
        except OSError as error:
            log.debug("modes are compiled in this process: %s", error)
            return None

    def begin(self, model: Model, call: CallArguments, training: bool = False) -> ModesAhead | None:
        """Compile the model, or its training step, in all modes; None where it cannot be handed
        over."""
        file = self._folder / "model.pt"
        try:
            write_model(model, call, file)
        except Exception as error:  # noqa: BLE001 - whatever pickling the user's model raises
            log.debug("modes are compiled in this process: %s", error)
            self.close()
            return None
        path = [each for each in sys.path if each]
        about = {"model": str(file), "path": path, "training": training}
        begun = {m: self._pool.submit(str(tunes(m)), {"mode": m, **about}) for m in self.modes}
        return ModesAhead(begun, self.turn, self.close)

    def close(self) -> None:
        self._pool.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def tunes(mode: str) -> bool:
    """Whether a mode tries choices for its products."""
    return mode.startswith(TUNED)


def _threads(tuned: bool) -> int:
    own = len(os.sched_getaffinity(0)) // SHARES[tuned]
    return max(1, min(own, MOST_THREADS[tuned]))


def write_model(model: Model, call: CallArguments, file: Path) -> None:
    """The model with its inputs, on the devices where they are. Raises what pickling raises."""
    torch.save({"model": model, "args": call.args, "kwargs": dict(call.kwargs)}, file)


def has_room(device: torch.device) -> bool:
    """Whether two processes that each hold as much of the device as this one does fit into half of
    what is free: a training step takes far more than its weights."""
    if device.type != "cuda":
        return True
    return 2 * torch.cuda.memory_reserved(device) <= torch.cuda.mem_get_info(device)[0] // 2


def pays(
    model: Model,
    call: CallArguments,
    modes: Sequence[str],
    cores: int | None = None,
    training: bool = False,
) -> bool:
    """Whether a model is large enough to be compiled elsewhere, and small enough for that."""
    cores = len(os.sched_getaffinity(0)) if cores is None else cores
    if not modes or cores < 2 * len(modes) or not isinstance(model, torch.nn.Module):
        return False
    weights = [*model.parameters(), *model.buffers()]
    if len(weights) < (LEAST_TRAINED if training else LEAST_PARAMETERS):
        return False
    tensors = [*weights, *torch.utils._pytree.tree_leaves((call.args, dict(call.kwargs)))]
    size = sum(t.nbytes for t in tensors if isinstance(t, torch.Tensor))
    free = torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else 10 * MOST_BYTES
    return size <= min(MOST_BYTES, free // 10)
