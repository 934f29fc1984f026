"""The store: what was tried and what won, on disk.

    with Store.open() as store:
        store.put_device(device)
        store.add_trial(trial)      # on disk when it returns
        store.plan(graph_key, device_key, versions)

Every method is one transaction and raises only StoreError (and ValueError for a record that cannot
be written down); threads and processes may share one store.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sqlalchemy import ColumnElement, Connection, Engine, Select, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from . import schema
from .collect import Collected, Doomed, collect
from .engine import writing
from .errors import StoreError, StoreUnavailable
from .faults import corrupt, translated
from .faults import read_only as read_only_error
from .location import Place, resolve
from .models import Base, Calibration, Device, Graph, Kernel, Plan, Trial
from .opening import opened
from .payload import canonical, digest
from .records import (
    CalibrationRecord,
    DeviceRecord,
    GraphRecord,
    KernelRecord,
    Level,
    Outcome,
    PlanRecord,
    StudySummary,
    TrialRecord,
)
from .rows import LAYOUTS, R, Record, columns, damage, record
from .search import chosen_plan
from .summary import summaries


class Store:
    """A store that is open. Make one with `Store.open`."""

    def __init__(self, engine: Engine, place: Place, *, read_only: bool) -> None:
        self._engine = engine
        self._place = place
        self._read_only = read_only
        self._closed = False

    @classmethod
    def open(
        cls, location: str | Path | None = None, *, create: bool = True, read_only: bool = False
    ) -> Self:
        """Open a path or SQLAlchemy URL; None is $PLANNER_STORE, else the user's cache directory.

        An older schema is migrated. Raises StoreCorrupt, StoreNewer, StoreReadOnly or
        StoreUnavailable, and then has changed nothing.
        """
        place = resolve(location)
        with translated(place.shown):
            engine = opened(place, create=create, read_only=read_only)
        return cls(engine, place, read_only=read_only)

    def close(self) -> None:
        """Let go of the database; closing twice is fine, any other use afterwards is an error."""
        self._closed = True
        self._engine.dispose()

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
    def location(self) -> str:
        """For people: the path, or the URL without its password."""
        return self._place.shown

    @property
    def url(self) -> str:
        """For other programs, such as Optuna's RDBStorage: the whole URL, with any password."""
        return self._place.url.render_as_string(hide_password=False)

    @property
    def read_only(self) -> bool:
        return self._read_only

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
        return self._one(DeviceRecord, Device.key == key)

    def graph(self, key: str) -> GraphRecord | None:
        return self._one(GraphRecord, Graph.key == key)

    def kernel(self, key: str) -> KernelRecord | None:
        return self._one(KernelRecord, Kernel.key == key)

    def devices(self) -> list[DeviceRecord]:
        """All devices, by name."""
        return self._many(DeviceRecord, select(Device.__table__).order_by(Device.name, Device.key))

    # Calibrations

    def add_calibration(self, calibration: CalibrationRecord) -> int:
        """Keep the profile and return its id; from now on it is its device's. The device comes
        first."""
        row = columns(calibration)
        del row["id"]
        with self._writing() as connection:
            added = connection.execute(insert(Calibration).values(row)).inserted_primary_key
            assert added is not None  # None is for inserts of many rows
            return int(added[0])

    def calibrations(self, device_key: str) -> list[CalibrationRecord]:
        """All of a device, the newest first, those that were undone too."""
        table = Calibration.__table__
        query = select(table).where(Calibration.device_key == device_key)
        return self._many(CalibrationRecord, query.order_by(Calibration.id.desc()))

    def calibration(self, device_key: str) -> CalibrationRecord | None:
        """What the device's profile is by now; None where nothing was calibrated, or all undone."""
        found = self.calibrations(device_key)
        return next((each for each in found if each.undone_at is None), None)

    def undo_calibration(self, device_key: str) -> CalibrationRecord | None:
        """Let go of the device's present profile, so that the one before it counts again; gives
        the one let go of, None where there is none."""
        present = self.calibration(device_key)
        if present is not None:
            chosen = update(Calibration).where(Calibration.id == present.id)
            with self._writing() as connection:
                connection.execute(chosen.values(undone_at=datetime.now(UTC)))
        return present

    # Trials

    def add_trial(self, trial: TrialRecord) -> int:
        """Keep the trial and return its id; on disk when this returns.

        A trial of the same identity is left as it is and its id returned, whoever added it, unless
        it is transient: this one then takes its place, and its id.
        """
        row = columns(trial)
        del row["id"]
        same = _identity(trial, row)
        try:
            with self._writing() as connection:
                doubted = update(Trial).where(*same, Trial.transient).values(row)
                if not connection.execute(doubted).rowcount:
                    added = connection.execute(insert(Trial).values(row)).inserted_primary_key
                    assert added is not None  # None is for inserts of many rows
                    return int(added[0])
        except StoreError as error:
            if not _is_conflict(error):
                raise
            found = self._id_of(same)
            if found is None:  # not the identity: a device that was never put
                raise
            return found
        found = self._id_of(same)
        assert found is not None
        return found

    def _id_of(self, same: list[ColumnElement[bool]]) -> int | None:
        with self._reading() as connection:
            return connection.execute(select(Trial.id).where(*same)).scalar_one_or_none()

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
    ) -> list[TrialRecord]:
        """The trials that match all that is given, in the order they were added."""
        wanted = {
            "level": level,
            "subject": subject,
            "device_key": device_key,
            "versions_sha256": None if versions is None else digest(canonical(versions)),
            "study": study,
            "outcome": outcome,
        }
        query = (
            select(Trial.__table__)
            .where(*_matches(Trial, wanted))
            .order_by(Trial.id.desc() if newest_first else Trial.id)
            .limit(limit)
        )
        return self._many(TrialRecord, query)

    def studies(self) -> list[StudySummary]:
        """One summary for each study, subject and device, the latest first."""
        with self._reading() as connection:
            return summaries(connection, self.location)

    # Plans

    def save_plan(self, plan: PlanRecord) -> None:
        """Keep the plan; it replaces one for the same graph, device and versions.

        The first plan's `created_at` stays, and its bucket where the new one has none.
        """
        keep = {"created_at"} | ({"bucket_key"} if plan.bucket_key is None else set())
        self._put(plan, keep=frozenset(keep))

    def plan(self, graph_key: str, device_key: str, versions: dict[str, str]) -> PlanRecord | None:
        """The plan made for exactly this; StoreCorrupt when it is there but damaged."""
        return self._one(
            PlanRecord,
            Plan.graph_key == graph_key,
            Plan.device_key == device_key,
            Plan.versions_sha256 == digest(canonical(versions)),
        )

    def plans(
        self,
        *,
        graph_key: str | None = None,
        bucket_key: str | None = None,
        device_key: str | None = None,
        versions: dict[str, str] | None = None,
        name: str | None = None,
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
            select(Plan.__table__)
            .where(*_matches(Plan, wanted))
            .order_by(Plan.updated_at.desc(), Plan.key)
        )
        return self._many(PlanRecord, query)

    def find_plan(self, prefix: str) -> PlanRecord:
        """The plan of that exact name, or whose key starts so.

        Raises PlanNotFound, with the closest or the rival plans, unless there is exactly one.
        """
        with self._reading() as connection:
            key = chosen_plan(connection, prefix, self.location)
            row = connection.execute(select(Plan.__table__).where(Plan.key == key)).mappings().one()
            return record(PlanRecord, row, self.location)

    def collect(self, doomed: Doomed, *, dry_run: bool = False) -> Collected:
        """Take plans and trials out, with the graphs and kernels that only they named; with dry_run
        say how many there are, and leave them."""
        with self._writing() as connection:
            return collect(connection, doomed, dry_run)

    # Health

    def problems(self) -> list[str]:
        """What `planner doctor` has to say about the store; empty when it is sound."""
        found: list[str] = []
        with translated(self.location):
            revision = schema.current(self._live())
        if revision != schema.newest():
            found.append(f"schema revision is {revision}, not {schema.newest()}")
        if self._place.path is not None:
            found += self._file_problems()
        with self._reading() as connection:
            for layout in LAYOUTS.values():
                for row in connection.execute(select(layout.model.__table__)).mappings():
                    fault = damage(layout, row)
                    if fault is not None:
                        found.append(fault)
        return found

    def _file_problems(self) -> list[str]:
        found: list[str] = []
        with self._reading() as connection:
            rows = connection.exec_driver_sql("PRAGMA quick_check").scalars()
            found += [f"quick check: {text}" for text in rows if text != "ok"]
            for layout in LAYOUTS.values():
                table = layout.model.__tablename__
                for row in connection.exec_driver_sql(f"PRAGMA foreign_key_check({table})"):
                    found.append(f"table {table}, row {row[1]}: it names a missing {row[2]}")
        return found

    # Transactions

    def _live(self) -> Engine:
        if self._closed:
            raise StoreUnavailable(f"{self.location} was closed: open it again.")
        return self._engine

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with translated(self.location), self._live().connect() as connection:
            try:
                yield connection
            except (ValueError, TypeError) as error:
                # SQLite gives back what is in the file: a date, say, need not be one any more.
                raise corrupt(self.location, f"a value cannot be read: {error}") from error

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        if self._read_only:
            raise read_only_error(self.location)
        with translated(self.location), writing(self._live()) as connection:
            yield connection

    def _one(self, kind: type[R], *where: ColumnElement[bool]) -> R | None:
        query = select(LAYOUTS[kind].model.__table__).where(*where)
        return next(iter(self._many(kind, query)), None)

    def _many(self, kind: type[R], query: Select[Any]) -> list[R]:
        with self._reading() as connection:
            rows = connection.execute(query).mappings()
            return [record(kind, row, self.location) for row in rows]

    def _put(self, kept: Record, keep: frozenset[str] = frozenset()) -> None:
        """Insert or replace by identity; the columns in `keep` stay as they were first."""
        row = columns(kept)
        try:
            self._replace(kept, row, keep)
        except StoreError as error:
            # On a server another process may insert between our look and our insert: once more.
            if not _is_conflict(error):
                raise
            self._replace(kept, row, keep)

    def _replace(self, kept: Record, row: dict[str, Any], keep: frozenset[str]) -> None:
        model = LAYOUTS[type(kept)].model
        same = _identity(kept, row)
        with self._writing() as connection:
            count = select(func.count()).select_from(model).where(*same)
            if connection.execute(count).scalar_one():
                changed = {name: value for name, value in row.items() if name not in keep}
                connection.execute(update(model).where(*same).values(changed))
            else:
                connection.execute(insert(model).values(row))


def _matches(model: type[Base], wanted: dict[str, Any]) -> list[ColumnElement[bool]]:
    """The conditions for what is wanted; None means that anything will do."""
    table = model.__table__
    return [table.c[name] == value for name, value in wanted.items() if value is not None]


def _identity(kept: Record, row: dict[str, Any]) -> list[ColumnElement[bool]]:
    layout = LAYOUTS[type(kept)]
    return _matches(layout.model, {name: row[name] for name in layout.identity})


def _is_conflict(error: StoreError) -> bool:
    return isinstance(error.__cause__, IntegrityError)
