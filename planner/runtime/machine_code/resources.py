"""Registers, memory and instructions of machine code, as cuobjdump reads them, without a GPU."""

from __future__ import annotations

import hashlib
import re
import subprocess
import tempfile
from dataclasses import dataclass

from triton import knobs

_SECTION = re.compile(r"\b(REG|STACK|SHARED|LOCAL):(\d+)")


@dataclass(frozen=True, slots=True)
class KernelResources:
    """registers: per thread. spill_bytes: local memory per thread, the stack included.
    shared_bytes: per block, static and dynamic. cubin_bytes: size of the machine code."""

    registers: int
    spill_bytes: int
    shared_bytes: int
    cubin_bytes: int


class ToolFailed(Exception):
    """cuobjdump does not run. transient: for want of memory or disk, say, which may pass."""

    def __init__(self, why: Exception, transient: bool) -> None:
        super().__init__(f"cuobjdump does not run: {why}")
        self.transient = transient


def used_by(cubin: bytes, dynamic_bytes: int) -> KernelResources | None:
    """None where the machine code has no resource section. dynamic_bytes: of shared memory, which
    a launch asks for. Raises ToolFailed."""
    found = {k: int(v) for k, v in _SECTION.findall(_usage(cubin))}
    if "REG" not in found:
        return None
    shared = max(dynamic_bytes, found.get("SHARED", 0))
    spill = found.get("STACK", 0) + found.get("LOCAL", 0)
    return KernelResources(found["REG"], spill, shared, len(cubin))


def cuobjdump() -> str:
    """Triton's own, or TRITON_CUOBJDUMP_PATH. Raises ToolFailed where there is none."""
    try:
        return str(knobs.nvidia.cuobjdump.path)
    except RuntimeError as error:
        raise ToolFailed(error, transient=False) from error


def listing(cubin: bytes) -> str:
    """The instructions of machine code, each with its address. Raises ToolFailed."""
    return _told(cubin, "-sass")


_USED: dict[bytes, str] = {}


def _usage(cubin: bytes) -> str:
    """What cuobjdump says of the same machine code, once in a process."""
    digest = hashlib.sha256(cubin).digest()
    if digest not in _USED:
        _USED[digest] = _told(cubin, "--dump-resource-usage")
    return _USED[digest]


def _told(cubin: bytes, option: str) -> str:
    try:
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(cubin)
            file.flush()
            command = [cuobjdump(), option, file.name]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolFailed(error, transient=True) from error
    return done.stdout
