"""Whether a lock on a file is free."""

from __future__ import annotations

import fcntl
from pathlib import Path


def is_free(path: Path) -> bool:
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True
