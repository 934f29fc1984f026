"""The parts of a tune that a test replaces: its lab, its stopwatch and how it covers a graph."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TypeVar

import torch

from ...planner.costs.device import DeviceProfile
from ..measure.contest import Rules
from ..measure.timing import Stopwatch, stopwatch_for
from ..measure.wall import Wall
from ..search.tuned_groups import CoverFunctions
from ..workers.lab import Lab, WorkerLab

Opened = TypeVar("Opened")

_LEAST_ON_CPU = 2
"""Runs of a candidate in the interpreter, where speed means nothing."""

RULES_ON_CPU = Rules(least=1, most=1, budget_s=0.0, warm_up=1)


@dataclass(frozen=True, slots=True)
class LabOptions:
    """The lab of a tune: its device, the end of its work, and how many processes compile."""

    device: torch.device
    profile: DeviceProfile
    wall: Wall
    compilers: int | None = None

    def opened(self, make: Callable[..., Opened], seed: int = 0) -> Opened:
        """What `make` gives for these."""
        on_cpu = self.device.type != "cuda"
        return make(
            "cpu" if on_cpu else f"cuda:{self.device.index or 0}",
            self.profile.capability,
            compilers=self.compilers,
            interpret=on_cpu,
            seed=seed,
            least=_LEAST_ON_CPU,
            is_over=lambda: self.wall.is_late,
        )


@dataclass(frozen=True, slots=True)
class TuneSite:
    """The devices and clocks of a tune; a test brings its own. lab: opens the place for candidates
    by the name of its device; stopwatch: times what runs in this process; beside: whether
    candidates of a device are measured while the baselines are compiled."""

    lab: Callable[..., AbstractContextManager[Lab]] = WorkerLab
    stopwatch: Callable[[torch.device, int], Stopwatch] = stopwatch_for
    cover: CoverFunctions = field(default_factory=CoverFunctions)
    beside: Callable[[torch.device], bool] = lambda device: device.type == "cuda"
