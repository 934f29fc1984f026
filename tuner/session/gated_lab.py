"""A lab whose measurements take turns on the device with torch.compile."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ...planner.config import Config
from ...planner.costs.device import DeviceProfile
from ...planner.graph.graph import Graph
from ..decision.baselines import Baselines
from ..trial.outcome import Candidate, Outcome
from ..workers.covering import Planning
from ..workers.kernels_ahead import Variant
from ..workers.lab import Duel, Group, Lab, Pending
from ..workers.ranking import Begun


@dataclass(slots=True)
class GatedLab:
    """A lab that shares its device with torch.compile, which compiles the baselines in this process
    and tunes on the same device: neither may run beside the other's measuring. A measurement waits
    for its turn, and where nobody compiles them meanwhile until all baselines are compiled."""

    lab: Lab
    baselines: Baselines
    open: bool = False
    ahead: dict[tuple[str, Config], Pending] = field(default_factory=dict)
    """What was begun before somebody asked for it."""

    @property
    def compilers(self) -> int:
        return self.lab.compilers

    def begin(self, group: Group, config: Config) -> None:
        """Compile it before it is asked for: meanwhile the baselines are."""
        if (group.key, config) not in self.ahead:
            self.ahead[group.key, config] = self.lab.compile(group, config)

    def cancel(self) -> None:
        """Let go of what nobody has asked for."""
        while self.ahead:
            self.ahead.popitem()[1].cancel()

    def compile(self, group: Group, config: Config) -> Pending:
        begun = self.ahead.pop((group.key, config), None)
        return self.lab.compile(group, config) if begun is None else begun

    def rank(self, group: Group, profile: DeviceProfile) -> Begun | None:
        return self.lab.rank(group, profile)

    def plan(self, graph: Graph, profile: DeviceProfile, count: int) -> Planning | None:
        return self.lab.plan(graph, profile, count)

    def wait(self, pending: Sequence[Pending], timeout_s: float | None = None) -> None:
        self.lab.wait(pending, timeout_s)

    def measure(
        self,
        group: Group,
        candidate: Candidate,
        incumbent_s: float | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> Outcome:
        self.warm()
        with self.baselines.turn:
            return self.lab.measure(group, candidate, incumbent_s, meanwhile)

    def duel(self, group: Group, candidates: Sequence[Candidate]) -> Duel:
        self.warm()
        with self.baselines.turn:
            return self.lab.duel(group, candidates)

    def compile_ahead(
        self,
        kernels: Sequence[Variant],
        meanwhile: Callable[[], None] | None = None,
        limit_s: float = math.inf,
    ) -> list[Variant]:
        return self.lab.compile_ahead(kernels, meanwhile, limit_s)

    def release(self) -> None:
        self.lab.release()

    def warm(self) -> None:
        """Compile the baselines, once in a tune."""
        if not self.open and not self.baselines.begun:
            self.baselines.warm()
        self.open = True
