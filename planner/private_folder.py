"""Folders of what is run without another look, such as machine code and bytecode."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def is_private(folder: Path) -> bool:
    """Whether it is a folder, no link to one, to which nobody but this user can write. Else what
    somebody put into it would be run. Raises OSError where there is nothing."""
    found = folder.lstat()
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    return ours and not found.st_mode & 0o022
