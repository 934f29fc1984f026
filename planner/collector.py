"""Pauses Python's garbage collector during work that makes many small objects."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_LOCK = threading.Lock()
_WITHIN: list[bool] = []
"""For every block that is under way, whether the collector ran when the first of them began."""
_FROZEN = threading.Event()
"""Set where objects were kept from the collector when it was last asked."""


@contextmanager
def paused(lasting: bool = False) -> Iterator[None]:
    """Let the collector of cycles wait. Planning a model makes tens of millions of objects, nearly
    none of them in cycles: looking for those took a sixth of its time. Of importing Dynamo and of
    tracing a model it took a fifth and a seventh.

    lasting: what is made, as modules are, stays as long as the process. At the end all objects
    count as old. Else the collector would look through them when it goes on, which took half a
    second of the start of GPT-2."""
    with _LOCK:
        _WITHIN.append(_WITHIN[0] if _WITHIN else gc.isenabled())
        gc.disable()
    try:
        yield
    finally:
        with _LOCK:
            if _WITHIN.pop() and not _WITHIN:
                if lasting:
                    _count_as_old()
                gc.enable()


def _count_as_old() -> None:
    """Puts all objects into the oldest generation, in no time. Who keeps objects from the collector
    with `gc.freeze`, before a fork, is not disturbed, then or later: Python counts what is frozen
    by looking at each, which takes a tenth of a second of a few millions."""
    if not _FROZEN.is_set() and gc.get_freeze_count():
        _FROZEN.set()
    if not _FROZEN.is_set():
        gc.freeze()
        gc.unfreeze()
