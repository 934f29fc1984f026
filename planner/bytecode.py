"""Bytecode of what is imported, where torch has none and Python writes none beside it.

So it is in many images of containers. Each process then compiles all that it imports of torch anew,
which took 6 to 10 s on a machine with H200s. The processes of a tune keep it in a folder of the
user's, and whoever imports Dynamo for us reads it there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path


def environment() -> dict[str, str]:
    """What is set for a process that is to keep its bytecode in the folder, which is made; nothing
    where torch has its own, or there can be no folder."""
    folder = _folder()
    if folder is None:
        return {}
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return {}
    return {"PYTHONPYCACHEPREFIX": str(folder), "PYTHONDONTWRITEBYTECODE": ""}


@contextmanager
def kept_is_read() -> Iterator[None]:
    """What is imported meanwhile finds the bytecode that processes of ours have kept, if any. More
    is written only where Python may write it anyway."""
    folder, before = _folder(), sys.pycache_prefix
    if folder is None or not folder.is_dir():
        yield
        return
    sys.pycache_prefix = str(folder)
    try:
        yield
    finally:
        sys.pycache_prefix = before


def _folder() -> Path | None:
    """None where torch has bytecode, or Python was told where to keep it."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # there is no home
        return None
    folder = folder / "fusionplan" / "bytecode"
    found = find_spec("torch")
    if found is None or found.origin is None or sys.pycache_prefix not in (None, str(folder)):
        return None
    source = Path(found.origin)
    beside = source.parent / "__pycache__" / f"{source.stem}.{sys.implementation.cache_tag}.pyc"
    return None if beside.exists() else folder
