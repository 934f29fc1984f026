"""The processes of a tune. They start, and import what they need, while the model is captured."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..capture.capture_model import CallArguments
from ..decision.modes_ahead import ModeProcesses, ModesAhead, has_room, pays
from ..measure.wall import Wall
from ..workers.forks import Forks
from ..workers.lab import Lab, WorkerLab, usual_compilers
from ..workers.shared_lab import SharedLab
from .capture_for_tune import CaptureOptions
from .place import Place
from .tune_site import LabOptions


@dataclass(slots=True)
class TuneWorkers:
    """labs: gives the searches of all graphs one lab. lab: that one, None where nothing is
    measured. ahead: the modes of torch.compile as other processes compile them, None where this
    process does. begin_modes: begins those of a training step, once the model has run."""

    labs: SharedLab
    lab: Lab | None
    ahead: ModesAhead | None = None
    begin_modes: Callable[[], ModesAhead | None] = lambda: None

    def model_ran(self) -> None:
        """To be called when the device holds what a call of the model takes."""
        self.ahead = self.ahead or self.begin_modes()


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
    compares = pays(model, call, modes, training=how.training)
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
    workers = TuneWorkers(labs, lab)
    if elsewhere is not None and how.training:
        workers.begin_modes = partial(_begun, elsewhere, place, model, call)
    elif elsewhere is not None:
        # The modes take longest: they are begun before the capture.
        workers.ahead = elsewhere.begin(model, call)
    return workers


def _begun(
    modes: ModeProcesses, place: Place, model: Callable[..., Any], call: CallArguments
) -> ModesAhead | None:
    """The modes of a training step, where they fit beside this process; else none."""
    if has_room(place.device):
        return modes.begin(model, call, training=True)
    modes.close()
    return None


def _forks(place: Place, compilers: int | None, modes: int) -> Forks | None:
    """What forks the workers of a tune, where they are many enough."""
    measuring = 1
    processes = (compilers or usual_compilers()) + measuring + modes
    return Forks.opened(processes) if place.measured else None
