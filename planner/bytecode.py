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

from .private_folder import is_private


def environment() -> dict[str, str]:
    """What is set for a process that is to keep its bytecode in the folder, which is made; nothing
    where torch has its own, or there can be no folder that is the user's alone."""
    folder = _folder()
    if folder is None:
        return {}
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not is_private(folder):
            return {}
    except OSError:
        return {}
    return {"PYTHONPYCACHEPREFIX": str(folder), "PYTHONDONTWRITEBYTECODE": ""}


@contextmanager
def kept_bytecode() -> Iterator[None]:
    """What is imported meanwhile finds the bytecode that processes of ours have kept, if any. More
    is written only where Python may write it anyway. Of blocks at the same time the first counts:
    those in it, or in other threads, change nothing, or the setting would outlive them."""
    folder = _folder()
    try:
        there = folder is not None and sys.pycache_prefix is None and is_private(folder)
    except OSError:
        there = False
    if not there:
        yield
        return
    sys.pycache_prefix = str(folder)
    try:
        yield
    finally:
        sys.pycache_prefix = None


def _folder() -> Path | None:
    """The user's folder for bytecode; None where torch has its own, or Python was told where to
    keep it."""
    try:
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # there is no home
        return None
    folder = caches / "fusionplan" / "bytecode"
    torch = find_spec("torch")
    if torch is None or torch.origin is None or sys.pycache_prefix not in (None, str(folder)):
        return None
    source = Path(torch.origin)
    beside = source.parent / "__pycache__" / f"{source.stem}.{sys.implementation.cache_tag}.pyc"
    return None if beside.exists() else folder
