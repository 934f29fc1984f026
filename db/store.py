"""The store: what was tried and what won, on disk.

    with Store.open() as store:
        store.put_device(device)
        store.add_trial(trial)      # on disk when it returns
        store.plan(graph_key, device_key, versions)

Every method is one transaction and raises only StoreError (and ValueError for a record that cannot
be written down); threads and processes may share one store. On disk means that the loss of power
does not undo it. A server that is started again is waited for; a file that somebody deleted, moved
or replaced is an error.
"""

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    func,
    insert,
    select,
    update,
)

from . import claims, health, schema
from .collect import Collected, Doomed, collect
from .collect import versions as collect_versions
from .errors import StoreError
from .exchange import kept_of_first, merge, snapshot
from .faults import corrupt, translated, was_there
from .jobs import Jobs
from .location import resolve
from .models import CalibrationRow, DeviceRow, GraphRow, KernelRow, PlanRow, TrialRow
from .opening import opened
from .payload import canonical, digest
from .records import (
    EVIDENCE,
    CalibrationRecord,
    DeviceRecord,
    GraphRecord,
    KernelRecord,
    Level,
    Merged,
    Outcome,
    PlanRecord,
    Snapshot,
    StudySummary,
    TrialRecord,
)
from .rows import LAYOUTS, columns, record
from .search import About, chosen_plan
from .summary import best_so_far, count_studies, improving, relatives, summaries
from .transactions import (
    SERVER_BACK_S,
    OpenDatabase,
    is_conflict,
    matching,
    patiently,
    same_identity,
)

Better = Callable[[PlanRecord, PlanRecord], bool]
"""Whether the second plan is to take the place of the first, which the store has."""


def has_no_less_evidence(stored: PlanRecord, plan: PlanRecord) -> bool:
    """A plan that was measured does not give way to one that was not."""
    return EVIDENCE.index(plan.evidence) >= EVIDENCE.index(stored.evidence)


class Store(OpenDatabase):
    """A store that is open. Make one with `Store.open`."""

    @classmethod
    def open(
        cls, location: str | Path | None = None, *, create: bool = True, read_only: bool = False
    ) -> Self:
        """Open a path or SQLAlchemy URL; None is $PLANNER_STORE, else the user's data folder.

        An older schema is migrated. Raises StoreCorrupt, StoreNewer, StoreReadOnly or
        StoreUnavailable, and then has changed nothing.
        """
        place = resolve(location)

        def attempt() -> Engine:
            with translated(place.shown, place.secrets):
                return opened(place, create=create, read_only=read_only)

        # A server that is stopped meanwhile comes back; one that never answered may not exist.
        engine = patiently(attempt, 0.0 if read_only else SERVER_BACK_S, was_there)
        return cls(engine, place, read_only=read_only)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Store({self.location!r})"

    @property
    def url(self) -> str:
        """For other programs, such as Optuna's RDBStorage: the whole URL, with any password."""
        return self._place.url.render_as_string(hide_password=False)

    # Devices, graphs, kernels

    def put_device(self, device: DeviceRecord) -> None:
        """Keep the device; one with the same key is replaced (a new calibration)."""
        self._put(device)

    def put_graph(self, graph: GraphRecord) -> None:
        """Keep the graph; one with the same key is replaced."""
        self._put(graph)

    def put_kernel(self, kernel: KernelRecord) -> None:
        """Keep the kernel; one with the same key is replaced. Its graph comes first."""
        self._put(kernel)

    def device(self, key: str) -> DeviceRecord | None:
        return self._one(DeviceRecord, DeviceRow.key == key)

    def graph(self, key: str) -> GraphRecord | None:
        return self._one(GraphRecord, GraphRow.key == key)

    def kernel(self, key: str) -> KernelRecord | None:
        return self._one(KernelRecord, KernelRow.key == key)

    def devices(self) -> list[DeviceRecord]:
        """All devices, by name."""
        return self._many(
            DeviceRecord, select(DeviceRow.__table__).order_by(DeviceRow.name, DeviceRow.key)
        )

    # Calibrations

    def add_calibration(self, calibration: CalibrationRecord) -> int:
        """Keep the profile and return its id; from now on it is its device's. The device comes
        first."""
        row = columns(calibration)
        del row["id"]

        def add(connection: Connection) -> int:
            added = connection.execute(insert(CalibrationRow).values(row)).inserted_primary_key
            assert added is not None  # None is for inserts of many rows
            return int(added[0])

        return self._write(add)

    def calibrations(self, device_key: str) -> list[CalibrationRecord]:
        """All of a device, the newest first, those that were undone too."""
        table = CalibrationRow.__table__
        query = select(table).where(CalibrationRow.device_key == device_key)
        return self._many(CalibrationRecord, query.order_by(CalibrationRow.id.desc()))

    def calibration(self, device_key: str) -> CalibrationRecord | None:
        """What the device's profile is by now; None where nothing was calibrated, or all undone."""
        found = self.calibrations(device_key)
        return next((each for each in found if each.undone_at is None), None)

    def undo_calibration(self, device_key: str) -> CalibrationRecord | None:
        """Let go of the device's present profile, so that the one before it counts again; gives
        the one let go of, None where there is none."""
        present = self.calibration(device_key)
        if present is not None:
            chosen = update(CalibrationRow).where(CalibrationRow.id == present.id)
            undone = chosen.values(undone_at=datetime.now(UTC))
            self._write(lambda connection: connection.execute(undone))
        return present

    # Trials

    def add_trial(self, trial: TrialRecord) -> int:
        """Keep the trial and return its id; on disk when this returns.

        A trial of the same identity is left as it is and its id returned, whoever added it, unless
        it is transient: this one then takes its place, and its id.
        """
        row = columns(trial)
        del row["id"]
        same = same_identity(trial, row)

        def add(connection: Connection) -> int | None:
            claims.end(connection, _claim(row))
            doubted = update(TrialRow).where(*same, TrialRow.transient).values(row)
            if connection.execute(doubted).rowcount:
                return None
            added = connection.execute(insert(TrialRow).values(row)).inserted_primary_key
            assert added is not None  # None is for inserts of many rows
            return int(added[0])

        try:
            found = self._write(add)
        except StoreError as error:
            if not is_conflict(error) or (found := self._id_of(same)) is None:
                raise  # not the identity: a device that was never put
        return found if found is not None else self._known_id(same)

    def _known_id(self, same: list[ColumnElement[bool]]) -> int:
        found = self._id_of(same)
        assert found is not None
        return found

    def _id_of(self, same: list[ColumnElement[bool]]) -> int | None:
        with self._reading() as connection:
            return connection.execute(select(TrialRow.id).where(*same)).scalar_one_or_none()

    def trials(
        self,
        *,
        level: Level | None = None,
        subject: str | None = None,
        device_key: str | None = None,
        versions: dict[str, str] | None = None,
        study: str | None = None,
        outcome: Outcome | None = None,
        limit: int | None = None,
        newest_first: bool = False,
        after: int = 0,
        about: About | None = None,
        best: bool = False,
    ) -> list[TrialRecord]:
        """The trials that match all that is given, in the order they were added. after: those of a
        higher id; best: those that were faster than all before them of the same subject."""
        wanted = {
            "level": level,
            "subject": subject,
            "device_key": device_key,
            "versions_sha256": None if versions is None else digest(canonical(versions)),
            "study": study,
            "outcome": outcome,
        }
        conditions = [*matching(TrialRow, wanted), *(about.conditions() if about else ())]
        if after:
            conditions.append(TrialRow.id > after)
        if best:
            conditions.append(TrialRow.id.in_(improving(conditions)))
        query = (
            select(TrialRow.__table__)
            .where(*conditions)
            .order_by(TrialRow.id.desc() if newest_first else TrialRow.id)
            .limit(limit)
        )
        return self._many(TrialRecord, query)

    def best_so_far(self, ids: Sequence[int]) -> dict[int, float | None]:
        """By the id of a trial: the least seconds of its subject on its device, timed in its way,
        up to and with it."""
        with self._reading() as connection:
            return best_so_far(connection, ids)

    def count_trials(
        self,
        *,
        level: Level | None = None,
        device_key: str | None = None,
        outcome: Outcome | None = None,
    ) -> int:
        """How many trials match all that is given."""
        wanted = {"level": level, "device_key": device_key, "outcome": outcome}
        query = select(func.count()).select_from(TrialRow).where(*matching(TrialRow, wanted))
        with self._reading() as connection:
            return connection.execute(query).scalar_one()

    def relatives(self, kernel: KernelRecord, limit: int) -> list[TrialRecord]:
        """The fastest trial of each other kernel of its form on each device, newest first."""
        if kernel.form is None:
            return []
        return self._many(TrialRecord, relatives(kernel.key, kernel.form, limit))

    def studies(
        self, *, about: About | None = None, limit: int | None = None
    ) -> list[StudySummary]:
        """One summary for each study, subject and device that matches, the latest first."""
        with self._reading() as connection:
            return summaries(connection, self.location, about, limit)

    def count_studies(self) -> int:
        """How many summaries `studies` gives."""
        with self._reading() as connection:
            return count_studies(connection)

    # Claims: who measures what, by the database's clock

    def claim(self, trial: TrialRecord, holder: str, lease_s: float) -> bool:
        """Whether nobody else is at the trial, nor has made it. It is then the holder's until it is
        added, released, or `lease_s` seconds have passed."""
        row = columns(trial)
        made = select(TrialRow.id).where(*same_identity(trial, row), ~TrialRow.transient)

        def look(connection: Connection) -> bool:
            is_free = claims.is_free(connection, _claim(row), holder)
            return is_free and connection.execute(made).first() is None

        if not self._read(look):
            return False

        def take(connection: Connection) -> bool:
            # In this order: who adds a trial ends its claim in the same transaction.
            won = claims.take(connection, _claim(row), holder, lease_s)
            if won and connection.execute(made).first() is not None:
                claims.end(connection, _claim(row))
                return False
            return won

        try:
            return self._write(take)
        except StoreError as error:
            if is_conflict(error):  # somebody else was first, a moment ago
                return False
            raise

    def claim_name(self, name: str, holder: str, lease_s: float) -> bool:
        """The same of anything that has a name, such as work that one is to do at a time."""
        key = digest(name)
        try:
            return self._write(lambda connection: claims.take(connection, key, holder, lease_s))
        except StoreError as error:
            if is_conflict(error):
                return False
            raise

    def release(self, holder: str) -> None:
        """Let go of all that the holder has claimed."""
        self._write(lambda connection: claims.release(connection, holder))

    def renew(self, holder: str, lease_s: float) -> None:
        """All that the holder has claimed is its own for so many seconds more."""
        self._write(lambda connection: claims.renew(connection, holder, lease_s))

    # Jobs: searches that several share

    @property
    def jobs(self) -> Jobs:
        """What tunes offer to workers."""
        return Jobs(self._read, self._write, self.location)

    # Plans

    def save_plan(self, plan: PlanRecord, if_better: Better = has_no_less_evidence) -> bool:
        """Keep the plan, and say whether it was kept; it replaces one for the same graph, device
        and versions where `if_better` finds so, within the same transaction.

        The first plan's `created_at` stays, and its bucket where the new one has none.
        """
        return self._put(plan, keep=kept_of_first(plan), if_better=if_better)

    def plan(self, graph_key: str, device_key: str, versions: dict[str, str]) -> PlanRecord | None:
        """The plan made for exactly this; StoreCorrupt when it is there but damaged."""
        found = self._one(
            PlanRecord,
            PlanRow.graph_key == graph_key,
            PlanRow.device_key == device_key,
            PlanRow.versions_sha256 == digest(canonical(versions)),
        )
        # An index that is damaged leads to another row.
        same = found is None or (found.graph_key, found.device_key) == (graph_key, device_key)
        if not same or (found is not None and found.versions != versions):
            raise corrupt(self.location, "its index leads to the plan of another graph")
        return found

    def plans(
        self,
        *,
        graph_key: str | None = None,
        bucket_key: str | None = None,
        device_key: str | None = None,
        versions: dict[str, str] | None = None,
        name: str | None = None,
        limit: int | None = None,
    ) -> list[PlanRecord]:
        """The plans that match all that is given, the latest saved first."""
        wanted = {
            "graph_key": graph_key,
            "bucket_key": bucket_key,
            "device_key": device_key,
            "versions_sha256": None if versions is None else digest(canonical(versions)),
            "name": name,
        }
        query = (
            select(PlanRow.__table__)
            .where(*matching(PlanRow, wanted))
            .order_by(PlanRow.updated_at.desc(), PlanRow.key)
            .limit(limit)
        )
        return self._many(PlanRecord, query)

    def counts(self) -> dict[str, int]:
        """How many rows each table has."""
        with self._reading() as connection:
            return health.counts(connection)

    def find_plan(self, prefix: str) -> PlanRecord:
        """The plan of that exact name, or whose key starts so.

        Raises PlanNotFound, with the closest or the rival plans, unless there is exactly one.
        """
        with self._reading() as connection:
            key = chosen_plan(connection, prefix, self.location)
            row = (
                connection.execute(select(PlanRow.__table__).where(PlanRow.key == key))
                .mappings()
                .one()
            )
            return record(PlanRecord, row, self.location)

    def collect(self, doomed: Doomed, *, dry_run: bool = False) -> Collected:
        """Take plans and trials out, with the graphs and kernels that only they named; with dry_run
        say how many there are, and leave them."""
        return self._write(lambda connection: collect(connection, doomed, dry_run))

    def versions(self) -> list[dict[str, str]]:
        """All that plans and trials were made with, each once."""
        with self._reading() as connection:
            return [json.loads(text) for text in collect_versions(connection)]

    # Exchange

    def snapshot(self, plans: Sequence[str] | None = None, kernels: Sequence[str] = ()) -> Snapshot:
        """The plans of these keys (None: all of the store) with what belongs to them; see
        `exchange.snapshot`."""
        with self._reading() as connection:
            return snapshot(connection, self.location, plans, kernels)

    def merge(self, given: Snapshot, if_better: Better = has_no_less_evidence) -> Merged:
        """Add what the store has not, all of it in one transaction; see `exchange.merge`. Raises
        ValueError for a record that cannot be written down."""

        def add(connection: Connection) -> Merged:
            return merge(connection, given, self.location, if_better)

        try:
            return self._write(add)
        except StoreError as error:
            if not is_conflict(error):
                raise
            return self._write(add)  # on a server somebody was faster with one of them

    # Health

    def problems(self) -> list[str]:
        """What `planner doctor` has to say about the store; empty when it is sound."""
        found: list[str] = []
        with translated(self.location, self._place.secrets):
            revision = schema.current(self._live())
        if revision != schema.newest():
            found.append(f"schema revision is {revision}, not {schema.newest()}")
        with self._reading() as connection:
            if self._place.path is not None:
                found += health.of_file(connection)
            return found + health.of_payloads(connection)


def _claim(row: dict[str, Any]) -> str:
    """What a trial is claimed by: a digest of its identity."""
    return digest(canonical({name: row[name] for name in LAYOUTS[TrialRecord].identity}))
