"""Summaries of studies, counted by the database."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Executable, Select, and_, case, func, select
from sqlalchemy.orm import aliased

from .models import Kernel, Trial
from .records import StudySummary, TrialRecord
from .rows import record
from .search import About

TIMED = "timed"
STUDY = (Trial.study, Trial.level, Trial.subject, Trial.device_key)

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
    failed = func.sum(case((Trial.outcome == TIMED, 0), else_=1))
    finished = func.max(Trial.created_at)
    return (
        select(
            *STUDY,
            func.count().label("trials"),
            failed.label("failures"),
            func.min(Trial.created_at).label("started"),
            finished.label("finished"),
        )
        .where(*(about.conditions() if about else ()))
        .group_by(*STUDY)
        .order_by(finished.desc(), *STUDY)
        .limit(limit)
    )


def count_studies(connection: Connection) -> int:
    """How many summaries there are of all."""
    query = select(func.count()).select_from(select(*STUDY).distinct().subquery())
    return connection.execute(query).scalar_one()


def _best(
    connection: Connection, shown: str, about: About | None, studies: Sequence[str] | None
) -> dict[Study, TrialRecord]:
    """The fastest trial of each study; of equals the first, so that the answer repeats."""
    conditions = [Trial.outcome == TIMED, Trial.measured_s.is_not(None)]
    conditions += about.conditions() if about else ()
    if studies is not None:
        conditions.append(Trial.study.in_(set(studies)))
    least = (
        select(*STUDY, func.min(Trial.measured_s).label("least"))
        .where(*conditions)
        .group_by(*STUDY)
        .subquery()
    )
    same = [column == least.c[column.key] for column in STUDY]
    query = (
        select(Trial.__table__)
        .join(least, and_(*same, Trial.outcome == TIMED, Trial.measured_s == least.c.least))
        .order_by(Trial.id.desc())
    )
    found = (record(TrialRecord, row, shown) for row in connection.execute(query).mappings())
    return {(t.study, t.level, t.subject, t.device_key): t for t in found}


def improving(conditions: Sequence[ColumnElement[bool]]) -> Select[tuple[int]]:
    """The ids of trials faster than all before them of the same subject on the same device."""
    before = func.min(Trial.measured_s).over(
        partition_by=(Trial.subject, Trial.device_key, Trial.timing),
        order_by=Trial.id,
        rows=(None, -1),
    )
    timed = (
        select(Trial.id, Trial.measured_s, before.label("before"))
        .where(*conditions, Trial.outcome == TIMED, Trial.measured_s.is_not(None))
        .subquery()
    )
    better = timed.c.before.is_(None) | (timed.c.measured_s < timed.c.before)
    return select(timed.c.id).where(better)


def best_so_far(connection: Connection, ids: Sequence[int]) -> dict[int, float | None]:
    """By the id of a trial: the least seconds of its subject, up to and with it."""
    earlier = aliased(Trial)
    least = (
        select(func.min(earlier.measured_s))
        .where(
            earlier.subject == Trial.subject,
            earlier.device_key == Trial.device_key,
            earlier.timing == Trial.timing,
            earlier.outcome == TIMED,
            earlier.id <= Trial.id,
        )
        .scalar_subquery()
    )
    found: dict[int, float | None] = {}
    for begin in range(0, len(ids), _FEW):
        query = select(Trial.id, least).where(Trial.id.in_(ids[begin : begin + _FEW]))
        for number, seconds in connection.execute(query):
            found[number] = seconds
    return found


def relatives(key: str, form: str, limit: int) -> Select[Any]:
    """The fastest trial of each other kernel of the form, on each device, newest first."""
    place = func.row_number().over(
        partition_by=(Trial.subject, Trial.device_key), order_by=(Trial.measured_s, Trial.id)
    )
    ranked = (
        select(Trial.id, place.label("place"))
        .join(Kernel, and_(Kernel.key == Trial.subject, Kernel.form == form, Kernel.key != key))
        .where(Trial.level == "kernel", Trial.outcome == TIMED, Trial.measured_s.is_not(None))
        .subquery()
    )
    return (
        select(Trial.__table__)
        .join(ranked, ranked.c.id == Trial.id)
        .where(ranked.c.place == 1)
        .order_by(Trial.id.desc())
        .limit(limit)
    )
