"""Summaries of studies, counted by the database."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Executable, Select, and_, case, func, select
from sqlalchemy.orm import aliased

from .models import KernelRow, TrialRow
from .records import StudySummary, TrialRecord
from .rows import record
from .search import About

TIMED = "timed"
STUDY = (TrialRow.study, TrialRow.level, TrialRow.subject, TrialRow.device_key)

Study = tuple[str, str, str, str]


def summaries(
    connection: Connection, shown: str, about: About | None = None, limit: int | None = None
) -> list[StudySummary]:
    """One for each study, subject and device that matches, the latest finished first."""
    counted = list(connection.execute(_counts(about, limit)).mappings())
    few = limit is not None and limit <= _FEW
    best = _best(connection, shown, about, [r["study"] for r in counted] if few else None)
    result = []
    for row in counted:
        winner = best.get((row["study"], row["level"], row["subject"], row["device_key"]))
        result.append(
            StudySummary(
                **row,
                best_s=None if winner is None else winner.measured_s,
                best_config=None if winner is None else winner.config,
            )
        )
    return result


_FEW = 200
"""Names that one statement may list."""


def _counts(about: About | None, limit: int | None) -> Executable:
    failed = func.sum(case((TrialRow.outcome == TIMED, 0), else_=1))
    finished = func.max(TrialRow.created_at)
    return (
        select(
            *STUDY,
            func.count().label("trials"),
            failed.label("failures"),
            func.min(TrialRow.created_at).label("started"),
            finished.label("finished"),
        )
        .where(*(about.conditions() if about else ()))
        .group_by(*STUDY)
        .order_by(finished.desc(), *STUDY)
        .limit(limit)
    )


def count_studies(connection: Connection) -> int:
    """The number of summaries in all."""
    query = select(func.count()).select_from(select(*STUDY).distinct().subquery())
    return connection.execute(query).scalar_one()


def _best(
    connection: Connection, shown: str, about: About | None, studies: Sequence[str] | None
) -> dict[Study, TrialRecord]:
    """The fastest trial of each study; of equals the first, so that the answer repeats."""
    conditions = [TrialRow.outcome == TIMED, TrialRow.measured_s.is_not(None)]
    conditions += about.conditions() if about else ()
    if studies is not None:
        conditions.append(TrialRow.study.in_(set(studies)))
    least = (
        select(*STUDY, func.min(TrialRow.measured_s).label("least"))
        .where(*conditions)
        .group_by(*STUDY)
        .subquery()
    )
    same = [column == least.c[column.key] for column in STUDY]
    query = (
        select(TrialRow.__table__)
        .join(least, and_(*same, TrialRow.outcome == TIMED, TrialRow.measured_s == least.c.least))
        .order_by(TrialRow.id.desc())
    )
    found = (record(TrialRecord, row, shown) for row in connection.execute(query).mappings())
    return {(t.study, t.level, t.subject, t.device_key): t for t in found}


def improving(conditions: Sequence[ColumnElement[bool]]) -> Select[tuple[int]]:
    """The ids of trials faster than all before them of the same subject on the same device."""
    before = func.min(TrialRow.measured_s).over(
        partition_by=(TrialRow.subject, TrialRow.device_key, TrialRow.timing),
        order_by=TrialRow.id,
        rows=(None, -1),
    )
    timed = (
        select(TrialRow.id, TrialRow.measured_s, before.label("before"))
        .where(*conditions, TrialRow.outcome == TIMED, TrialRow.measured_s.is_not(None))
        .subquery()
    )
    better = timed.c.before.is_(None) | (timed.c.measured_s < timed.c.before)
    return select(timed.c.id).where(better)


def best_so_far(connection: Connection, ids: Sequence[int]) -> dict[int, float | None]:
    """By the id of a trial: the least seconds of its subject, up to and with it."""
    earlier = aliased(TrialRow)
    least = (
        select(func.min(earlier.measured_s))
        .where(
            earlier.subject == TrialRow.subject,
            earlier.device_key == TrialRow.device_key,
            earlier.timing == TrialRow.timing,
            earlier.outcome == TIMED,
            earlier.id <= TrialRow.id,
        )
        .scalar_subquery()
    )
    found: dict[int, float | None] = {}
    for begin in range(0, len(ids), _FEW):
        query = select(TrialRow.id, least).where(TrialRow.id.in_(ids[begin : begin + _FEW]))
        for number, seconds in connection.execute(query):
            found[number] = seconds
    return found


def relatives(key: str, form: str, limit: int) -> Select[Any]:
    """The fastest trial of each other kernel of the form, on each device, newest first."""
    place = func.row_number().over(
        partition_by=(TrialRow.subject, TrialRow.device_key),
        order_by=(TrialRow.measured_s, TrialRow.id),
    )
    ranked = (
        select(TrialRow.id, place.label("place"))
        .join(
            KernelRow,
            and_(KernelRow.key == TrialRow.subject, KernelRow.form == form, KernelRow.key != key),
        )
        .where(
            TrialRow.level == "kernel", TrialRow.outcome == TIMED, TrialRow.measured_s.is_not(None)
        )
        .subquery()
    )
    return (
        select(TrialRow.__table__)
        .join(ranked, ranked.c.id == TrialRow.id)
        .where(ranked.c.place == 1)
        .order_by(TrialRow.id.desc())
        .limit(limit)
    )
