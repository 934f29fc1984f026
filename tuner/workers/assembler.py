"""Makes all of torch.compile's processes use one ptxas.

Torch's wheels for CUDA 13 bring a ptxas of their own. Inductor's compile workers use it, but the
process that started them uses Triton's. So that process looks for the kernels under other keys of
Triton's cache, does not find them, and compiles every choice of `max-autotune` again, one after the
other, half a second each.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

SETTING = "TRITON_PTXAS_PATH"


@contextmanager
def as_in_workers() -> Iterator[None]:
    """This process uses the ptxas that Inductor's compile workers use. Kernels of plans are to be
    compiled outside: they have Triton's, here as in the process that loads them."""
    own = _of_torch()
    if chosen() is not None or not os.access(own, os.X_OK):
        yield
        return
    os.environ[SETTING] = own
    _forget_version()
    try:
        yield
    finally:
        os.environ.pop(SETTING, None)
        _forget_version()


def chosen() -> str | None:
    """The ptxas that the user asks for; None: Triton's. Inductor sets torch's where it compiles in
    this process: nobody asked for that."""
    found = os.environ.get(SETTING)
    return None if found == _of_torch() else found


def _of_torch() -> str:
    return str(Path(torch.__file__).parent / "bin" / "ptxas")


def _forget_version() -> None:
    """Triton asks ptxas for its version once, and makes keys with it."""
    from triton.backends.nvidia.compiler import get_ptxas_version

    get_ptxas_version.cache_clear()
