"""Jobs: searches that a tune offers to whoever shares the store.

A job is open while its tune renews its lease, on the database's own clock; a tune that died leaves
none behind. Its deadline is on that clock too, so that hosts need not agree on the time.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from sqlalchemy import ColumnElement, Connection, and_, delete, insert, select, update

from .claims import LONGEST_S, clock
from .models import ClaimRow, JobRow
from .records import JobRecord
from .rows import columns, record

T = TypeVar("T")


class Transaction(Protocol):
    """Runs work in a transaction of its own, and gives what it gives."""

    def __call__(self, work: Callable[[Connection], T], /) -> T: ...


@dataclass(frozen=True, slots=True)
class OpenJob:
    """A job with the seconds until its deadline."""

    job: JobRecord
    left_s: float


@dataclass(frozen=True, slots=True)
class Jobs:
    """The jobs of a store: `Store.jobs`. Every method is one transaction."""

    read: Transaction
    write: Transaction
    shown: str

    def offer(self, job: JobRecord, seconds: float, lease_s: float) -> None:
        """Open it for so many seconds at most. Its device comes first. What dead tunes and workers
        have left behind goes."""

        def work(connection: Connection) -> None:
            now = clock(connection)
            connection.execute(delete(JobRow).where(~_is_open(now)))
            connection.execute(delete(ClaimRow).where(ClaimRow.expires_at <= now))
            ends: dict[str, Any] = {"expires_at": now + lease_s, "deadline_at": now + seconds}
            connection.execute(insert(JobRow).values(columns(job) | ends))

        self.write(work)

    def renew(self, tune: str, lease_s: float) -> None:
        """The jobs of the tune stay open for so many seconds more, unless it says so again."""

        def work(connection: Connection) -> None:
            ends = clock(connection) + lease_s
            connection.execute(update(JobRow).where(JobRow.tune == tune).values(expires_at=ends))

        self.write(work)

    def add(self, key: str, more: Mapping[str, Any]) -> None:
        """Put more into the payload of a job. One that is over stays over."""

        def work(connection: Connection) -> None:
            which = select(JobRow.__table__).where(JobRow.key == key).with_for_update()
            row = connection.execute(which).mappings().first()
            if row is None:
                return
            job = record(JobRecord, row, self.shown)
            new = columns(replace(job, payload={**job.payload, **more}))
            changed = {name: new[name] for name in ("payload", "payload_sha256")}
            connection.execute(update(JobRow).where(JobRow.key == key).values(changed))

        self.write(work)

    def payload(self, key: str) -> dict[str, Any] | None:
        """What the job says; None where it is over."""

        def work(connection: Connection) -> dict[str, Any] | None:
            query = select(JobRow.__table__)
            query = query.where(JobRow.key == key, _is_open(clock(connection)))
            row = connection.execute(query).mappings().first()
            return None if row is None else record(JobRecord, row, self.shown).payload

        return self.read(work)

    def end(self, *, key: str | None = None, tune: str | None = None) -> None:
        """The job of this key, or all of a tune, are over."""
        which = JobRow.key == key if key is not None else JobRow.tune == tune
        self.write(lambda connection: connection.execute(delete(JobRow).where(which)))

    def open(self, tune: str | None = None) -> list[OpenJob]:
        """The jobs that are open, of one tune or of all, in the order they were offered."""

        def work(connection: Connection) -> list[OpenJob]:
            now = clock(connection)
            query = select(JobRow.__table__, (JobRow.deadline_at - now).label("left_s"))
            query = query.where(_is_open(now)).order_by(JobRow.created_at, JobRow.key)
            if tune is not None:
                query = query.where(JobRow.tune == tune)
            rows = connection.execute(query).mappings()
            return [OpenJob(record(JobRecord, row, self.shown), row["left_s"]) for row in rows]

        return self.read(work)

    def is_open(self, key: str) -> bool:
        """Whether the job is open still."""

        def work(connection: Connection) -> bool:
            found = select(JobRow.key).where(JobRow.key == key, _is_open(clock(connection)))
            return connection.execute(found).first() is not None

        return self.read(work)


def _is_open(now: ColumnElement[float]) -> ColumnElement[bool]:
    """A lease that ends far away was made before the clock was set back."""
    return and_(
        JobRow.expires_at > now, JobRow.expires_at <= now + LONGEST_S, JobRow.deadline_at > now
    )
