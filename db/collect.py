"""Taking out of a store what nobody needs any more."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, Connection, delete, exists, select, union

from .models import Graph, Kernel, Plan, Trial
from .payload import canonical, digest


@dataclass(frozen=True, slots=True)
class Doomed:
    """Which plans and trials are to go: those that match all that is given. before: last saved
    then; device_key: of that device; versions: made with one of these."""

    before: datetime | None = None
    device_key: str | None = None
    versions: tuple[dict[str, str], ...] | None = None


@dataclass(frozen=True, slots=True)
class Collected:
    """How many rows went. Graphs and kernels go with the last plan or trial that names them."""

    plans: int
    trials: int
    kernels: int
    graphs: int


def collect(connection: Connection, doomed: Doomed, dry_run: bool) -> Collected:
    """Take them out, and what only they named. dry_run: count, and leave all as it was."""
    savepoint = connection.begin_nested()
    gone = Collected(
        connection.execute(delete(Plan).where(*_conditions(Plan, doomed))).rowcount,
        connection.execute(delete(Trial).where(*_conditions(Trial, doomed))).rowcount,
        connection.execute(delete(Kernel).where(*_unnamed_kernel())).rowcount,
        connection.execute(delete(Graph).where(*_unnamed_graph())).rowcount,
    )
    if dry_run:
        savepoint.rollback()
    else:
        savepoint.commit()
    return gone


def versions(connection: Connection) -> list[str]:
    """All that plans and trials were made with, each once, as JSON text."""
    known = union(select(Plan.versions), select(Trial.versions))
    return list(connection.execute(known).scalars())


def _conditions(model: type[Plan] | type[Trial], doomed: Doomed) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = []
    if doomed.before is not None:
        when = model.updated_at if model is Plan else model.created_at
        found.append(when < doomed.before)
    if doomed.device_key is not None:
        found.append(model.device_key == doomed.device_key)
    if doomed.versions is not None:
        found.append(model.versions_sha256.in_([digest(canonical(v)) for v in doomed.versions]))
    return found


def _unnamed_kernel() -> list[ColumnElement[bool]]:
    """A plan names its kernels in its payload, which only it can read: they stay with it."""
    tried = exists(select(Trial.id).where(Trial.level == "kernel", Trial.subject == Kernel.key))
    planned = exists(select(Plan.key).where(Plan.graph_key == Kernel.graph_key))
    return [~tried, ~planned]


def _unnamed_graph() -> list[ColumnElement[bool]]:
    tried = exists(select(Trial.id).where(Trial.level == "partition", Trial.subject == Graph.key))
    planned = exists(select(Plan.key).where(Plan.graph_key == Graph.key))
    holds = exists(select(Kernel.key).where(Kernel.graph_key == Graph.key))
    return [~tried, ~planned, ~holds]
