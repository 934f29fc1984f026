"""A convolution with all that follows it as one call of the library, on a weight that a kernel of
ours scales in each call. `options`: the name of the call."""

from __future__ import annotations

from ..errors import Refusal
from ..graph.graph import Graph
from ..plan import LoweringName
from ..regions.chunks import Walk
from ..regions.fold_convolutions import folded
from .regional import Regional

CONVOLUTION = "convolution_relu"


class Folded(Regional):
    name: LoweringName = "folded"
    spares = False

    def choices(self) -> tuple[str, ...]:
        return (CONVOLUTION,)

    def bodies(self, group: Graph, options: str) -> Walk | Refusal:
        if options != CONVOLUTION:
            return Refusal("options", f"{options!r} is no call that a scale is folded into")
        return folded(group)
