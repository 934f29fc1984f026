"""A pass of Triton's that cannot compile what a loop carries of a scan, left out there.

The pass keeps apart what a thread adds up in a loop until the loop has ended, and asserts that
somebody reads the sum then. What a scan carries from turn to turn nobody reads in the end: where
several rows of float32 are scanned in whole blocks, Triton 3.6 and 3.7 fail. There the pass would
gain nothing, as the scan needs the sum of every turn.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_PASS = "add_optimize_thread_locality"
_CARRIED = re.compile(r"^ +(v\d+_before) = .*\b\1\b", re.MULTILINE)
_here = threading.local()
_lock = threading.Lock()


@contextmanager
def passes_for(text: str) -> Iterator[None]:
    """Triton's passes as they compile this kernel, in this thread."""
    if _CARRIED.search(text) is None:
        yield
        return
    from triton._C.libtriton import passes

    with _lock:
        own = getattr(passes.ttgpuir, _PASS, None)
        if own is not None and not hasattr(own, "asks"):
            setattr(passes.ttgpuir, _PASS, _asking(own))
    _here.without = True
    try:
        yield
    finally:
        _here.without = False


def _asking(own: Callable[[Any], None]) -> Callable[[Any], None]:
    def add(manager: Any) -> None:
        if not getattr(_here, "without", False):
            own(manager)

    add.asks = True  # type: ignore[attr-defined]
    return add
