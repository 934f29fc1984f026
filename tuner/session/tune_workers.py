"""The processes of a tune. They start, and import what they need, while the model is captured."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..capture.capture_model import CallArguments
from ..decision.modes_ahead import ModeProcesses, ModesAhead, pays
from ..measure.wall import Wall
from ..workers.forks import Forks
from ..workers.lab import Lab, WorkerLab, usual_compilers
from ..workers.shared_lab import SharedLab
from .capture_for_tune import CaptureOptions
from .place import Place
from .tune_site import LabOptions


@dataclass(frozen=True, slots=True)
class TuneWorkers:
    """labs: gives the searches of all graphs one lab. lab: that one, None where nothing is
    measured. ahead: the modes of torch.compile as other processes compile them, None where this
    process does."""

    labs: SharedLab
    lab: Lab | None
    ahead: ModesAhead | None


def start_workers(
    stack: ExitStack,
    place: Place,
    how: CaptureOptions,
    compilers: int | None,
    model: Callable[..., Any],
    call: CallArguments,
    wall: Wall,
) -> TuneWorkers:
    """The processes end with the stack."""
    modes = how.modes(place)
    compares = not how.training and pays(model, call, modes)
    forks = _forks(place, compilers, len(modes) * compares)
    if forks is not None:
        stack.callback(forks.close)
    labs = SharedLab(stack.enter_context(ExitStack()), partial(WorkerLab, forks=forks))
    elsewhere = ModeProcesses.opened(modes, forks) if compares else None
    if elsewhere is not None:
        stack.callback(elsewhere.close)
    lab = None
    if place.measured:
        lab = LabOptions(place.device, place.profile, wall, compilers).opened(labs.begin)
    # The modes take longest: they are begun before the capture.
    ahead = elsewhere.begin(model, call) if elsewhere is not None else None
    return TuneWorkers(labs, lab, ahead)


def _forks(place: Place, compilers: int | None, modes: int) -> Forks | None:
    """What forks the workers of a tune, where they are many enough."""
    measuring = 1
    processes = (compilers or usual_compilers()) + measuring + modes
    return Forks.opened(processes) if place.measured else None
