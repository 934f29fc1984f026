"""The state of a SQLite file, found out before anything is written to it."""

import contextlib
import os
import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from .engine import BUSY_S, Mode, connect
from .errors import StoreUnavailable
from .faults import corrupt, read_only
from .location import on_network

MAGIC = b"SQLite format 3\x00"
HEADER_BYTES = 100


@dataclass(frozen=True, slots=True)
class FileContents:
    """The tables of a sound database, our schema revision, and the mode that could read it."""

    mode: Mode
    tables: frozenset[str]
    revision: str | None


def is_blank(path: Path) -> bool:
    """Whether there is no file, or one that another process has only just created."""
    if not path.exists():
        return True
    if path.is_dir():
        raise StoreUnavailable(f"{path} is a folder: give the path of a file in it.")
    if not path.is_file():
        raise StoreUnavailable(f"{path} is not a regular file: give another path.")
    return path.stat().st_size == 0


def make_folder(path: Path) -> None:
    """The folder of a new store; every failure says whether rights or the path are to blame."""
    existing = path.parent
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if existing.is_dir() and not os.access(existing, os.W_OK | os.X_OK):
        raise read_only(str(path))
    try:
        # What was tuned says much of a model: it is its owner's.
        _make_private(path.parent)
    except OSError as error:
        raise StoreUnavailable(
            f"The folder of {path} cannot be created ({error.strerror}): give another path."
        ) from error


def _make_private(folder: Path) -> None:
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)
    folder.mkdir(exist_ok=True)  # or the error, where it is no folder


def make_file(path: Path) -> None:
    """An empty file that only its owner can read, unless there is one. SQLite gives its journals
    the same rights."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))


def identity(path: Path) -> tuple[int, int] | None:
    """What tells the file from another of the same name; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def require_writable(path: Path) -> None:
    """SQLite writes its journal beside the file, so the folder counts as much as the file."""
    for part in (path, path.parent):
        if part.exists() and not os.access(part, os.W_OK):
            raise read_only(str(path))


def inspect(path: Path, version_table: str, *, write: bool) -> FileContents:
    """Read the file's tables without writing a byte to it. A writer has SQLite check all of it,
    which takes as long as the file is large: a reader is told by digests of what is damaged.

    Raises StoreCorrupt, or sqlite3.Error where SQLite cannot read it.
    """
    _check_size(path)
    try:
        return _read(path, version_table, "ro", check=write)
    except sqlite3.OperationalError as error:
        name = getattr(error, "sqlite_errorname", "")
        if write and name == "SQLITE_READONLY_ROLLBACK":
            # A process died inside a transaction: a writer's first read rolls it back.
            return _read(path, version_table, "rw", check=True)
        if not write and name.startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY")):
            return _read_immutable(path, version_table, error)
        raise


def settle_journal(path: Path) -> None:
    """Put the file in WAL mode, or out of it on a network file system; creates a missing file."""
    wanted = "delete" if on_network(path) else "wal"
    deadline = time.monotonic() + BUSY_S
    while True:
        try:
            with closing(connect(path, "rwc")) as connection:
                found = connection.execute("PRAGMA journal_mode").fetchone()[0]
                if found != wanted:
                    found = connection.execute(f"PRAGMA journal_mode = {wanted}").fetchone()[0]
            if found == wanted or wanted == "wal":
                return  # not every system can do WAL, and a rollback journal is safe anywhere
        except sqlite3.OperationalError as error:
            # Changing the mode takes the whole file, and SQLite does not always wait for that.
            busy = getattr(error, "sqlite_errorname", "").startswith("SQLITE_BUSY")
            if not busy or time.monotonic() > deadline:
                raise
        if time.monotonic() > deadline:
            raise StoreUnavailable(
                f"{path} lies on a network file system and is held in WAL mode: "
                "end the other processes that use it, or move it to a local disk."
            )
        time.sleep(0.02)


def sound(connection: sqlite3.Connection) -> str | None:
    """What SQLite's own quick check finds wrong, if anything."""
    first = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    return None if first == "ok" else " ".join(str(first).split())


def _check_size(path: Path) -> None:
    with path.open("rb") as file:
        header = file.read(HEADER_BYTES)
    if header[: len(MAGIC)] != MAGIC:
        raise corrupt(str(path), "not a SQLite database")
    page = int.from_bytes(header[16:18], "big")
    page_bytes = 65536 if page == 1 else page
    # SQLite fills a page cut short with zeros, and its own check may pass over that. A file that
    # is being written is ragged too, but has its journal beside it.
    ragged = page_bytes < 512 or path.stat().st_size % page_bytes
    pages = int.from_bytes(header[28:32], "big")
    # The header's own count holds where the two counters of changes agree.
    counted = header[24:28] == header[92:96]
    short = counted and path.stat().st_size < pages * page_bytes
    if len(header) < HEADER_BYTES or ((ragged or short) and not _has_log(path)):
        raise corrupt(str(path), "truncated")


def _has_log(path: Path) -> bool:
    """Whether a journal or write-ahead log beside the file still holds part of its content."""
    logs = (path.with_name(path.name + end) for end in ("-wal", "-journal"))
    return any(log.exists() and log.stat().st_size > 0 for log in logs)


def _read(path: Path, version_table: str, mode: Mode, *, check: bool) -> FileContents:
    with closing(connect(path, mode)) as connection:
        fault = sound(connection) if check else None
        if fault is not None:
            raise corrupt(str(path), fault)
        rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        tables = frozenset(name for (name,) in rows)
        revision = None
        if version_table in tables:
            found = connection.execute(f'SELECT version_num FROM "{version_table}"').fetchall()
            revision = "+".join(sorted(number for (number,) in found)) or None
        return FileContents(mode, tables, revision)


def _read_immutable(
    path: Path, version_table: str, error: sqlite3.OperationalError
) -> FileContents:
    if _has_log(path):
        raise StoreUnavailable(
            f"{path} has unfinished work in the log beside it, which only a writer can take in: "
            "copy both to a writable folder and open the copy."
        ) from error
    return _read(path, version_table, "immutable", check=False)
