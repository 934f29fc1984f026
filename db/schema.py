"""The schema's revisions, applied by alembic without any alembic.ini.

Our version table has a name of its own: Optuna keeps `alembic_version` in the same database, and
either of the two must be able to migrate without the other. Alembic is imported only where it
migrates or compares: a store at the newest revision opens without it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine

from .engine import writing
from .models import TABLES, Base
from .revisions import FOLDER, VERSION_TABLE, newest, revisions

if TYPE_CHECKING:
    from alembic.config import Config

__all__ = [
    "FOLDER",
    "VERSION_TABLE",
    "current",
    "differences",
    "downgrade",
    "heads",
    "newest",
    "revisions",
    "upgrade",
]

# Any number that no other program on the server uses for its advisory lock.
SERVER_LOCK = 0x66706C616E

# Alembic keeps the running migration in module globals.
_one_at_a_time = threading.Lock()


def heads() -> tuple[str, ...]:
    """The revisions that alembic would upgrade to: `newest()` alone, or the files are wrong."""
    from alembic.script import ScriptDirectory

    return tuple(ScriptDirectory.from_config(_config()).get_heads())


def current(engine: Engine) -> str | None:
    """The database's revision; None before the first upgrade."""
    from alembic.migration import MigrationContext

    with engine.connect() as connection:
        found = MigrationContext.configure(
            connection, opts={"version_table": VERSION_TABLE}
        ).get_current_heads()
    return "+".join(sorted(found)) or None


def upgrade(engine: Engine, revision: str = "head") -> None:
    """Bring the database up to the revision, in one transaction; others wait meanwhile."""
    from alembic import command

    with _one_at_a_time, writing(engine) as connection:
        _wait_turn(connection)
        command.upgrade(_config(connection), revision)


def downgrade(engine: Engine, revision: str = "base") -> None:
    """Take the database down to the revision. What the newer tables held is lost."""
    from alembic import command

    with _one_at_a_time, writing(engine) as connection:
        _wait_turn(connection)
        command.downgrade(_config(connection), revision)


def differences(engine: Engine) -> list[str]:
    """Where the database's own schema departs from the models; empty when they agree."""
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection,
            opts={
                "version_table": VERSION_TABLE,
                "include_name": _is_ours,
                "compare_type": True,
            },
        )
        return [repr(difference) for difference in compare_metadata(context, Base.metadata)]


def _is_ours(name: str | None, kind: str, parents: Any) -> bool:
    return kind != "table" or name in TABLES


def _wait_turn(connection: Connection) -> None:
    # SQLite's BEGIN IMMEDIATE has already done this; PostgreSQL would let two create one table.
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({SERVER_LOCK})")


def _config(connection: Connection | None = None) -> Config:
    from alembic.config import Config

    config = Config()
    # The value goes through configparser, where % means something.
    config.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    config.attributes.update(
        connection=connection,
        metadata=Base.metadata,
        version_table=VERSION_TABLE,
        include_name=_is_ours,
    )
    return config
