"""Captures the model of a tune, and keeps time for what the end of the tune does once more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...planner.capture.capture import Captured
from ...planner.graph.graph import Numerics
from ...planner.lowerings.inductor import MODES
from ...planner.lowerings.registry import INDUCTOR
from ..capture.capture_model import CapturedModel, capture_model
from ..capture.rotating_inputs import RotatingInputs
from ..decision.modes_ahead import tunes
from ..measure.wall import Wall
from ..search.tuned_groups import begin_plan
from ..workers.lab import Lab
from .place import Place

AGAIN = 2.5
"""Times the seconds of the capture that the end of a tune takes: the model is captured again for
the best plans, and for what is kept where that is a baseline."""

AGAIN_TRACED = 0.7
"""The same where the trace of the capture serves all of these: the model is traced again only where
the user's own code is kept (DistilBERT, H100: 2.9 s, its capture 4.5)."""

CHECKS = 1.0
"""Times the seconds of the capture that checking the best plans takes: 0.5 to 1.6 of large models
on an H100."""


@dataclass(frozen=True, slots=True)
class CaptureOptions:
    """The options of `fusionplan.tune` by which a model is captured."""

    training: bool
    dynamic: bool
    numerics: Numerics

    def modes(self, place: Place) -> tuple[str, ...]:
        """The modes of torch.compile that a model is compared with, in the order in which they are
        compiled: they do not keep eager's roundings. A training step launches so many kernels that
        the modes with CUDA graphs are the ones to beat."""
        keeps = self.numerics == "fast" and place.measured and place.device.type == "cuda"
        modes = MODES if keeps else ()
        return tuple(sorted(modes, key=_compiled_late)) if self.training else modes

    def captured(
        self,
        model: Callable[..., Any],
        turns: RotatingInputs,
        wall: Wall,
        place: Place,
        lab: Lab | None,
        ran: Callable[[], object],
    ) -> CapturedModel:
        """The graphs of the model. lab: begins to plan each graph as soon as it is known. ran:
        called when the model has run once."""

        def seen(captured: Captured) -> None:
            if lab is not None:
                begin_plan(captured.graph, place.profile, lab)

        left_s = wall.left_s
        captured = turns.watch(
            lambda: capture_model(
                model,
                turns.calls[0],
                training=self.training,
                dynamic=self.dynamic,
                numerics=self.numerics,
                ran=ran,
                seen=seen,
            )
        )
        turns.restore(0)
        took_s = left_s - wall.left_s
        wall.keep_for_the_end((AGAIN if captured.traced is None else AGAIN_TRACED) * took_s)
        wall.expected_check_s = CHECKS * took_s
        return captured


def _compiled_late(mode: str) -> tuple[bool, bool]:
    """By which modes are sorted: those that tune products last, those with CUDA graphs first."""
    return tunes(mode), not INDUCTOR.owns_cuda_graphs(mode)
