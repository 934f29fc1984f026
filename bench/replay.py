"""A search over configs whose times are known: what it tries, in which order, and how soon."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ..db.records import KernelRecord, TrialRecord
from ..planner.config import Config
from ..planner.costs.cost import Cost
from ..planner.costs.device import DeviceProfile
from ..planner.errors import FusionplanError, Refusal
from ..planner.graph.graph import Graph
from ..planner.lowerings.registry import lowering_of
from ..planner.space.space import space_of
from ..tuner.progress.progress import Silent
from ..tuner.records.findings import Findings
from ..tuner.records.ledger import Ledger
from ..tuner.search.config_search import tune_group
from ..tuner.search.group_trials import Budget
from ..tuner.search.runoff import SharedSearch
from ..tuner.trial.outcome import (
    Candidate,
    Failure,
    Miscompiled,
    Outcome,
    ProgramResources,
    Rejected,
    Timed,
)
from ..tuner.workers.kernels_ahead import Variant
from ..tuner.workers.lab import Duel, Group, Pending
from ..tuner.workers.ranking import Ordered, SpaceLike


@dataclass(frozen=True, slots=True)
class MeasuredConfig:
    """A measured config. seconds: None where it failed, then reason says why. compile_s,
    measure_s: what it took to compile, and to check and time."""

    config: Config
    seconds: float | None
    compile_s: float
    measure_s: float
    reason: str = ""


class Listed(Ordered):
    """A space of which nothing is known but these configs."""

    def __init__(self, space: SpaceLike, configs: frozenset[Config]) -> None:
        super().__init__(space)
        self.configs = configs

    def judge(self, config: Config) -> Cost | Refusal:
        if config not in self.configs:
            return Refusal("config", "it was not measured")
        return super().judge(config)

    def ranked(self, limit: int) -> list[tuple[Config, Cost]]:
        found = [item for item in self.space.ranked(1 << 20) if item[0] in self.configs]
        return found[:limit]

    def top(self) -> tuple[Config, Cost] | None:
        return next(iter(self.ranked(1)), None)

    def seeds(self, limit: int) -> list[tuple[Config, Cost]]:
        found = [item for item in self.space.seeds(1 << 20) if item[0] in self.configs]
        return found[:limit]


@dataclass(frozen=True, slots=True)
class _Done:
    outcome: ProgramResources | Failure

    def done(self) -> bool:
        return True

    def result(self) -> ProgramResources | Failure:
        return self.outcome

    def cancel(self) -> None:
        pass


@dataclass(slots=True)
class ReplayLab:
    """Answers from what was measured, and remembers what was asked. It compiles one config at a
    time, so that a trial takes its own compilation and measurement."""

    known: Mapping[Config, MeasuredConfig]
    aten_s: float
    taken: list[MeasuredConfig] = field(default_factory=list)
    compilers: int = 1

    def compile(self, group: Group, config: Config) -> Pending:
        trial = self.known[config]
        failed = trial.seconds is None and trial.measure_s == 0.0
        if failed:
            self.taken.append(trial)
        return _Done(
            Miscompiled(trial.reason) if failed else ProgramResources(0, 0, 0, trial.compile_s)
        )

    def rank(self, group: Group, profile: DeviceProfile) -> None:
        """Whoever asks ranks them."""

    def plan(self, graph: Graph, profile: DeviceProfile, count: int) -> None:
        """Whoever asks plans it."""

    def wait(self, pending: Sequence[Pending], timeout_s: float | None = None) -> None:
        """Nothing is ever pending."""

    def compile_ahead(
        self,
        kernels: Sequence[Variant],
        meanwhile: Callable[[], None] | None = None,
        limit_s: float = math.inf,
    ) -> list[Variant]:
        """Nothing is compiled, and nothing is late."""
        return []

    def release(self) -> None:
        """It keeps nothing."""

    def measure(
        self,
        group: Group,
        candidate: Candidate,
        incumbent_s: float | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> Outcome:
        if meanwhile is not None:
            meanwhile()
        if candidate.config is not None:
            self.taken.append(self.known[candidate.config])
        return self._outcome(candidate)

    def duel(self, group: Group, candidates: Sequence[Candidate]) -> Duel:
        outcomes = tuple(map(self._outcome, candidates))
        timed = {i: o.seconds for i, o in enumerate(outcomes) if isinstance(o, Timed)}
        return Duel(outcomes, min(timed, key=lambda i: timed[i], default=None), {})

    def _outcome(self, candidate: Candidate) -> Outcome:
        if candidate.config is None:
            return Timed(self.aten_s, 0.0, 10) if lowering_of(candidate).one_by_one else _UNKNOWN
        trial = self.known[candidate.config]
        return Rejected(trial.reason) if trial.seconds is None else Timed(trial.seconds, 0.0, 10)


_UNKNOWN = Rejected("it was not measured")


class _Nowhere:
    """A store that knows nothing and keeps nothing."""

    def put_kernel(self, kernel: KernelRecord) -> None:
        pass

    def add_trial(self, trial: TrialRecord) -> int:
        return 0

    def trials(
        self, *, subject: str, device_key: str, versions: dict[str, str], after: int = 0
    ) -> list[TrialRecord]:
        return []

    def relatives(self, kernel: KernelRecord, limit: int) -> list[TrialRecord]:
        return []

    def claim(self, trial: TrialRecord, holder: str, lease_s: float) -> bool:
        return True

    def release(self, holder: str) -> None:
        pass

    def renew(self, holder: str, lease_s: float) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Economy:
    """Of one space, by the number of trials: the best seconds so far of the search and of the
    median random search, and the seconds that the search had taken by then."""

    name: str
    configs: int
    best_s: float
    ours: tuple[float, ...]
    random: tuple[float, ...]
    ours_clock: tuple[float, ...] = field(default=())
    random_clock: tuple[float, ...] = field(default=())


def searched(
    group: Group, profile: DeviceProfile, trials: Sequence[MeasuredConfig], aten_s: float, most: int
) -> list[MeasuredConfig]:
    """What the tuner's search of configs tries, in its order, at most so many. Raises
    FusionplanError when the group has no kernel today."""
    space = space_of(group.graph, profile)
    if isinstance(space, Refusal):
        raise FusionplanError(f"{group.name} has no kernel: {space}")
    lab = ReplayLab({trial.config: trial for trial in trials}, aten_s)
    ledger = Ledger(_Nowhere(), profile.key, {}, group.key)
    listed = Listed(space, frozenset(lab.known))
    bench = SharedSearch(lab, ledger, Findings(), Silent())
    tune_group(group, listed, bench, Budget(most))
    return lab.taken[:most]


def curve(
    taken: Sequence[MeasuredConfig], most: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """After 1, 2, ... `most` trials the best seconds so far (infinite before the first that runs)
    and the seconds that they took in all; a search that ended early stays where it was."""
    best, spent = float("inf"), 0.0
    found: list[tuple[float, float]] = []
    for trial in taken[:most]:
        best = min(best, best if trial.seconds is None else trial.seconds)
        spent += trial.compile_s + trial.measure_s
        found.append((best, spent))
    found += [(best, spent)] * (most - len(found))
    return tuple(b for b, _ in found), tuple(s for _, s in found)


def random_curve(
    trials: Sequence[MeasuredConfig], most: int, times: int, source: random.Random
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The median of random searches, each of which tries no config twice."""
    count = min(most, len(trials))
    curves = [curve(source.sample(list(trials), count), most) for _ in range(times)]
    middle = [
        tuple(
            statistics.median(values) for values in zip(*(one[side] for one in curves), strict=True)
        )
        for side in (0, 1)
    ]
    return middle[0], middle[1]
