"""The ledger: what the store knows of a group, and each trial, written down as it ends."""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from ...db.claims import LEASE_S
from ...db.errors import StoreError
from ...db.payload import canonical, digest
from ...db.records import DeviceRecord, GraphRecord, KernelRecord, TrialRecord
from ...planner.costs.cost import Cost
from ...planner.costs.device import DeviceProfile
from ...planner.graph.graph import INPUT, Graph, to_json
from ...planner.graph.ops import Reduction, is_compute, row
from ...planner.lowerings.registry import lowering_of
from ...planner.plan import Plan
from ..trial.outcome import (
    Candidate,
    Outcome,
    ProgramResources,
    Timed,
    failure,
    is_transient,
    name_of,
)
from ..workers.lab import Group
from .heartbeat import Heartbeat

TIMING = "cold"
NEIGHBOURS = 64
"""At most so many trials of groups of other sizes are read."""
LATE = 64
"""Ids by which a trial may come later than one with a higher id."""


class TrialStore(Protocol):
    """The part of `db.Store` that a search needs."""

    def put_kernel(self, kernel: KernelRecord) -> None: ...
    def add_trial(self, trial: TrialRecord) -> int: ...
    def trials(
        self, *, subject: str, device_key: str, versions: dict[str, str], after: int = ...
    ) -> list[TrialRecord]: ...
    def relatives(self, kernel: KernelRecord, limit: int) -> list[TrialRecord]: ...
    def claim(self, trial: TrialRecord, holder: str, lease_s: float) -> bool: ...
    def release(self, holder: str) -> None: ...
    def renew(self, holder: str, lease_s: float) -> None: ...


@dataclass(frozen=True, slots=True)
class Known:
    """A candidate with what came of it, in this run or an earlier one."""

    candidate: Candidate
    outcome: Outcome


@dataclass(slots=True)
class Ledger:
    """Trials of one tune, on one device and these versions. timing: see `TrialRecord`."""

    store: TrialStore
    device_key: str
    versions: Mapping[str, str]
    graph_key: str
    timing: str = TIMING
    written: list[TrialRecord] = field(default_factory=list)
    studies: set[str] = field(default_factory=set)
    """Of the groups that were opened."""
    holder: str = field(default_factory=lambda: uuid.uuid4().hex)
    """This tuner among those that share the store."""
    _seen: dict[str, int] = field(default_factory=dict)
    """The newest trial of each group that was read."""
    _alive: Heartbeat | None = None
    _renewed: float = 0.0
    """When all claims were renewed last, on `time.monotonic`."""
    _doubted: set[tuple[str, Candidate]] = field(default_factory=set)
    """What failed in an earlier run for a cause that may lie outside of it."""
    _failed: set[tuple[str, Candidate]] = field(default_factory=set)
    """The same of this run."""

    def open(self, group: Group) -> list[Known]:
        """Put the group's record; give what is known of it, oldest first."""
        self.store.put_kernel(self._record(group))
        self.studies.add(study_name(group))
        known = self._read(group, 0)
        doubted = {(group.key, k.candidate) for k in known if is_transient(k.outcome)}
        self._doubted |= doubted - self._failed
        return known

    def news(self, group: Group) -> list[Known]:
        """The results of other tuners for the group since this was last called."""
        # A server hands out ids before it commits what they are of.
        return self._read(group, max(0, self._seen.get(group.key, 0) - LATE))

    def _read(self, group: Group, after: int) -> list[Known]:
        found = self.store.trials(
            subject=group.key,
            device_key=self.device_key,
            versions=dict(self.versions),
            after=after,
        )
        if found:
            self._seen[group.key] = max(t.id or 0 for t in found)
        return [k for t in found if t.timing == self.timing and (k := _known(t)) is not None]

    def _record(self, group: Group) -> KernelRecord:
        shape = form(group.graph)
        payload = {"graph": dict(group.data), "form": shape}
        digested = digest(canonical({"form": shape}))
        return KernelRecord(group.key, self.graph_key, family(group.graph), payload, digested)

    def neighbours(self, group: Group) -> list[Candidate]:
        """Winners of groups that differ from this one in nothing but sizes, of this device
        first."""
        found = self.store.relatives(self._record(group), NEIGHBOURS)
        candidates = []
        for trial in sorted(found, key=lambda t: t.device_key != self.device_key):
            try:
                candidates.append(Candidate.from_json(trial.config))
            except ValueError:  # written by a version with other configs
                continue
        return [c for c in dict.fromkeys(candidates) if c.config is not None]

    # Claims: several tuners of one model share its trials out

    def claim(self, group: Group, candidate: Candidate) -> bool:
        """Whether nobody else is at it; it is then this tuner's to measure, until `add` or
        `let_go`."""
        if self._alive is None:
            self._alive = Heartbeat(self._renew, LEASE_S / 4)
        began = time.monotonic()
        won = self.store.claim(self._trial(group, candidate), self.holder, LEASE_S)
        if won and self._alive.start():
            self._renewed = began
        return won

    def keeps(self, group: Group, candidate: Candidate) -> bool:
        """Whether what was claimed some time ago is this tuner's still. A busy database may have
        kept the heartbeat from renewing it; it is then claimed again."""
        if time.monotonic() - self._renewed < LEASE_S / 2:
            return True
        return self.claim(group, candidate)

    def let_go(self) -> None:
        """Nothing is this tuner's any more."""
        if self._alive is not None:
            self._alive.stop()
            self.store.release(self.holder)

    def _renew(self) -> None:
        # That the store cannot be written is told by the next trial.
        with contextlib.suppress(StoreError):
            began = time.monotonic()
            self.store.renew(self.holder, LEASE_S)
            self._renewed = began

    def _trial(self, group: Group, candidate: Candidate) -> TrialRecord:
        """What identifies the trial."""
        return TrialRecord(
            study=study_name(group),
            level="kernel",
            subject=group.key,
            device_key=self.device_key,
            versions=dict(self.versions),
            config=candidate.to_json(),
            outcome="rejected",
            timing=self.timing,
        )

    def add(
        self,
        group: Group,
        candidate: Candidate,
        outcome: Outcome,
        cost: Cost | None = None,
        resources: ProgramResources | None = None,
    ) -> None:
        """Write a trial down; it is on disk when this returns."""
        outcome = self._judged(group, candidate, outcome)
        timing = outcome if isinstance(outcome, Timed) else None
        record = replace(
            self._trial(group, candidate),
            outcome=name_of(outcome),
            reason=_reason(outcome),
            transient=is_transient(outcome),
            measured_s=timing.seconds if timing else None,
            spread_s=timing.spread_s if timing else None,
            predicted_s=cost.seconds if cost else None,
            registers=resources.registers if resources else None,
            predicted_registers=cost.registers if cost else None,
            spill_bytes=resources.spill_bytes if resources else None,
            predicted_spills=cost.spill_bytes if cost else None,
            shared_bytes=resources.shared_bytes if resources else None,
            hbm_bytes=cost.hbm_bytes if cost else None,
            compile_s=resources.compile_s if resources else None,
        )
        self.store.add_trial(record)
        self.written.append(record)

    def _judged(self, group: Group, candidate: Candidate, outcome: Outcome) -> Outcome:
        """A failure that was doubted in an earlier run and met twice in this one is the
        candidate's. Of one that compiles for minutes once is enough."""
        if isinstance(outcome, Timed) or not outcome.transient:
            return outcome
        about = (group.key, candidate)
        twice = about in self._failed or lowering_of(candidate).slow
        self._failed.add(about)
        sure = twice and about in self._doubted
        return replace(outcome, transient=False) if sure else outcome

    def add_plan(self, plan: Plan, name: str) -> None:
        """Write down the time of a whole plan, end to end."""
        data = plan.to_json()
        groups = [
            {k: g[k] for k in ("nodes", "lowering", "kernel_key", "config", "options")}
            | {k: g[k] for k in ("copies", "bodies") if g[k]}
            for g in data["groups"]
        ]
        self.store.add_trial(
            TrialRecord(
                study=f"partition {name or self.graph_key[:12]}",
                level="partition",
                subject=self.graph_key,
                device_key=self.device_key,
                versions=dict(self.versions),
                config={
                    "groups": groups,
                    "cudagraph": plan.cudagraph,
                    "overlaps": plan.overlaps,
                },
                outcome="timed",
                timing=self.timing,
                measured_s=plan.measured,
                predicted_s=plan.predicted,
            )
        )


def study_name(group: Group) -> str:
    """Of a group's trials, in the store and in Optuna's tables."""
    return f"{group.name} {group.key[:12]}"


def device_record(profile: DeviceProfile) -> DeviceRecord:
    return DeviceRecord(
        profile.key,
        profile.name,
        profile.sm_count,
        profile.memory_bytes,
        str(profile.capability),
        json.loads(json.dumps(profile.to_json())),
    )


def graph_record(graph: Graph, key: str, name: str) -> GraphRecord:
    return GraphRecord(key, name, len(graph.nodes), to_json(graph))


def family(group: Graph) -> str:
    """The kind of kernel, for the model's accuracy by kind."""
    return "reduction" if any(isinstance(row(n), Reduction) for n in group.nodes) else "pointwise"


def form(group: Graph) -> list[Any]:
    """The form of a group, which it shares with groups of other sizes: operations, wiring, ranks
    and dtypes."""
    rows: list[Any] = []
    for node in group.nodes:
        kind = None if node.type is None else [len(node.type.shape), node.type.dtype]
        rows.append([node.op, list(node.inputs), kind])
    return [rows, list(group.outputs)]


def compute_count(group: Graph) -> int:
    """Operations that do work: what the aten lowering launches."""
    return sum(is_compute(n) for n in group.nodes if n.op != INPUT)


def _reason(outcome: Outcome) -> str | None:
    if isinstance(outcome, Timed):
        return "stopped early: far slower than the best" if outcome.stopped else None
    return outcome.reason


def _known(trial: TrialRecord) -> Known | None:
    try:
        candidate = Candidate.from_json(trial.config)
    except ValueError:
        return None
    if trial.outcome != "timed":
        return Known(candidate, failure(trial.outcome, trial.reason or "", trial.transient))
    if trial.measured_s is None:
        return None
    stopped = trial.reason is not None
    return Known(candidate, Timed(trial.measured_s, trial.spread_s or 0.0, 0, stopped))
