"""The transactions of a store: reading, writing, waiting for a server, and records by identity."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    RowMapping,
    Select,
    insert,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from .engine import writing
from .errors import StoreCorrupt, StoreError, StoreLost, StoreUnavailable
from .faults import corrupt, translated
from .faults import read_only as read_only_error
from .location import StorePlace
from .models import Base
from .rows import LAYOUTS, R, Record, columns, record
from .sqlite_file import identity

T = TypeVar("T")

SERVER_BACK_S = 60.0
"""Seconds that a writer waits for a server that let go of it."""


class OpenDatabase:
    """A database that is open, and what every method of a store does with it: one transaction."""

    def __init__(self, engine: Engine, place: StorePlace, *, read_only: bool) -> None:
        self._engine = engine
        self._place = place
        self._read_only = read_only
        self._closed = False
        self._identity = None if place.path is None else identity(place.path)

    def close(self) -> None:
        """Let go of the database; closing twice is fine, any other use afterwards is an error."""
        self._closed = True
        self._engine.dispose()

    @property
    def location(self) -> str:
        """For people: the path, or the URL without its password."""
        return self._place.shown

    @property
    def read_only(self) -> bool:
        return self._read_only

    def _live(self) -> Engine:
        if self._closed:
            raise StoreUnavailable(f"{self.location} was closed: open it again.")
        return self._engine

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with (
            translated(self.location, self._place.secrets),
            self._live().connect() as connection,
        ):
            try:
                yield connection
            except (ValueError, TypeError) as error:
                # SQLite gives back what is in the file: a date, say, need not be one any more.
                raise corrupt(self.location, f"a value cannot be read: {error}") from error

    def _read(self, work: Callable[[Connection], T]) -> T:
        """What the work gives, done in one transaction that changes nothing."""

        def attempt() -> T:
            with self._reading() as connection:
                return work(connection)

        return self._patiently(attempt)

    def _write(self, work: Callable[[Connection], T]) -> T:
        """What the work gives, done in one transaction, and again where a server let go of it."""
        if self._read_only:
            raise read_only_error(self.location)

        def attempt() -> T:
            self._require_same_file()
            with (
                translated(self.location, self._place.secrets),
                writing(self._live()) as connection,
            ):
                result = work(connection)
            self._require_same_file()
            return result

        return self._patiently(attempt)

    def _patiently(self, attempt: Callable[[], T]) -> T:
        return patiently(attempt, 0.0 if self._read_only else SERVER_BACK_S)

    def _require_same_file(self) -> None:
        """SQLite writes on into a file that has lost its name, where nobody will find it."""
        path = self._place.path
        if path is not None and identity(path) != self._identity:
            raise StoreUnavailable(
                f"{path} was deleted, moved or replaced while it was in use: what is written to it "
                "is lost; leave the file in its place, and run this again."
            )

    def _one(self, kind: type[R], *where: ColumnElement[bool]) -> R | None:
        query = select(LAYOUTS[kind].model.__table__).where(*where)
        return next(iter(self._many(kind, query)), None)

    def _many(self, kind: type[R], query: Select[Any]) -> list[R]:
        def read(connection: Connection) -> list[R]:
            rows = connection.execute(query).mappings()
            return [record(kind, row, self.location) for row in rows]

        return self._read(read)

    def _put(
        self,
        kept: R,
        keep: frozenset[str] = frozenset(),
        if_better: Callable[[R, R], bool] | None = None,
    ) -> bool:
        """Insert or replace by identity; the columns in `keep` stay as they were first. Whether it
        was done: what is there may be better."""

        def replace(connection: Connection) -> bool:
            return self._replace(connection, kept, keep, if_better)

        try:
            return self._write(replace)
        except StoreError as error:
            # On a server another process may insert between our look and our insert: once more.
            if not is_conflict(error):
                raise
            return self._write(replace)

    def _replace(
        self,
        connection: Connection,
        kept: R,
        keep: frozenset[str],
        if_better: Callable[[R, R], bool] | None,
    ) -> bool:
        row, model = columns(kept), LAYOUTS[type(kept)].model
        same = same_identity(kept, row)
        # Locked, on a server, until the transaction ends; SQLite has one writer at a time.
        query = select(model.__table__).where(*same).with_for_update()
        there = connection.execute(query).mappings().first()
        if there is None:
            connection.execute(insert(model).values(row))
            return True
        if if_better is not None and not self._gives_way(there, kept, if_better):
            return False
        changed = {name: value for name, value in row.items() if name not in keep}
        connection.execute(update(model).where(*same).values(changed))
        return True

    def _gives_way(self, there: RowMapping, kept: R, if_better: Callable[[R, R], bool]) -> bool:
        """Whether what is there is to be replaced; what is damaged is, whatever it was."""
        try:
            return if_better(record(type(kept), there, self.location), kept)
        except StoreCorrupt:
            return True


def patiently(
    attempt: Callable[[], T], seconds: float, begins: Callable[[StoreLost], bool] = lambda _: True
) -> T:
    """The result of the attempt, which is repeated for so many seconds while the server is lost.
    begins: whether a loss shows that the server was there, and is worth waiting for."""
    until, pause, waits = time.monotonic() + seconds, 0.1, False
    while True:
        try:
            return attempt()
        except StoreLost as lost:
            waits = waits or begins(lost)
            if not waits or time.monotonic() + pause > until:
                raise
        time.sleep(pause)
        pause = min(2 * pause, 2.0)


def matching(model: type[Base], wanted: dict[str, Any]) -> list[ColumnElement[bool]]:
    """The conditions for what is wanted; None means that anything will do."""
    table = model.__table__
    return [table.c[name] == value for name, value in wanted.items() if value is not None]


def same_identity(kept: Record, row: dict[str, Any]) -> list[ColumnElement[bool]]:
    layout = LAYOUTS[type(kept)]
    return matching(layout.model, {name: row[name] for name in layout.identity})


def is_conflict(error: StoreError) -> bool:
    return isinstance(error.__cause__, IntegrityError)
