"""A laboratory without processes or devices: times come from a formula."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from fusionplan.planner.capture.capture import Captured, capture, decompositions
from fusionplan.planner.config import Config
from fusionplan.planner.costs.device import DeviceProfile
from fusionplan.planner.graph.graph import Graph
from fusionplan.tuner.trial.outcome import Candidate, Failure, Outcome, ProgramResources, Timed
from fusionplan.tuner.workers.covering import Planning
from fusionplan.tuner.workers.kernels_ahead import Variant
from fusionplan.tuner.workers.lab import Duel, Group
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

Formula = Callable[[Group, Candidate], float | Failure]
FINE = ProgramResources(32, 0, 0, 0.1)


@dataclass
class Done:
    outcome: ProgramResources | Failure
    cancelled: bool = False

    def done(self) -> bool:
        return True

    def result(self) -> ProgramResources | Failure:
        return self.outcome

    def cancel(self) -> None:
        self.cancelled = True


@dataclass
class FakeLab:
    """formula: seconds of a candidate, or its failure. interrupt_at: the measurement that
    Ctrl-C hits. refuse: what the compiler says of a config; resources: what a kernel takes."""

    formula: Formula
    compilers: int = 2
    interrupt_at: int | None = None
    planning: Planning | None = None
    refuse: Callable[[Config], Failure | None] = lambda config: None
    resources: Callable[[Config], ProgramResources] = lambda config: FINE
    compiled: list[Config] = field(default_factory=list)
    measured: list[tuple[str, Candidate]] = field(default_factory=list)
    incumbents: list[float | None] = field(default_factory=list)
    kernels_ahead: list[Variant] = field(default_factory=list)
    duels: list[list[Candidate]] = field(default_factory=list)
    duel_ends: list[Failure] = field(default_factory=list)
    """What ends the next comparisons as a whole, the last of them first."""

    def compile(self, group: Group, config: Config) -> Done:
        self.compiled.append(config)
        return Done(self.refuse(config) or self.resources(config))

    def check(self, group: Group, candidate: Candidate) -> str:
        """What is said of a kernel that is right."""
        return "nothing ran"

    def rank(self, group: Group, profile: DeviceProfile) -> None:
        """Nobody else ranks its configs."""

    def plan(self, graph: Graph, profile: DeviceProfile, count: int) -> Planning | None:
        return self.planning

    def wait(self, pending: Sequence[Done], timeout_s: float | None = None) -> None:
        raise AssertionError("nothing is ever pending")

    def compile_ahead(
        self,
        kernels: Sequence[Variant],
        meanwhile: Callable[[], None] | None = None,
        limit_s: float = math.inf,
    ) -> list[Variant]:
        self.kernels_ahead += kernels
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
        if self.interrupt_at is not None and len(self.measured) == self.interrupt_at:
            raise KeyboardInterrupt
        self.measured.append((group.key, candidate))
        self.incumbents.append(incumbent_s)
        found = self.formula(group, candidate)
        return Timed(found, 0.0, 10) if isinstance(found, float) else found

    def duel(self, group: Group, candidates: Sequence[Candidate]) -> Duel:
        self.duels.append(list(candidates))
        if self.duel_ends:
            return Duel.undecided(self.duel_ends.pop(), len(candidates))
        found = [self.formula(group, c) for c in candidates]
        outcomes = tuple(Timed(f, 0.0, 10) if isinstance(f, float) else f for f in found)
        timed = {i: o.seconds for i, o in enumerate(outcomes) if isinstance(o, Timed)}
        best = next((i for i, s in timed.items() if s <= min(timed.values()) * 1.01), None)
        return Duel(outcomes, best, {})


class OpenLab:
    """Opens one fake laboratory, whatever is asked for."""

    def __init__(self, lab: FakeLab) -> None:
        self.lab = lab

    def __call__(self, *args: object, **options: object) -> "OpenLab":
        return self

    def __enter__(self) -> FakeLab:
        return self.lab

    def __exit__(self, *error: object) -> None:
        pass


@dataclass
class FakeStopwatch:
    """Runs every call. One that gives a number says its own time; the others, plans, take 1."""

    def laps(self, calls: Sequence[Callable[[], object]]) -> list[float]:
        results = [call() for call in calls]
        return [r if isinstance(r, float) else 1.0 for r in results]

    def burst(self, calls: Sequence[Callable[[], object]]) -> float:
        return sum(self.laps(calls))


def baselines(**seconds: float | Callable[[], object]) -> Callable[[object], dict[str, object]]:
    """Baselines by name that take so long, or call something; `_` stands for `-`."""

    def call(given: float | Callable[[], object]) -> Callable[[int], object]:
        return lambda turn: given() if callable(given) else given

    made = {name.replace("_", "-"): call(given) for name, given in seconds.items()}
    return lambda turns: made


def captured(function: Callable[..., object], *inputs: torch.Tensor) -> Captured:
    """The graph of a function of tensors that gives one tensor or a tuple of them."""

    def flat(*args: torch.Tensor) -> list[object]:
        result = function(*args)
        return list(result) if isinstance(result, (tuple, list)) else [result]

    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes = [mode.from_tensor(x) for x in inputs]
        gm = make_fx(flat, decomposition_table=decompositions(), tracing_mode="real")(*fakes)
    return capture(gm)
