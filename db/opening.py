"""Opening a store: nothing is written until the place has turned out to be ours and sound."""

from pathlib import Path

from sqlalchemy import Engine, inspect

from . import schema, sqlite_file
from .engine import Mode, server_engine, sqlite_engine
from .errors import StoreMissing, StoreNewer, StoreUnavailable
from .faults import corrupt
from .location import StorePlace
from .models import TABLES


def opened(place: StorePlace, *, create: bool, read_only: bool) -> Engine:
    """An engine over a store at the newest revision; raises a StoreError or a driver's error."""
    if place.path is not None:
        engine, revision = _file(place.path, create=create, read_only=read_only)
    else:
        engine, revision = _server(place, create=create, read_only=read_only)
    if revision != schema.newest():
        try:
            schema.upgrade(engine)
        except BaseException:
            engine.dispose()
            raise
    return engine


def _file(path: Path, *, create: bool, read_only: bool) -> tuple[Engine, str | None]:
    mode: Mode = "rw"
    revision = None
    if sqlite_file.is_blank(path):
        _may_create(str(path), create=create, read_only=read_only)
        sqlite_file.make_folder(path)
        sqlite_file.require_writable(path)
        sqlite_file.make_file(path)
    else:
        if not read_only:
            sqlite_file.require_writable(path)
        contents = sqlite_file.inspect(path, schema.VERSION_TABLE, write=not read_only)
        revision = contents.revision
        _judge(str(path), revision, contents.tables, create=create, read_only=read_only)
        if read_only:
            mode = contents.mode
    if not read_only:
        sqlite_file.settle_journal(path)
    return sqlite_engine(path, mode), revision


def _server(place: StorePlace, *, create: bool, read_only: bool) -> tuple[Engine, str | None]:
    engine = server_engine(place.url, read_only=read_only)
    try:
        while True:
            revision = schema.current(engine)
            tables = frozenset(inspect(engine).get_table_names())
            if schema.current(engine) == revision:
                break  # Else another process has migrated it in between.
        _judge(place.shown, revision, tables, create=create, read_only=read_only)
    except BaseException:
        engine.dispose()
        raise
    return engine, revision


def _judge(
    shown: str, revision: str | None, tables: frozenset[str], *, create: bool, read_only: bool
) -> None:
    """Whether a sound database may be taken for a store, as it is or after a migration."""
    if revision is None:
        strangers = sorted(TABLES & tables)
        if strangers:
            raise StoreUnavailable(
                f"{shown} belongs to another program (its table {strangers[0]} is not ours): "
                "give another path or database."
            )
        _may_create(shown, create=create, read_only=read_only)
    elif revision not in schema.revisions():
        raise StoreNewer(
            f"{shown} has schema revision {revision}, which this version of fusionplan does not "
            f"know (its newest is {schema.newest()}): upgrade fusionplan, or use another store."
        )
    elif revision == schema.newest():
        missing = sorted(TABLES - tables)
        if missing:
            raise corrupt(shown, f"table {missing[0]} is missing")
    elif read_only:
        raise StoreUnavailable(
            f"{shown} has the older schema revision {revision}: the first command that writes to "
            "it, such as `planner tune`, migrates it."
        )


def _may_create(shown: str, *, create: bool, read_only: bool) -> None:
    if read_only or not create:
        raise StoreMissing(
            f"There is no store at {shown}: tune something first, or name another store with "
            "--store or PLANNER_STORE."
        )
