"""New SQLite stores without their seven migrations, which take as long as most tests of a store.

The first one of a process is migrated; those after it get its tables, by the statements that SQLite
keeps of them. tests/db/test_migrations.py compares the two, and migrates each of its own.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from sqlalchemy import Connection, Engine


def quicken() -> None:
    """In each process of tests, where the store is imported; `schema.upgrade.__wrapped__` is its
    own way."""
    schema: Any = sys.modules.get("fusionplan.db.schema")
    if schema is None:
        return
    original, known = schema.upgrade, list[str]()

    @functools.wraps(original)
    def upgrade(engine: Engine, revision: str = "head") -> None:
        if engine.dialect.name != "sqlite" or revision != "head" or engine.url.database is None:
            original(engine, revision)
            return
        with schema._one_at_a_time, schema.writing(engine) as connection:
            was_empty = not statements(connection)
            if was_empty and known:
                for each in known:
                    connection.exec_driver_sql(each)
                return
        original(engine, revision)
        if was_empty and not known:
            with engine.connect() as connection:
                known.extend([*statements(connection), *_version(connection, schema)])

    schema.upgrade = upgrade


def statements(connection: Connection) -> list[str]:
    """Those that made all that is in a SQLite database, but for rows, in their order."""
    query = "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%'"
    found = connection.exec_driver_sql(f"{query} ORDER BY rowid").scalars()
    return [str(each) for each in found]


def _version(connection: Connection, schema: Any) -> list[str]:
    table = schema.VERSION_TABLE
    (number,) = connection.exec_driver_sql(f"SELECT version_num FROM {table}").scalars()
    return [f"INSERT INTO {table} VALUES ('{number}')"]
