"""The store's record of a plan: the trials of its groups, and its history."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from ..db import PlanRecord, Store, StoreCorrupt, TrialRecord
from ..planner.costs.device import DeviceProfile
from ..planner.errors import Refusal
from ..planner.graph.graph import Graph
from ..planner.groups.group import GroupContent
from ..planner.lowerings.aten import aten_s
from ..planner.lowerings.triton import space_for
from ..planner.plan import GroupPlan, Plan
from ..tuner.trial.outcome import ATEN, Candidate
from .data import Alternative, HistoryEntry, SearchReport, Tried

MOST_TRIALS = 1000
"""Of one group; of more the newest."""
MOST_RUNS = 200
"""Entries of a history; of more the newest."""
_ALTERNATIVES = 5


def search(
    graph: Graph, plan: Plan, group: GroupPlan, device: DeviceProfile, store: Store | None
) -> SearchReport:
    """The trials of a group of the plan, on its device and by its versions. Where nothing was
    measured, the alternatives are the model's."""
    chosen = Candidate(group.lowering, group.config, group.options)
    records = [] if store is None else _records(store, plan, group.kernel_key)
    tried = tuple(_tried(record, chosen) for record in records[-MOST_TRIALS:])
    timed = [t for t in tried if t.seconds is not None]
    if timed:
        alternatives = _measured(timed)
    else:
        alternatives = _modelled(GroupContent.of(graph, group.nodes, group.copies), chosen, device)
    return SearchReport(group.kernel_key, tried, alternatives, len(records) - len(tried))


def _records(store: Store, plan: Plan, kernel_key: str) -> list[TrialRecord]:
    versions = dict(plan.versions)
    return store.trials(
        level="kernel", subject=kernel_key, device_key=plan.device, versions=versions
    )


def _tried(record: TrialRecord, chosen: Candidate) -> Tried:
    candidate = _candidate(record.config)
    return Tried(
        lowering=str(record.config.get("lowering", "?")),
        candidate=json.dumps(record.config) if candidate is None else _named(candidate),
        outcome=record.outcome,
        reason=record.reason or "",
        seconds=record.measured_s,
        predicted_s=record.predicted_s,
        registers=record.registers,
        chosen=candidate == chosen,
        when=record.created_at.isoformat(timespec="seconds"),
    )


def _candidate(config: Mapping[str, object]) -> Candidate | None:
    try:
        return Candidate.from_json(config)
    except ValueError:  # written by a version with other configs
        return None


def _named(candidate: Candidate) -> str:
    return str(candidate)


def _measured(timed: Iterable[Tried]) -> tuple[Alternative, ...]:
    """The best of every lowering, and the next best of all; what is chosen left out."""
    others = sorted((t for t in timed if not t.chosen), key=lambda t: t.seconds or 0.0)
    first = {t.lowering: t for t in reversed(others)}
    kept = {t.candidate: t for t in [*first.values(), *others[:_ALTERNATIVES]]}
    found = sorted(kept.values(), key=lambda t: t.seconds or 0.0)
    return tuple(Alternative(t.candidate, t.seconds or 0.0, True) for t in found)


def _modelled(
    part: GroupContent, chosen: Candidate, device: DeviceProfile
) -> tuple[Alternative, ...]:
    """The best config of each class of the group's space, and ATen."""
    space = space_for(part, device)
    seeds = [] if isinstance(space, Refusal) else space.seeds(_ALTERNATIVES + 1)
    found = [(Candidate.generated(config), cost.seconds) for config, cost in seeds]
    found.append((ATEN, aten_s(part.group, device)))
    others = sorted((each for each in found if each[0] != chosen), key=lambda each: each[1])
    return tuple(Alternative(_named(who), seconds, False) for who, seconds in others)


# --- history ---


def runs(store: Store, name: str, plan: Plan) -> tuple[HistoryEntry, ...]:
    """The plans that were stored under this name, or of this graph on this device, and the whole
    plans of the graph that a search timed; oldest first."""
    same = store.plans(graph_key=plan.graph_key, device_key=plan.device)
    named = store.plans(name=name, limit=MOST_RUNS)
    saved = {record.key: record for record in [*same, *named]}
    devices = {device.key: device.name for device in store.devices()}
    timed = store.trials(
        level="partition",
        subject=plan.graph_key,
        device_key=plan.device,
        limit=MOST_RUNS,
        newest_first=True,
    )
    found = [_of_trial(t, devices) for t in reversed(timed)]
    found += [_of_plan(r, devices, plan.graph_key) for r in saved.values()]
    return tuple(sorted(found, key=lambda run: run.when)[-MOST_RUNS:])


def _of_trial(trial: TrialRecord, devices: Mapping[str, str]) -> HistoryEntry:
    groups = trial.config.get("groups")
    return HistoryEntry(
        when=trial.created_at.isoformat(timespec="seconds"),
        key=None,
        evidence=trial.outcome,
        device=devices.get(trial.device_key, trial.device_key),
        versions=_versions(trial.versions),
        groups=len(groups) if isinstance(groups, list) else 0,
        predicted_s=trial.predicted_s,
        measured_s=trial.measured_s,
        same_graph=True,
    )


def _of_plan(record: PlanRecord, devices: Mapping[str, str], graph_key: str) -> HistoryEntry:
    try:
        plan = Plan.from_json(record.payload)
    except ValueError as error:
        raise StoreCorrupt(f"Plan {record.key} cannot be read ({error}): tune it again.") from error
    return HistoryEntry(
        when=record.updated_at.isoformat(timespec="seconds"),
        key=record.key,
        evidence=record.evidence,
        device=devices.get(record.device_key, record.device_key),
        versions=_versions(record.versions),
        groups=len(plan.groups),
        predicted_s=plan.predicted,
        measured_s=plan.measured,
        same_graph=record.graph_key == graph_key,
    )


def _versions(versions: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((str(k), str(v)) for k, v in versions.items()))
