"""Alembic runs this file, by path, for every migration.

Connection and metadata come from `db.schema`, which also holds the names of our tables: the file
is shared with Optuna, whose tables (and `alembic_version`) are not ours to see.
"""

from alembic import context

settings = context.config.attributes
context.configure(
    connection=settings["connection"],
    target_metadata=settings["metadata"],
    version_table=settings["version_table"],
    include_name=settings["include_name"],
    compare_type=True,
    # The caller holds one transaction around everything: SQLite's DDL is transactional too.
    transactional_ddl=True,
    # SQLite alters a table by copying it.
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
