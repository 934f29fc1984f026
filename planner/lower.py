"""From a group and a config to the kernels that compute it."""

from __future__ import annotations

import re

from .codegen.emit import emit
from .codegen.source import Program
from .config import Config
from .errors import Refusal, Refused
from .graph import Graph
from .nest import schedule
from .ops import is_compute


def lower(group: Graph, config: Config, *, interpreted: bool = False) -> Program | Refusal:
    """The program of a group, or why the group or the config has none."""
    nest = schedule(group, config.tiling, config.reduction)
    if isinstance(nest, Refusal):
        return nest
    try:
        return Program((emit(nest, config, kernel_name(group), interpreted=interpreted),))
    except Refused as refused:
        return refused.refusal


def kernel_name(group: Graph) -> str:
    """A name that tells a reader, or a profiler, what is in the kernel."""
    words = [re.sub(r"^_+", "", n.op.split(".")[1]) for n in group.nodes if is_compute(n)]
    words = [w for w in words if w not in ("convert_element_type", "to_copy", "clone")]
    shown = [w for i, w in enumerate(words) if i == 0 or w != words[i - 1]]
    return "_".join(["fused", *shown[:6]] + ["etc"] * (len(shown) > 6))
