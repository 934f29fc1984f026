"""The kernels of a group under a layout: one nest, or the nests of a split reduction."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import Refusal, Refused
from .forms import Role
from .graph import Graph, TensorType
from .nest import Nest, build
from .parts import cut
from .trace import trace
from .values import Values

SHORT = 4096
"""Elements up to which the later kernels of a split hold what they reduce, whatever the layout:
they mostly combine a few parts."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a kernel reads or writes: kind "in", "out" (of the whole group) or "tmp"."""

    kind: str
    index: int


@dataclass(frozen=True, slots=True)
class KernelNest:
    """A nest, and which of the group's tensors its own inputs (by node) and outputs are."""

    nest: Nest
    inputs: tuple[tuple[int, Source], ...]
    outputs: tuple[Source, ...]


@dataclass(frozen=True, slots=True)
class Schedule:
    """Nests in launch order, and the temporaries that pass between them."""

    kernels: tuple[KernelNest, ...]
    temporaries: tuple[TensorType, ...] = ()


def schedule_group(group: Graph, tiling: str, reduction: str, parts: int = 1) -> Schedule | Refusal:
    """The kernels of a group under a layout (see `Config`), or why there are none."""
    try:
        return _schedule(group, tiling, reduction, parts)
    except Refused as refused:
        return refused.refusal


def _schedule(group: Graph, tiling: str, reduction: str, parts: int) -> Schedule:
    values = trace(group)
    inputs = tuple((node, Source("in", i)) for i, node in enumerate(group.inputs))
    results = tuple(Source("out", i) for i in range(len(group.outputs)))
    if parts == 1:
        return Schedule((KernelNest(build(values, tiling, reduction), inputs, results),))
    found = cut(values, parts, len(group.nodes))
    read = tuple((len(group.nodes) + i, Source("tmp", i)) for i in range(len(found.temporaries)))
    kernels = []
    for number, phase in enumerate(found.phases):
        last = number == len(found.phases) - 1
        written = (Source("tmp", phase.writes + i) for i in range(len(phase.values.outputs)))
        nest = _phase(phase.values, tiling, reduction, number)
        kernels.append(KernelNest(nest, inputs + read, results if last else tuple(written)))
    return Schedule(tuple(kernels), found.temporaries)


def _phase(values: Values, tiling: str, reduction: str, number: int) -> Nest:
    """The nest of one kernel of a split; a later one holds what it reduces where that is short."""
    if number == 0 or reduction == "held":
        return build(values, tiling, reduction, number)
    try:
        nest = build(values, tiling, "held", number)
        if nest.largest_tile([1 if a.role is Role.GRID else a.extent for a in nest.axes]) <= SHORT:
            return nest
    except Refused as refused:
        if refused.refusal.rule == "apart":
            raise
    try:
        return build(values, tiling, reduction, number)
    except Refused:
        return build(values, tiling, "loop", number)
