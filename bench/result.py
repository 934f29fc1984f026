"""Records of what was measured: JSON between the processes and in the report."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field, TypeAdapter

OURS = "fusionplan"
EAGER = "eager"
REWRITTEN = "flex"
"""The workload rewritten by hand with FlexAttention: shown, but no baseline."""

ROUNDS = 100
"""Of each half of a measurement, at least."""

PositiveSeconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True)
class Machine:
    """driver: "" where it cannot be read."""

    device: str
    torch: str
    triton: str
    python: str
    driver: str = ""


@dataclass(frozen=True, slots=True)
class Timing:
    """seconds: the median of all runs. halves_s: the median of each half. quartiles_s: between
    the first and the third quartile."""

    seconds: PositiveSeconds
    halves_s: tuple[PositiveSeconds, ...]
    quartiles_s: float
    runs: int

    @property
    def spread(self) -> float:
        """How far the halves are apart, as a part of the median."""
        return (max(self.halves_s) - min(self.halves_s)) / self.seconds


@dataclass(frozen=True, slots=True)
class Against:
    """Our time over a baseline's: the median over the rounds, and its 95% confidence interval."""

    baseline: str
    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors against float64, as root mean squares relative to the elements. problem: why the
    numbers are not acceptable; "" where they are."""

    ours: float
    eager: float
    problem: str = ""

    @property
    def ratio(self) -> float:
        """Our error over eager's."""
        if self.ours == self.eager:
            return 1.0
        return self.ours / self.eager if self.eager else float("inf")


@dataclass(frozen=True, slots=True)
class Missing:
    """The store has no plan for the workload, or one that cannot be built; or something else that
    was asked for is not there."""

    why: str


@dataclass(frozen=True, slots=True)
class Predicted:
    """The cost model's figures of one call. hbm_bytes: None where a graph has no plan of ours.
    whole: whether every kernel is generated; of the others only their inputs and results count,
    each once."""

    hbm_bytes: int | None
    whole: bool = True


@dataclass(frozen=True, slots=True)
class CountedTraffic:
    """The counts of ncu over the kernels of one call, each begun with an empty cache: bytes read
    from and written to the memory, bytes through the L2 cache, seconds."""

    read_bytes: int
    written_bytes: int
    l2_bytes: int
    seconds: float
    kernels: int
    predicted: Predicted

    @property
    def hbm_bytes(self) -> int:
        return self.read_bytes + self.written_bytes


@dataclass(frozen=True, slots=True)
class MeasuredWorkload:
    """One workload. kernels: generated kernels of a call. lowerings: how the parts of the plan
    run, "aten" included where some operation is in no group. plan: its configs, for people.
    extra_bytes: most memory that a call takes besides its inputs, its result included. floor_s:
    seconds below which its device does not compute it; None in reports of before each had its own.
    traffic: None where it was not asked for."""

    name: str
    machine: Machine
    times: dict[str, Timing]
    best: Against
    accuracy: Errors
    kernels: int
    lowerings: tuple[str, ...]
    plan: str
    cudagraph: bool = False
    extra_bytes: dict[str, int] = field(default_factory=dict)
    conditions: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    tune_s: float | None = None
    floor_s: float | None = None
    traffic: CountedTraffic | Missing | None = None


@dataclass(frozen=True, slots=True)
class Requirement:
    """The most that a call may take: seconds, and bytes besides its inputs. None: not asked."""

    reach_s: float | None = None
    peak_extra: int | None = None


@dataclass(frozen=True, slots=True)
class HostCost:
    """Host microseconds of a call on a tensor of so many elements, by how it is called."""

    elements: int
    microseconds: dict[str, float]


@dataclass(frozen=True, slots=True)
class HostCosts:
    machine: Machine
    costs: tuple[HostCost, ...]


@dataclass(frozen=True, slots=True)
class WorkloadReport:
    """One run of the benchmark. failed: why, by the workload's name. floors_s, asked: by workload,
    asked only of those of which something is."""

    date: str
    commit: str
    command: str
    workloads: tuple[MeasuredWorkload, ...]
    failed: dict[str, str]
    floors_s: dict[str, float]
    host: HostCosts | None = None
    asked: dict[str, Requirement] = field(default_factory=dict)
    format: int = 1

    @property
    def machine(self) -> Machine | None:
        """Where it ran; None when nothing was measured."""
        found = [m.machine for m in self.workloads] + ([self.host.machine] if self.host else [])
        return found[0] if found else None


CHILD: TypeAdapter[MeasuredWorkload | Missing] = TypeAdapter(MeasuredWorkload | Missing)
PREDICTED: TypeAdapter[Predicted | Missing] = TypeAdapter(Predicted | Missing)
HOST: TypeAdapter[HostCosts] = TypeAdapter(HostCosts)
REPORT: TypeAdapter[WorkloadReport] = TypeAdapter(WorkloadReport)
