"""The check of a whole store for `planner doctor`: all of it is read."""

from functools import lru_cache

from sqlalchemy import Connection, func, select

from .models import Base
from .payload import digest
from .rows import LAYOUTS, damage

_AT_A_TIME = 5000


def counts(connection: Connection) -> dict[str, int]:
    """How many rows each table has."""
    tables = Base.metadata.sorted_tables
    return {
        table.name: connection.execute(select(func.count()).select_from(table)).scalar_one()
        for table in tables
    }


def of_file(connection: Connection) -> list[str]:
    """What SQLite's own checks find."""
    rows = connection.exec_driver_sql("PRAGMA quick_check").scalars()
    found = [f"quick check: {text}" for text in rows if text != "ok"]
    for layout in LAYOUTS.values():
        table = layout.model.__tablename__
        for row in connection.exec_driver_sql(f"PRAGMA foreign_key_check({table})"):
            found.append(f"table {table}, row {row[1]}: it names a missing {row[2]}")
    return found


def of_payloads(connection: Connection) -> list[str]:
    """Rows of which a payload does not match its digest. Only what is compared is read."""
    found: list[str] = []
    # Thousands of trials have the same versions.
    remembered = lru_cache(maxsize=256)(digest)
    for layout in LAYOUTS.values():
        table = layout.model.__table__
        names = [layout.key, *(n for p in layout.payloads for n in (p, f"{p}_sha256"))]
        query = select(*(table.c[name] for name in names))
        rows = connection.execution_options(yield_per=_AT_A_TIME).execute(query).mappings()
        for row in rows:
            fault = damage(layout, row, remembered)
            if fault is not None:
                found.append(fault)
    return found
