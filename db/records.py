"""The records that go into a store and come out of it: plain data, no database in sight.

A `dict` field is JSON: string keys, finite numbers. Times are aware datetimes in UTC.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

Level = Literal["kernel", "partition"]
Outcome = Literal["timed", "miscompiled", "wrong", "timed_out", "crashed", "rejected"]
Evidence = Literal["measured", "searched", "modelled"]
EVIDENCE: tuple[Evidence, ...] = ("modelled", "searched", "measured")
"""The weakest first."""
CalibrationSource = Literal["measured", "refitted"]


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class DeviceRecord:
    """A device and its profile, as calibrated or built in."""

    key: str
    name: str
    sm_count: int
    memory_bytes: int
    capability: str
    profile: dict[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class GraphRecord:
    """A captured graph in canonical form; the key is the digest of that form."""

    key: str
    name: str
    nodes: int
    payload: dict[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class KernelRecord:
    """A group with its dtypes, strides and shape: what one kernel is tuned for. form: a digest of
    what it shares with groups of other sizes."""

    key: str
    graph_key: str
    family: str
    payload: dict[str, Any] = field(repr=False)
    form: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRecord:
    """One candidate tried: what was predicted, what came of it.

    Identity is (level, subject, device_key, versions, config, timing): the same candidate tried by
    another study or process is the same trial. `subject` is a kernel's key at level `kernel` and a
    graph's key at level `partition`. `timing` starts with `cold`, `warm` or `graph`. `transient`:
    it failed for what may be no fault of the candidate's, so that another trial takes its place.
    """

    study: str
    level: Level
    subject: str
    device_key: str
    versions: dict[str, str]
    config: dict[str, Any]
    outcome: Outcome
    timing: str
    reason: str | None = None
    measured_s: float | None = None
    spread_s: float | None = None
    predicted_s: float | None = None
    registers: int | None = None
    predicted_registers: int | None = None
    spill_bytes: int | None = None
    predicted_spills: int | None = None
    shared_bytes: int | None = None
    hbm_bytes: int | None = None
    compile_s: float | None = None
    transient: bool = False
    created_at: datetime = field(default_factory=_now)
    id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRecord:
    """The winner for (graph_key, device_key, versions), with the evidence for it. bucket_key: what
    its graph shares with those of like sizes, for which the plan holds too; None where no size
    varies."""

    key: str
    graph_key: str
    device_key: str
    versions: dict[str, str]
    name: str
    evidence: Evidence
    payload: dict[str, Any] = field(repr=False)
    speedup: float | None = None
    bucket_key: str | None = None
    created_at: datetime = field(default_factory=_now)
    updated_at: datetime = field(default_factory=_now)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """A search of a graph, for those who share it. tune: the id of the tune that offers it.
    payload: the graph itself, and how far it is to be searched."""

    key: str
    tune: str
    name: str
    graph_key: str
    device_key: str
    versions: dict[str, str]
    payload: dict[str, Any]
    created_at: datetime = field(default_factory=_now)


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationRecord:
    """A profile of a device that the cost model is to count with, and why: `evidence` says what was
    measured, or on which trials it was fitted. One that was undone no longer counts."""

    device_key: str
    source: CalibrationSource
    profile: dict[str, Any] = field(repr=False)
    evidence: dict[str, Any]
    created_at: datetime = field(default_factory=_now)
    undone_at: datetime | None = None
    id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySummary:
    """The result of a study, for one subject on one device."""

    study: str
    level: Level
    subject: str
    device_key: str
    trials: int
    failures: int
    best_s: float | None
    best_config: dict[str, Any] | None
    started: datetime
    finished: datetime


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Plans with all that they refer to, and the trials behind them."""

    devices: tuple[DeviceRecord, ...] = ()
    graphs: tuple[GraphRecord, ...] = ()
    kernels: tuple[KernelRecord, ...] = ()
    trials: tuple[TrialRecord, ...] = ()
    plans: tuple[PlanRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class Counts:
    """added: was not there. replaced: was there, and gave way to what is better. kept: was there,
    and stays as it is."""

    added: int = 0
    replaced: int = 0
    kept: int = 0


@dataclass(frozen=True, slots=True)
class Merged:
    """The counts of a merge: what became of each table's records."""

    devices: Counts = field(default_factory=Counts)
    graphs: Counts = field(default_factory=Counts)
    kernels: Counts = field(default_factory=Counts)
    trials: Counts = field(default_factory=Counts)
    plans: Counts = field(default_factory=Counts)
