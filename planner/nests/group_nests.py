"""The kernels of a group under a layout: one nest, or the nests of a split reduction."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..config import Layout
from ..errors import Refusal, Refused
from ..graph.graph import Graph, TensorType
from ..stream.split_reduction import Phase, SplitKernels, cut
from ..trace.trace import trace
from .laid_vectors import with_laid_vectors
from .linear_forms import Role
from .live_parts import live_parts, with_chosen
from .nest import Nest, build

SHORT = 4096
"""Elements up to which the later kernels of a split hold what they reduce, whatever the layout:
they mostly combine a few parts."""


@dataclass(frozen=True, slots=True)
class Source:
    """A buffer that a kernel reads or writes: kind "in", "out" (of the whole group) or "tmp"."""

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


def schedule_group(group: Graph, layout: Layout) -> Schedule | Refusal:
    """The kernels of a group under a layout, or why there are none."""
    try:
        return _schedule(group, layout)
    except Refused as refused:
        return refused.refusal


def _schedule(group: Graph, layout: Layout) -> Schedule:
    values = trace(group)
    if layout.split == 1:
        inputs = tuple((node, Source("in", i)) for i, node in enumerate(group.inputs))
        results = tuple(Source("out", i) for i in range(len(group.outputs)))
        nest = with_laid_vectors(build(values, layout))
        return Schedule((KernelNest(nest, inputs, results),))
    found = cut(values, layout.split, len(group.nodes), early=True)
    try:
        return Schedule(_kernels(group, found, layout), found.temporaries)
    except Refused:
        if not found.early:
            raise
        found = cut(values, layout.split, len(group.nodes), early=False)
        return Schedule(_kernels(group, found, layout), found.temporaries)


def _kernels(group: Graph, found: SplitKernels, layout: Layout) -> tuple[KernelNest, ...]:
    """The kernels of a split reduction."""
    inputs = tuple((node, Source("in", i)) for i, node in enumerate(group.inputs))
    read = tuple((len(group.nodes) + i, Source("tmp", i)) for i in range(len(found.temporaries)))
    nests = [_phase(phase, layout, number) for number, phase in enumerate(found.phases)]
    if len(nests) == 2:
        stored = enumerate(found.phases[0].written)
        tmp = {len(group.nodes) + index: i for i, (kind, index) in stored if kind == "tmp"}
        chosen = live_parts(nests[0], found.phases[1].values, tmp)
        if chosen is not None:
            first, last = nests[0], replace(found.phases[1], values=chosen)
            nests = [replace(first, are_chosen=True), with_chosen(_phase(last, layout, 1), tmp)]
    kernels = []
    for nest, phase in zip(nests, found.phases, strict=True):
        written = tuple(Source(kind, index) for kind, index in phase.written)
        kernels.append(KernelNest(nest, inputs + read, written))
    return tuple(kernels)


def _phase(phase: Phase, layout: Layout, number: int) -> Nest:
    """The nest of one kernel of a split; a later one holds what it reduces where that is short."""
    values = phase.values
    if phase.along is not None and layout.loops_once:
        return build(values, layout, number, phase.along)
    if number == 0 or layout.holds:
        return build(values, layout, number)
    try:
        nest = build(values, replace(layout, reduction="held"), number)
        if nest.largest_tile([1 if a.role is Role.GRID else a.extent for a in nest.axes]) <= SHORT:
            return nest
    except Refused as refused:
        if refused.refusal.rule == "apart":
            raise
    try:
        return build(values, layout, number)
    except Refused:
        return build(values, replace(layout, reduction="loop"), number)
