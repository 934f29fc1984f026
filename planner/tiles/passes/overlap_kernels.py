"""Let a kernel be launched while the one before it still runs (programmatic dependent launch)."""

from __future__ import annotations

from dataclasses import replace

from ..instructions import LaunchNext, Wait
from ..program import TileProgram


def overlap_kernels(program: TileProgram) -> TileProgram:
    """Programmatic dependent launch: whose kernel that before may be, this one waits for it to have
    ended before it reads or writes anything."""
    return replace(program, head=(LaunchNext(), Wait()))
