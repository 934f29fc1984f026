"""A limit of registers for ptxas, below which one more program fits on an SM.

ptxas takes what it likes up to what one program may have. Where few programs then lie on an SM at
once, memory and arithmetic wait for each other: a layer norm of 10,007 columns takes 72 registers a
thread in programs of 16 warps, of which one fits, and 64 spill nothing.
"""

from __future__ import annotations

from typing import NamedTuple

_REGISTERS, _STEP = 65536, 8
"""Of an SM, and how many at a time a thread is given."""

_SHARED, _RESERVED = 228 << 10, 1 << 10
"""Bytes of shared memory of an SM, and what each program has besides its own."""

_WARPS = 32
"""On an SM at once, from which on more of small programs are no faster,"""

_FEW = 2
"""and so many programs at most where they are large: each waits for all of its threads, and others
work meanwhile."""

_MOST_WARPS = 64
"""That can be on an SM."""

_SHARE = 0.6
"""Of the registers that ptxas took, what it can be asked to make do with at least."""

MAY_SPILL = 32
"""Bytes a thread that are worth one program more. Of 22 kernels of softmax, norms, entropies and
divergences of rows on an H100 that spilled no more, told so, the time is 0.89 of before (0.55 to
1.01); of 10 that spilled up to 104 bytes 0.71 to 1.06, and up to 1.5 beyond. Where 32 warps are
there in one or two programs already, what spills nothing takes 0.89 to 0.94 on an H200, and what
spills 0.87 to 1.28."""


class RegisterLimit(NamedTuple):
    """registers: that ptxas is told. may_spill: bytes a thread, with which it is still taken."""

    registers: int
    may_spill: int


def fewer_registers(
    used: int, num_warps: int, shared_bytes: int, programs_of_sm: float
) -> RegisterLimit | None:
    """With how many registers a thread one program more lies on an SM; None where that is of no
    use, or hopeless.

    used: by a thread. shared_bytes: by a program. programs_of_sm: that each SM is to run."""
    at_once = _resident(used, num_warps)
    more = at_once + 1
    has_room = more * num_warps <= _MOST_WARPS and more * (shared_bytes + _RESERVED) <= _SHARED
    is_full = at_once * num_warps >= _WARPS
    if (is_full and at_once > _FEW) or programs_of_sm <= at_once or not has_room:
        return None
    told = _REGISTERS // (32 * num_warps * more) // _STEP * _STEP
    return RegisterLimit(told, 0 if is_full else MAY_SPILL) if told >= _SHARE * used else None


def _resident(registers: int, num_warps: int) -> int:
    """Programs on an SM at once, as far as registers go."""
    given = -(-registers // _STEP) * _STEP
    return _REGISTERS // (given * 32 * num_warps)
