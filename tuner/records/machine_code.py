"""The record of what the compiler made of a group's kernels. It predicts what the compiler will
make of a similar kernel.

The estimate of registers is made from a nest alone. Its error is much the same for kernels of one
group that differ little, so the nearest that was compiled corrects it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from ...planner.config import Config
from ...planner.costs.registers import most
from ...planner.space.space import MOST_SPILLED

LIKE = 1.0
"""Distance up to which a kernel spills as another did."""

_DOUBT = 0.1  # Of a correction, at distance 0; more, and less of it, the farther the kernel.
_LEAST = 10  # Registers of the smallest kernel.


@dataclass(frozen=True, slots=True)
class _KernelCode:
    """estimated: registers by the model; registers, spill_bytes: by the compiler."""

    estimated: int
    registers: int
    spill_bytes: int


@dataclass(slots=True)
class GroupMachineCode:
    """Of one group."""

    kernels: dict[Config, _KernelCode] = field(default_factory=dict)

    def add(self, config: Config, estimated: int, registers: int, spill_bytes: int) -> None:
        self.kernels[config] = _KernelCode(estimated, registers, spill_bytes)

    def registers(self, config: Config, estimated: int) -> int:
        """The registers to expect of a config for which the cost model expects `estimated`."""
        # Of one that spills more, the registers say nothing: the compiler has given up.
        sound = {c: k for c, k in self.kernels.items() if k.spill_bytes <= MOST_SPILLED}
        near = _nearest(config, sound)
        if near is None:
            return estimated
        distance, kernel = near
        trust = 1.0 / (1.0 + distance) ** 2
        ratio = kernel.registers / max(1, kernel.estimated)
        expected: float = estimated * ratio ** (trust / (trust + _DOUBT))
        return max(_LEAST, min(most(config.num_warps), round(expected)))

    def spilled(self, config: Config, estimated: int) -> int:
        """Bytes that a kernel like it spilled, of which the model expected no more registers; 0
        where none did."""
        near = _nearest(config, self.kernels)
        if near is None or near[0] > LIKE or near[1].estimated > estimated:
            return 0
        return near[1].spill_bytes if near[1].spill_bytes > MOST_SPILLED else 0


def _nearest(
    config: Config, kernels: Mapping[Config, _KernelCode]
) -> tuple[float, _KernelCode] | None:
    """The nearest kernel with its distance, of equals the first; None where none is comparable."""
    every = [(_distance(config, other), kernel) for other, kernel in kernels.items()]
    near = min(every, key=lambda each: each[0], default=(math.inf, None))
    return None if near[1] is None or math.isinf(near[0]) else (near[0], near[1])


def _distance(a: Config, b: Config) -> float:
    """By how far two configs' kernels differ in what threads hold."""
    if a.tiling != b.tiling:
        return math.inf
    ours, theirs = dict(a.blocks), dict(b.blocks)
    halvings = sum(
        abs(math.log2(ours.get(axis, 1) / theirs.get(axis, 1))) for axis in {*ours, *theirs}
    )
    return (
        abs(math.log2(a.num_warps / b.num_warps))
        + 0.5 * halvings
        + 2.0 * (a.reduction != b.reduction)
        + 2.0 * ((a.split > 1) != (b.split > 1))
        + 1.0 * ((a.programs > 0) != (b.programs > 0))
        + 1.0 * (a.subtiles != b.subtiles)
        + 0.5 * (a.access != b.access)
        + 0.3 * abs(a.num_stages - b.num_stages)
        + 0.2 * (a.widen != b.widen)
    )
