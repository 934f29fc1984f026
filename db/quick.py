"""One plan out of a SQLite file, without SQLAlchemy, whose import takes longer than all look-ups of
a process.

Only what is found whole is given: the file has the newest revision, and the plan and its versions
match their digests. Whatever else there is, `Store` looks at and says.
"""

import json
import os
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .errors import StoreError
from .payload import canonical, digest
from .records import PlanRecord
from .revisions import VERSION_TABLE, newest
from .user_store import default_path

_PLAN = """
    SELECT key, graph_key, device_key, name, evidence, speedup, bucket_key, created_at, updated_at,
        versions, versions_sha256, payload, payload_sha256
    FROM plan WHERE graph_key = ? AND device_key = ? AND versions_sha256 = ?
"""


def quick_plan(
    location: str | Path | None, graph_key: str, device_key: str, versions: dict[str, str]
) -> PlanRecord | None:
    """The plan made for exactly this. None where there is none, or where the store has to be asked
    in full: it is no SQLite file, is locked, damaged, or of another revision."""
    try:
        path = _path(location)
        if path is None or not path.is_file():
            return None
        asked = graph_key, device_key, digest(canonical(versions))
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=0.0)) as opened:
            opened.row_factory = sqlite3.Row
            revision = opened.execute(f'SELECT version_num FROM "{VERSION_TABLE}"').fetchall()
            if [row[0] for row in revision] != [newest()]:
                return None
            row = opened.execute(_PLAN, asked).fetchone()
        found = None if row is None else _record(dict(row))
    except (sqlite3.Error, StoreError, OSError, RuntimeError, ValueError, TypeError):
        return None
    if found is None or found.versions != versions:
        return None
    return found if (found.graph_key, found.device_key) == (graph_key, device_key) else None


def _path(location: str | Path | None) -> Path | None:
    """The file, where the location is a plain path (see `location.resolve`)."""
    given = location if location is not None else os.environ.get("PLANNER_STORE") or default_path()
    text = str(given)
    if (not isinstance(given, Path) and "://" in text) or not text.strip():
        return None
    return Path(os.path.abspath(Path(text).expanduser()))


def _record(row: dict[str, Any]) -> PlanRecord | None:
    for name in ("versions", "payload"):
        text = row[name]
        if not isinstance(text, str) or digest(text) != row.pop(f"{name}_sha256"):
            return None
        row[name] = json.loads(text)
    for name in ("created_at", "updated_at"):
        row[name] = datetime.fromisoformat(row[name]).replace(tzinfo=UTC)
    return PlanRecord(**row)
