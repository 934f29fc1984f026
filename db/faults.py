"""Errors of the database, its driver and the file system, told as a StoreError."""

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import (
    DataError,
    DBAPIError,
    IntegrityError,
    InterfaceError,
    OperationalError,
    SQLAlchemyError,
)

from .errors import (
    StoreCorrupt,
    StoreError,
    StoreLost,
    StoreReadOnly,
    StoreRefused,
    StoreUnavailable,
)

READ_ONLY_SQLSTATE = "25006"  # PostgreSQL: read_only_sql_transaction
# Connection lost, operator's shutdown, server starting; serialization failure and deadlock.
PASSING_SQLSTATES = ("08", "57P", "40")
_STOPPING_SQLSTATES = "57P"
# PostgreSQL, to whom it refuses a connection: libpq gives no state then.
_STOPPING = ("the database system is starting up", "the database system is shutting down")


@contextmanager
def translated(shown: str, secrets: frozenset[str] = frozenset()) -> Iterator[None]:
    """Whatever escapes the block is a StoreError that names the store, with its cause. secrets:
    what its message must not repeat."""
    try:
        yield
    except UnicodeDecodeError as error:
        # From a damaged file even SQLite's message or a table's name may be no text.
        raise corrupt(shown, "it holds bytes that are no text") from error
    except (SQLAlchemyError, sqlite3.Error, OSError) as error:
        told = _told(error, shown)
        raise type(told)(_hidden(str(told), secrets)) from error


def was_there(error: StoreError) -> bool:
    """Whether a server answered, and then let go: it is being stopped, or is starting. One that
    refuses connections may not be there at all."""
    cause = error.__cause__
    if not isinstance(cause, DBAPIError):
        return False
    state, told = str(getattr(cause.orig, "sqlstate", None) or ""), str(cause.orig)
    stops = state.startswith(_STOPPING_SQLSTATES) or any(text in told for text in _STOPPING)
    return cause.connection_invalidated or stops


def _hidden(text: str, secrets: frozenset[str]) -> str:
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def corrupt(shown: str, what: str) -> StoreCorrupt:
    return StoreCorrupt(
        f"{shown} is damaged ({what}): restore it from a copy, or move it away to start afresh."
    )


def read_only(shown: str) -> StoreReadOnly:
    return StoreReadOnly(
        f"{shown} cannot be written: make the file and its folder writable, "
        "open the store read-only, or name another store with --store or PLANNER_STORE."
    )


def _told(error: Exception, shown: str) -> StoreError:
    origin = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    detail = " ".join(str(origin).split()) or type(origin).__name__
    if isinstance(origin, sqlite3.Error):
        return _of_sqlite(getattr(origin, "sqlite_errorname", ""), origin, detail, shown)
    if isinstance(error, IntegrityError | DataError):
        return _refused(detail, shown)
    if getattr(origin, "sqlstate", None) == READ_ONLY_SQLSTATE:
        return read_only(shown)
    if isinstance(origin, OSError):
        if origin.errno == errno.EROFS:
            return read_only(shown)
        if origin.errno == errno.ENOSPC:
            return _full(shown)
    if isinstance(error, DBAPIError) and _is_passing(error, origin):
        return StoreLost(f"{shown} does not answer ({detail}): start its server and try again.")
    return _unavailable(detail, shown)


def _is_passing(error: DBAPIError, origin: object) -> bool:
    """Whether the same may work in a moment: nothing was refused, the server was not there."""
    state = getattr(origin, "sqlstate", None)
    if state is None:
        return error.connection_invalidated or isinstance(error, OperationalError)
    return str(state).startswith(PASSING_SQLSTATES)


def _of_sqlite(name: str, origin: sqlite3.Error, detail: str, shown: str) -> StoreError:
    """By SQLite's own result code (https://sqlite.org/rescode.html)."""
    match name.removeprefix("SQLITE_").partition("_")[0]:
        case "CORRUPT" | "NOTADB":
            return corrupt(shown, detail)
        case "READONLY":
            return read_only(shown)
        case "BUSY" | "LOCKED":
            return StoreUnavailable(
                f"{shown} stayed locked by another process: wait for it, or end it, and try again."
            )
        case "FULL":
            return _full(shown)
        case "CONSTRAINT" | "MISMATCH" | "TOOBIG" | "RANGE":
            return _refused(detail, shown)
    # The sqlite3 module's own complaints about a value carry no result code.
    if isinstance(origin, sqlite3.ProgrammingError | sqlite3.InterfaceError | InterfaceError):
        return _refused(detail, shown)
    return _unavailable(detail, shown)


def _full(shown: str) -> StoreUnavailable:
    return StoreUnavailable(f"{shown} cannot grow, the disk is full: free some space.")


def _refused(detail: str, shown: str) -> StoreRefused:
    return StoreRefused(
        f"{shown} refuses the record ({detail}): put the device, graph and kernel that it names "
        "first, and check its fields."
    )


def _unavailable(detail: str, shown: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"{shown} cannot be used ({detail}): check the path or URL, or name another store with "
        "--store or PLANNER_STORE."
    )
