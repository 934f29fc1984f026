"""Connections and engines: how SQLite is set up, and that a writer takes its lock at once."""

import sqlite3
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal

from sqlalchemy import URL, Connection, Engine, NullPool, QueuePool, create_engine, event

from .errors import StoreUnavailable
from .location import without_secrets

BUSY_S = 30.0
"""Seconds that a writer waits for others."""
READ_BUSY_S = 1.0
"""Seconds that a reader waits: it is in the way of a model that could run without a plan."""
CONNECT_S = 5
"""Seconds until a reader takes a database server for absent."""
WRITES = "fusionplan_writes"

Mode = Literal["ro", "immutable", "rw", "rwc"]


def connect(path: Path, mode: Mode) -> sqlite3.Connection:
    """A connection in autocommit; transactions are opened by name, by `writing` and the engine.

    `immutable` is for a file in a folder where SQLite cannot put its shared memory: it takes no
    locks, so it is only for what nobody can write.
    """
    how = "mode=ro&immutable=1" if mode == "immutable" else f"mode={mode}"
    connection = sqlite3.connect(
        f"{path.as_uri()}?{how}",
        uri=True,
        timeout=BUSY_S if mode in ("rw", "rwc") else READ_BUSY_S,
        isolation_level=None,
        check_same_thread=False,
    )
    try:
        # A damaged payload must reach its digest check, not fail as an encoding error before it.
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        connection.execute("PRAGMA foreign_keys = ON")
        if mode in ("rw", "rwc"):
            # In WAL mode NORMAL would survive kill -9, but not the loss of power.
            connection.execute("PRAGMA synchronous = FULL")
    except BaseException:
        connection.close()
        raise
    return connection


def sqlite_engine(path: Path, mode: Mode) -> Engine:
    """An engine over one SQLite file, safe to share between threads."""
    engine = create_engine(
        URL.create("sqlite", database=str(path)),
        creator=lambda: connect(path, mode),
        # What an immutable connection has cached would go stale unseen, so none is kept.
        poolclass=NullPool if mode == "immutable" else QueuePool,
    )
    event.listen(engine, "begin", _begin)
    return engine


def server_engine(url: URL, *, read_only: bool) -> Engine:
    """An engine over a database server."""
    shown = without_secrets(url)
    options: dict[str, bool] = {}
    arguments: dict[str, int] = {}
    if read_only and url.get_backend_name() == "postgresql":
        options["postgresql_readonly"] = True
        arguments["connect_timeout"] = CONNECT_S
    try:
        return create_engine(
            url, pool_pre_ping=True, execution_options=options, connect_args=arguments
        )
    except ImportError as error:
        raise StoreUnavailable(
            f"{shown} needs the Python module {error.name}: install it, or use a SQLite file."
        ) from error


def writing(engine: Engine) -> AbstractContextManager[Connection]:
    """One write transaction, committed when the block ends and undone when it raises."""
    return engine.execution_options(**{WRITES: True}).begin()


def _begin(connection: Connection) -> None:
    # A writer that starts as a reader fails at once, without waiting, when another commits between.
    writes = connection.get_execution_options().get(WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
