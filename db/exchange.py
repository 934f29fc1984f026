"""Copies records from one store into another, in which nothing is lost."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, insert, select, update

from .errors import StoreCorrupt
from .models import Base, DeviceRow, GraphRow, KernelRow, PlanRow, TrialRow
from .records import (
    Counts,
    DeviceRecord,
    GraphRecord,
    KernelRecord,
    Merged,
    PlanRecord,
    Snapshot,
    TrialRecord,
)
from .rows import LAYOUTS, R, columns, record

_CHUNK = 500
"""Values in one question: databases limit how many there may be."""


def snapshot(
    connection: Connection, shown: str, plans: Sequence[str] | None, kernels: Sequence[str]
) -> Snapshot:
    """The plans of these keys (None: all), and what belongs to them: their graphs, these kernels
    and those first seen in their graphs, and all trials of them that say something of a candidate.
    shown: the store's name, for errors. Raises StoreCorrupt."""

    def read(kind: type[R], *where: ColumnElement[bool]) -> list[R]:
        table = LAYOUTS[kind].model.__table__
        query = select(table).where(*where).order_by(table.c[LAYOUTS[kind].key])
        return [record(kind, row, shown) for row in connection.execute(query).mappings()]

    def chunked(kind: type[R], column: Any, keys: Iterable[str]) -> Iterator[R]:
        for chunk in _chunks(sorted(set(keys))):
            yield from read(kind, column.in_(chunk))

    sure = ~TrialRow.transient
    if plans is None:
        return Snapshot(
            tuple(read(DeviceRecord)),
            tuple(read(GraphRecord)),
            tuple(read(KernelRecord)),
            tuple(read(TrialRecord, sure)),
            tuple(read(PlanRecord)),
        )
    chosen = list(chunked(PlanRecord, PlanRow.key, plans))
    graph_keys = {plan.graph_key for plan in chosen}
    own = {k.key: k for k in chunked(KernelRecord, KernelRow.graph_key, graph_keys)}
    own |= {k.key: k for k in chunked(KernelRecord, KernelRow.key, kernels)}
    graph_keys |= {kernel.graph_key for kernel in own.values()}
    devices = {plan.device_key for plan in chosen}
    trials = [
        trial
        for chunk in _chunks(sorted({*own, *graph_keys}))
        for trial in read(TrialRecord, sure, TrialRow.subject.in_(chunk))
        if trial.device_key in devices
    ]
    return Snapshot(
        tuple(chunked(DeviceRecord, DeviceRow.key, devices)),
        tuple(chunked(GraphRecord, GraphRow.key, graph_keys)),
        tuple(own.values()),
        tuple(trials),
        tuple(chosen),
    )


def storable(given: Snapshot) -> None:
    """Raises ValueError for a record that cannot be written down."""
    for kind in fields(given):
        for each in getattr(given, kind.name):
            columns(each)


def kept_of_first(plan: PlanRecord) -> frozenset[str]:
    """What stays of the plan that this one replaces: when it was first made, and its bucket where
    this one has none."""
    return frozenset({"created_at"} | ({"bucket_key"} if plan.bucket_key is None else set()))


def merge(
    connection: Connection,
    given: Snapshot,
    shown: str,
    if_better: Callable[[PlanRecord, PlanRecord], bool],
) -> Merged:
    """Add what the store has not. A device keeps the profile that it has here, a trial that was
    made here counts unless it is transient, and a plan gives way only where `if_better` says so.
    Raises StoreError."""
    return Merged(
        _add_by_key(connection, DeviceRow, given.devices),
        _add_by_key(connection, GraphRow, given.graphs),
        _add_by_key(connection, KernelRow, given.kernels),
        _add_trials(connection, given.trials),
        _add_plans(connection, given.plans, shown, if_better),
    )


def _add_by_key(
    connection: Connection,
    model: type[DeviceRow] | type[GraphRow] | type[KernelRow],
    records: Sequence[DeviceRecord] | Sequence[GraphRecord] | Sequence[KernelRecord],
) -> Counts:
    there: set[str] = set()
    for chunk in _chunks([each.key for each in records]):
        there.update(connection.execute(select(model.key).where(model.key.in_(chunk))).scalars())
    new = [each for each in records if each.key not in there]
    _insert(connection, model, [columns(each) for each in new])
    return Counts(added=len(new), kept=len(records) - len(new))


def _add_trials(connection: Connection, records: Sequence[TrialRecord]) -> Counts:
    there: dict[tuple[Any, ...], RowMapping] = {}
    identity = [TrialRow.__table__.c[name] for name in LAYOUTS[TrialRecord].identity]
    for chunk in _chunks(sorted({each.subject for each in records})):
        query = select(TrialRow.id, TrialRow.transient, *identity).where(
            TrialRow.subject.in_(chunk)
        )
        for found in connection.execute(query).mappings():
            there[_identity(found)] = found
    new: dict[tuple[Any, ...], dict[str, Any]] = {}
    replaced = 0
    for each in records:
        row = columns(each)
        del row["id"]
        known = there.get(_identity(row))
        if known is None:
            new.setdefault(_identity(row), row)
        elif known["transient"]:
            connection.execute(update(TrialRow).where(TrialRow.id == known["id"]).values(row))
            replaced += 1
    _insert(connection, TrialRow, list(new.values()))
    return Counts(len(new), replaced, len(records) - len(new) - replaced)


def _add_plans(
    connection: Connection,
    records: Sequence[PlanRecord],
    shown: str,
    if_better: Callable[[PlanRecord, PlanRecord], bool],
) -> Counts:
    added = replaced = 0
    for each in records:
        row = columns(each)
        same = [PlanRow.__table__.c[name] == row[name] for name in LAYOUTS[PlanRecord].identity]
        query = select(PlanRow.__table__).where(*same).with_for_update()
        there = connection.execute(query).mappings().first()
        if there is None:
            _insert(connection, PlanRow, [row])
            added += 1
        elif _gives_way(there, each, shown, if_better):
            stays = kept_of_first(each)
            changed = {name: value for name, value in row.items() if name not in stays}
            connection.execute(update(PlanRow).where(*same).values(changed))
            replaced += 1
    return Counts(added, replaced, len(records) - added - replaced)


def _gives_way(
    there: RowMapping,
    given: PlanRecord,
    shown: str,
    if_better: Callable[[PlanRecord, PlanRecord], bool],
) -> bool:
    """Whether the stored plan is to be replaced; one that is damaged is, whatever it was."""
    try:
        stored = record(PlanRecord, there, shown)
    except StoreCorrupt:
        return True
    return stored != given and if_better(stored, given)


def _identity(row: RowMapping | dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in LAYOUTS[TrialRecord].identity)


def _insert(connection: Connection, model: type[Base], rows: list[dict[str, Any]]) -> None:
    if rows:
        connection.execute(insert(model), rows)


def _chunks(values: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(values), _CHUNK):
        yield values[start : start + _CHUNK]
