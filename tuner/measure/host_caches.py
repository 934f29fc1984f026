"""Overwrites the caches of the processor's core that calls the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

BYTES = 4 * 2**20
"""More than the second-level cache of a core (1 to 2 MiB)."""


def cooler(device: Any) -> Callable[[], None]:
    """For what runs on a device. On the CPU itself nothing is overwritten: a call's data lie in the
    same caches."""
    if device.type != "cuda":
        return lambda: None
    source, target = bytearray(BYTES), bytearray(BYTES)

    def cool() -> None:
        target[:] = source

    return cool
