"""Migrations from the command line: `python -m fusionplan.db.migrate --check`.

The check is for developers: every revision goes up, down and up again on a scratch file, and the
schema that comes out is the one that the models describe.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from sqlalchemy import inspect

from .engine import sqlite_engine
from .models import TABLES
from .schema import current, differences, downgrade, heads, newest, upgrade

__all__ = ["check", "current", "downgrade", "heads", "main", "upgrade"]


def check() -> list[str]:
    """Up, down and up on a scratch SQLite file; what went wrong, in words."""
    problems: list[str] = []
    if heads() != (newest(),):
        problems.append(f"the revisions end at {heads()}, their files' names at {newest()}")
        return problems
    with tempfile.TemporaryDirectory() as folder:
        engine = sqlite_engine(Path(folder) / "scratch.db", "rwc")
        try:
            upgrade(engine)
            problems += [f"after the first upgrade: {text}" for text in differences(engine)]
            downgrade(engine)
            left = TABLES & set(inspect(engine).get_table_names())
            problems += [f"the downgrade leaves table {name}" for name in sorted(left)]
            if current(engine) is not None:
                problems.append(f"the downgrade leaves revision {current(engine)}")
            upgrade(engine)
            problems += [f"after the second upgrade: {text}" for text in differences(engine)]
            if current(engine) != newest():
                problems.append(f"the upgrade ends at {current(engine)}, not {newest()}")
        finally:
            engine.dispose()
    return problems


def main(arguments: list[str] | None = None) -> int:
    """Exit status 0 when all is well, 1 when the check found something."""
    parser = argparse.ArgumentParser(prog="python -m fusionplan.db.migrate", description=__doc__)
    parser.add_argument("--check", action="store_true", required=True, help="run the check")
    parser.parse_args(arguments)
    problems = check()
    for problem in problems:
        print(problem, file=sys.stderr)
    if not problems:
        print(f"migrations: up, down, up to {newest()}; models and schema agree")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
