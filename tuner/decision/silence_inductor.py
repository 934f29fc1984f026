"""Keeps what Inductor prints of its own autotuning, and its errors in it, off the screen."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from torch._inductor import select_algorithm

_PRINTS = "PRINT_AUTOTUNE"


@contextmanager
def quiet_autotuning() -> Iterator[None]:
    """The modes max-autotune print a table for each product, and an error for each of their own
    configs that does not fit the device. Neither is the user's to read in a tune; who sets
    TORCH_LOGS asked for them."""
    if os.environ.get("TORCH_LOGS"):
        yield
        return
    log = logging.getLogger(select_algorithm.__name__)
    level, prints = log.level, getattr(select_algorithm, _PRINTS, None)
    log.setLevel(logging.CRITICAL)
    if prints is not None:
        setattr(select_algorithm, _PRINTS, False)
    try:
        yield
    finally:
        log.setLevel(level)
        if prints is not None:
            setattr(select_algorithm, _PRINTS, prints)
