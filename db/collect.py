"""Removes old plans and trials from a store (`planner gc`)."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, Connection, delete, exists, select, union

from .models import GraphRow, KernelRow, PlanRow, TrialRow
from .payload import canonical, digest


@dataclass(frozen=True, slots=True)
class Doomed:
    """The plans and trials to delete: those that match all that is given. before: last saved then;
    device_key: of that device; versions: made with one of these."""

    before: datetime | None = None
    device_key: str | None = None
    versions: tuple[dict[str, str], ...] | None = None


@dataclass(frozen=True, slots=True)
class Collected:
    """The number of rows that were deleted. Graphs and kernels go with the last plan or trial that
    names them."""

    plans: int
    trials: int
    kernels: int
    graphs: int


def collect(connection: Connection, doomed: Doomed, dry_run: bool) -> Collected:
    """Take them out, and what only they named. dry_run: count, and leave all as it was."""
    savepoint = connection.begin_nested()
    gone = Collected(
        connection.execute(delete(PlanRow).where(*_conditions(PlanRow, doomed))).rowcount,
        connection.execute(delete(TrialRow).where(*_conditions(TrialRow, doomed))).rowcount,
        connection.execute(delete(KernelRow).where(*_unnamed_kernel())).rowcount,
        connection.execute(delete(GraphRow).where(*_unnamed_graph())).rowcount,
    )
    if dry_run:
        savepoint.rollback()
    else:
        savepoint.commit()
    return gone


def versions(connection: Connection) -> list[str]:
    """All that plans and trials were made with, each once, as JSON text."""
    known = union(select(PlanRow.versions), select(TrialRow.versions))
    return list(connection.execute(known).scalars())


def _conditions(model: type[PlanRow] | type[TrialRow], doomed: Doomed) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = []
    if doomed.before is not None:
        when = model.updated_at if model is PlanRow else model.created_at
        found.append(when < doomed.before)
    if doomed.device_key is not None:
        found.append(model.device_key == doomed.device_key)
    if doomed.versions is not None:
        found.append(model.versions_sha256.in_([digest(canonical(v)) for v in doomed.versions]))
    return found


def _unnamed_kernel() -> list[ColumnElement[bool]]:
    """A plan names its kernels in its payload, which only it can read: they stay with it."""
    tried = exists(
        select(TrialRow.id).where(TrialRow.level == "kernel", TrialRow.subject == KernelRow.key)
    )
    planned = exists(select(PlanRow.key).where(PlanRow.graph_key == KernelRow.graph_key))
    return [~tried, ~planned]


def _unnamed_graph() -> list[ColumnElement[bool]]:
    tried = exists(
        select(TrialRow.id).where(TrialRow.level == "partition", TrialRow.subject == GraphRow.key)
    )
    planned = exists(select(PlanRow.key).where(PlanRow.graph_key == GraphRow.key))
    holds = exists(select(KernelRow.key).where(KernelRow.graph_key == GraphRow.key))
    return [~tried, ~planned, ~holds]
