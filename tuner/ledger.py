"""What the store knows of a group, and what a tune writes down: each trial as it ends."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from ..db.records import DeviceRecord, GraphRecord, KernelRecord, StudySummary, TrialRecord
from ..planner.costs.cost import Cost
from ..planner.costs.device import DeviceProfile
from ..planner.graph.graph import INPUT, Graph, to_json
from ..planner.graph.ops import Reduction, is_compute, row
from ..planner.plan import Plan
from .lab import Group
from .outcome import (
    Candidate,
    Outcome,
    Resources,
    Timed,
    failure,
    is_transient,
    name_of,
)

TIMING = "cold"


class TrialStore(Protocol):
    """The part of `db.Store` that a search needs."""

    def put_kernel(self, kernel: KernelRecord) -> None: ...
    def kernel(self, key: str) -> KernelRecord | None: ...
    def add_trial(self, trial: TrialRecord) -> int: ...
    def trials(
        self, *, subject: str, device_key: str, versions: dict[str, str]
    ) -> list[TrialRecord]: ...
    def studies(self) -> list[StudySummary]: ...


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
    _doubted: set[tuple[str, Candidate]] = field(default_factory=set)
    """What failed in an earlier run for a cause that may lie outside of it."""
    _failed: set[tuple[str, Candidate]] = field(default_factory=set)
    """The same of this run."""

    def open(self, group: Group) -> list[Known]:
        """Put the group's record; give what is known of it, oldest first."""
        payload = {"graph": dict(group.data), "form": form(group.graph)}
        self.store.put_kernel(KernelRecord(group.key, self.graph_key, family(group.graph), payload))
        found = self.store.trials(
            subject=group.key, device_key=self.device_key, versions=dict(self.versions)
        )
        known = [k for t in found if t.timing == self.timing and (k := _known(t)) is not None]
        doubted = {(group.key, k.candidate) for k in known if is_transient(k.outcome)}
        self._doubted |= doubted - self._failed
        return known

    def neighbours(self, group: Group) -> list[Candidate]:
        """Winners of groups that differ from this one in nothing but sizes, on this device."""
        wanted, found = form(group.graph), []
        for study in self.store.studies():
            if study.level != "kernel" or study.subject == group.key or not study.best_config:
                continue
            kernel = self.store.kernel(study.subject)
            if kernel is not None and kernel.payload.get("form") == wanted:
                found.append((study.device_key != self.device_key, study.best_config))
        candidates = []
        for _, config in sorted(found, key=lambda item: item[0]):
            try:
                candidates.append(Candidate.from_json(config))
            except ValueError:  # written by a version with other configs
                continue
        return [c for c in dict.fromkeys(candidates) if c.config is not None]

    def add(
        self,
        group: Group,
        candidate: Candidate,
        outcome: Outcome,
        cost: Cost | None = None,
        resources: Resources | None = None,
    ) -> None:
        """Write a trial down; it is on disk when this returns."""
        outcome = self._judged(group, candidate, outcome)
        timing = outcome if isinstance(outcome, Timed) else None
        record = TrialRecord(
            study=study_name(group),
            level="kernel",
            subject=group.key,
            device_key=self.device_key,
            versions=dict(self.versions),
            config=candidate.to_json(),
            outcome=name_of(outcome),
            timing=self.timing,
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
        candidate's. Inductor compiles for minutes, so of it once is enough."""
        if isinstance(outcome, Timed) or not outcome.transient:
            return outcome
        about = (group.key, candidate)
        twice = about in self._failed or candidate.lowering == "inductor"
        self._failed.add(about)
        sure = twice and about in self._doubted
        return replace(outcome, transient=False) if sure else outcome

    def add_plan(self, plan: Plan, name: str) -> None:
        """Write down the time of a whole plan, end to end."""
        data = plan.to_json()
        groups = [
            {k: g[k] for k in ("nodes", "lowering", "kernel_key", "config", "options")}
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
    """What two groups of different sizes share: operations, wiring, ranks and dtypes."""
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
