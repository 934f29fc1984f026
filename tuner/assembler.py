"""One ptxas for what torch.compile compiles.

Torch's wheels for CUDA 13 bring a ptxas of their own. Inductor's compile workers take it, but not
the process that asked them: that has Triton's, and so looks for their kernels under other keys of
Triton's cache, finds none, and compiles every choice of `max-autotune` again, one after the other,
half a second each.
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
    own = Path(torch.__file__).parent / "bin" / "ptxas"
    if SETTING in os.environ or not os.access(own, os.X_OK):
        yield
        return
    os.environ[SETTING] = str(own)
    _forget_version()
    try:
        yield
    finally:
        # Inductor sets it, too, where it compiles in this process, and leaves it.
        os.environ.pop(SETTING, None)
        _forget_version()


def _forget_version() -> None:
    """Triton asks ptxas for its version once, and makes keys with it."""
    from triton.backends.nvidia.compiler import get_ptxas_version

    get_ptxas_version.cache_clear()
