"""Atomic writes: a file of the user's is written whole, or stays as it was."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path


def write_whole(path: Path, data: bytes, mode: int | None = None, *, first: bool = False) -> None:
    """The file with these bytes, in place of one of that name, once they are on disk; whatever
    fails, the old one stays and nothing lies beside it. mode: of a file that is for its owner
    alone; None: as others are made. first: only where there is none. Raises OSError, and
    FileExistsError for that."""
    # A name that nobody can know: in a folder of many users another one's link may wait there.
    number, name = tempfile.mkstemp(prefix=f"{path.name}.", dir=path.parent)
    part = Path(name)
    try:
        with os.fdopen(number, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.chmod(0o666 & ~_umask() if mode is None else mode)
        if first:
            os.link(part, path)
        else:
            part.replace(path)
    finally:
        with suppress(OSError):
            part.unlink()


def _umask() -> int:
    found = os.umask(0o077)
    os.umask(found)
    return found
