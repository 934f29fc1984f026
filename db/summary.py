"""What each study came to, counted by the database."""

from sqlalchemy import Connection, Executable, case, func, select

from .models import Trial
from .records import StudySummary, TrialRecord
from .rows import record

TIMED = "timed"
STUDY = (Trial.study, Trial.level, Trial.subject, Trial.device_key)


def summaries(connection: Connection, shown: str) -> list[StudySummary]:
    """One for each study, subject and device, the latest finished first."""
    best = {
        (trial.study, trial.level, trial.subject, trial.device_key): trial
        for row in connection.execute(_best()).mappings()
        for trial in [record(TrialRecord, row, shown)]
    }
    result = []
    for row in connection.execute(_counts()).mappings():
        winner = best.get((row["study"], row["level"], row["subject"], row["device_key"]))
        result.append(
            StudySummary(
                **row,
                best_s=None if winner is None else winner.measured_s,
                best_config=None if winner is None else winner.config,
            )
        )
    return result


def _counts() -> Executable:
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
        .group_by(*STUDY)
        .order_by(finished.desc(), *STUDY)
    )


def _best() -> Executable:
    """The fastest trial of each study; of equals the first, so that the answer repeats."""
    place = func.row_number().over(partition_by=STUDY, order_by=(Trial.measured_s, Trial.id))
    ranked = (
        select(Trial.id, place.label("place"))
        .where(Trial.outcome == TIMED, Trial.measured_s.is_not(None))
        .subquery()
    )
    return select(Trial.__table__).join(ranked, ranked.c.id == Trial.id).where(ranked.c.place == 1)
