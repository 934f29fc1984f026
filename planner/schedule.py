"""The kernels of a group under a layout: one nest, or the nests of a split reduction."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import Refusal
from .graph import INPUT, Graph, TensorType
from .forms import Role
from .nest import Nest, schedule
from .split import Source, split

SHORT = 4096
"""Elements up to which the later kernels of a split hold what they reduce, whatever the layout:
they mostly combine a few parts."""


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
    if parts == 1:
        nest = schedule(group, tiling, reduction)
        if isinstance(nest, Refusal):
            return nest
        inputs = tuple((node, Source("in", i)) for i, node in enumerate(group.inputs))
        outputs = tuple(Source("out", i) for i in range(len(group.outputs)))
        return Schedule((KernelNest(nest, inputs, outputs),))
    cut = split(group, parts)
    if isinstance(cut, Refusal):
        return cut
    kernels = []
    for number, phase in enumerate(cut.phases):
        nest = schedule(phase.graph, tiling, "held", number)
        if reduction == "loop" and not (number and _is_short(nest)):
            nest = schedule(phase.graph, tiling, "loop", number)
        if isinstance(nest, Refusal):
            return nest
        nodes = [n.id for n in phase.graph.nodes if n.op == INPUT]
        kernels.append(
            KernelNest(nest, tuple(zip(nodes, phase.inputs, strict=True)), phase.outputs)
        )
    return Schedule(tuple(kernels), cut.temporaries)


def _is_short(nest: Nest | Refusal) -> bool:
    if isinstance(nest, Refusal):
        return False
    return nest.largest_tile([1 if a.role is Role.GRID else a.extent for a in nest.axes]) <= SHORT
