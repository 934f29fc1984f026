"""Kernels that tests compile for sm_90, kept for the next run.

A new version of what compiles them begins anew: Triton's own key knows their text and the compiler,
but not what we do to its stages."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import triton
from fusionplan.planner.runtime import machine_code

ROOT = Path(__file__).resolve().parents[1]


@contextmanager
def kept() -> Iterator[None]:
    """Triton's cache is a folder of this version's, in .build."""
    digest = hashlib.sha256()
    for file in sorted(Path(machine_code.__path__[0]).glob("*.py")):
        digest.update(file.read_bytes())
    folder = ROOT / ".build" / "kernels" / digest.hexdigest()[:16]
    for other in folder.parent.glob("*"):
        if other != folder:
            shutil.rmtree(other, ignore_errors=True)
    with triton.knobs.cache.scope():
        triton.knobs.cache.dir = str(folder)
        yield
