"""From a group and a config to the kernels that compute it."""

from __future__ import annotations

import re
from dataclasses import replace

from .codegen.emit import emit
from .codegen.source import Buffer, KernelSource, Program
from .config import Config
from .errors import Refusal, Refused
from .graph.graph import Graph
from .graph.ops import is_compute
from .nests.group_nests import KernelNest, schedule_group
from .tiles.tile import Around
from .values.values import Load


def lower(group: Graph, config: Config, *, interpreted: bool = False) -> Program | Refusal:
    """The program of a group, or why the group or the config has none."""
    found = schedule_group(group, config.tiling, config.reduction, config.split)
    if isinstance(found, Refusal):
        return found
    name = kernel_name(group)
    several = len(found.kernels) > 1
    kernels = []
    try:
        for number, kernel in enumerate(found.kernels):
            own = f"{name}_{number}" if several else name
            later = frozenset(i for k in found.kernels[number + 1 :] for i in _read(k))
            around = Around(number > 0, later)
            source = emit(kernel.nest, config, own, interpreted=interpreted, around=around)
            source = replace(source, contracts=group.numerics == "fast")
            kernels.append(_rewired(source, kernel))
    except Refused as refused:
        return refused.refusal
    return Program(tuple(kernels), found.temporaries)


def _read(kernel: KernelNest) -> set[int]:
    return {v.kind.input for v in kernel.nest.values if isinstance(v.kind, Load)}


def kernel_name(group: Graph) -> str:
    """A name that tells a reader, or a profiler, what is in the kernel."""
    words = [re.sub(r"^_+", "", n.op.split(".")[1]) for n in group.nodes if is_compute(n)]
    words = [w for w in words if w not in ("convert_element_type", "to_copy", "clone")]
    shown = [w for i, w in enumerate(words) if i == 0 or w != words[i - 1]]
    return "_".join(["fused", *shown[:6]] + ["etc"] * (len(shown) > 6))


def _rewired(source: KernelSource, kernel: KernelNest) -> KernelSource:
    """Buffers by their place in the group: an emitter knows only node ids and its own outputs."""
    origin = dict(kernel.inputs)
    buffers = []
    for buffer in source.buffers:
        own = origin[buffer.index] if buffer.kind == "in" else kernel.outputs[buffer.index]
        buffers.append(Buffer(own.kind, own.index, buffer.dtype, buffer.descriptor))
    plain = source.plain and _rewired(replace(source.plain, contracts=source.contracts), kernel)
    return replace(source, buffers=tuple(buffers), plain=plain)
