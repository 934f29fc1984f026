"""The plan of a name as it was on a date: `NAME@2026-11-20`."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, time

from ..db import PlanNotFound, Store, TrialRecord
from ..planner.plan import GroupPlan, Plan
from . import stored
from .errors import UsageError
from .render import KEY, ShownPlan

SIGN = "@"


def find(store: Store, wanted: str) -> ShownPlan:
    """The plan of that name, file or key; with `@` and a date behind it, as it was then: the plan
    that was saved by then, or else the fastest whole plan of its graph that a search had timed,
    by the versions of the last one. Raises PlanNotFound where there is none of that date."""
    name, sign, date = wanted.rpartition(SIGN)
    if not sign:
        return stored.find(store, wanted)
    until = _end(date)
    found = stored.find(store, name)
    record = store.find_plan(found.key)
    if record.updated_at <= until:
        return found
    timed = store.trials(level="partition", subject=record.graph_key, outcome="timed")
    timed = [t for t in timed if t.device_key == record.device_key and t.measured_s is not None]
    then = [t for t in timed if t.created_at <= until]
    if not then:
        first = min((t.created_at for t in timed), default=record.updated_at)
        raise PlanNotFound(
            f"{name}: the store has no plan of {date}; its first is of {first:%Y-%m-%d %H:%M} UTC"
        )
    same = [t for t in then if t.versions == then[-1].versions]
    best = min(same, key=lambda t: t.measured_s or 0.0)
    plan = _plan(best)
    groups = tuple(_timed(store, group, plan, until) for group in plan.groups)
    key = f"{found.key[:KEY]}{SIGN}{date}"
    return replace(found, key=key, plan=replace(plan, groups=groups))


def _end(date: str) -> datetime:
    """The moment, or the last one of that day, in UTC."""
    try:
        moment = datetime.fromisoformat(date)
    except ValueError as error:
        raise UsageError(
            f"{date!r} is no date: write NAME{SIGN}2026-11-20, or NAME{SIGN}2026-11-20T18:00"
        ) from error
    if len(date) <= len("2026-11-20"):
        moment = datetime.combine(moment.date(), time.max)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


def _plan(trial: TrialRecord) -> Plan:
    """The whole plan that a search timed. Raises PlanNotFound for a trial of another form."""
    versions = sorted(trial.versions.items())
    told = {
        "graph_key": trial.subject,
        "device": trial.device_key,
        "versions": versions,
        "evidence": "searched",
        "measured": trial.measured_s,
        "predicted": trial.predicted_s,
    }
    try:
        return Plan.from_json(told | trial.config)
    except ValueError as error:
        raise PlanNotFound(f"the plan of trial {trial.id} cannot be read: {error}") from error


def _timed(store: Store, group: GroupPlan, plan: Plan, until: datetime) -> GroupPlan:
    """The group with the seconds that were last measured of it by then."""
    from ..tuner.trial.outcome import Candidate

    own = Candidate(group.lowering, group.config, group.options).to_json()
    trials = store.trials(level="kernel", subject=group.kernel_key, device_key=plan.device)
    seconds = [t.measured_s for t in trials if t.config == own and t.created_at <= until]
    return replace(group, measured=seconds[-1]) if seconds else group
