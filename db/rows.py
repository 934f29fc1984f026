"""Records to rows and back; a row whose payload fails its digest never becomes a record."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import RowMapping

from .errors import StoreCorrupt
from .models import Base, CalibrationRow, DeviceRow, GraphRow, JobRow, KernelRow, PlanRow, TrialRow
from .payload import canonical, digest
from .records import (
    CalibrationRecord,
    DeviceRecord,
    GraphRecord,
    JobRecord,
    KernelRecord,
    PlanRecord,
    TrialRecord,
)

Record = (
    DeviceRecord
    | GraphRecord
    | KernelRecord
    | TrialRecord
    | PlanRecord
    | CalibrationRecord
    | JobRecord
)
R = TypeVar(
    "R",
    DeviceRecord,
    GraphRecord,
    KernelRecord,
    TrialRecord,
    PlanRecord,
    CalibrationRecord,
    JobRecord,
)


@dataclass(frozen=True, slots=True)
class TableLayout:
    """The columns in which a kind of record lies in its table."""

    model: type[Base]
    key: str
    identity: tuple[str, ...]
    payloads: tuple[str, ...]


LAYOUTS: dict[type[Record], TableLayout] = {
    DeviceRecord: TableLayout(DeviceRow, "key", ("key",), ("profile",)),
    GraphRecord: TableLayout(GraphRow, "key", ("key",), ("payload",)),
    KernelRecord: TableLayout(KernelRow, "key", ("key",), ("payload",)),
    TrialRecord: TableLayout(
        TrialRow,
        "id",
        ("level", "subject", "device_key", "versions_sha256", "config_sha256", "timing"),
        ("versions", "config"),
    ),
    CalibrationRecord: TableLayout(CalibrationRow, "id", ("id",), ("profile", "evidence")),
    JobRecord: TableLayout(JobRow, "key", ("key",), ("versions", "payload")),
    PlanRecord: TableLayout(
        PlanRow, "key", ("graph_key", "device_key", "versions_sha256"), ("versions", "payload")
    ),
}


def columns(record: Record) -> dict[str, Any]:
    """The row for a record; ValueError for what cannot be written down faithfully.

    That is a number that is not finite or needs more than 64 bits, or a time without a zone.
    """
    payloads = LAYOUTS[type(record)].payloads
    row: dict[str, Any] = {}
    for field in fields(record):
        value = getattr(record, field.name)
        if field.name in payloads:
            value = canonical(value)
            row[f"{field.name}_sha256"] = digest(value)
        elif isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{field.name} is {value}: only finite numbers are stored")
        elif isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise ValueError(f"{field.name} is {value}: only 64 bits are stored")
        elif isinstance(value, datetime) and value.tzinfo is None:
            raise ValueError(f"{field.name} is {value}: only times with a time zone are stored")
        row[field.name] = value
    return row


def record(kind: type[R], row: RowMapping, shown: str) -> R:
    """The record in a row; StoreCorrupt, naming table and key, when a payload has changed."""
    layout = LAYOUTS[kind]
    fault = damage(layout, row)
    if fault is not None:
        raise StoreCorrupt(
            f"{shown} is damaged ({fault}): run `planner doctor`, and restore the file from a copy "
            "or move it away to start afresh."
        )
    values = {
        field.name: json.loads(row[field.name])
        if field.name in layout.payloads
        else row[field.name]
        for field in fields(kind)
    }
    return kind(**values)


def damage(
    layout: TableLayout, row: RowMapping, digested: Callable[[str], str] = digest
) -> str | None:
    """Which payload of the row fails its digest, if any."""
    for name in layout.payloads:
        text = row[name]
        if not isinstance(text, str) or digested(text) != row[f"{name}_sha256"]:
            table = layout.model.__tablename__
            return f"table {table}, key {row[layout.key]}: {name} does not match its SHA-256"
    return None
