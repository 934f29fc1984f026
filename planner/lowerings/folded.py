"""A convolution with all that follows it as one call of the library. `options`: the name of the
call; SCALED: on a weight that a kernel of ours scales in each call.
"""

from __future__ import annotations

from dataclasses import replace

from ..costs.device import DeviceProfile
from ..errors import Refusal
from ..graph.graph import Graph
from ..groups.group import GroupContent
from ..plan import LoweringName
from ..regions.chunks import Walk
from ..regions.fold_convolutions import folded
from .base import CoverSeconds, Modelled
from .regional import Regional

PLAIN, SCALED = "convolution_relu", "scaled_convolution_relu"


class Folded(Regional):
    name: LoweringName = "folded"
    spares = False

    def choices(self) -> tuple[str, ...]:
        return PLAIN, SCALED

    def bodies(self, group: Graph, options: str) -> Walk | Refusal:
        if options not in (PLAIN, SCALED):
            return Refusal("options", f"{options!r} is no call that a convolution is folded into")
        return folded(group, scaled=options == SCALED)

    def modelled(
        self, part: GroupContent, device: DeviceProfile, cover_s: CoverSeconds
    ) -> Modelled | None:
        """A scaled weight is rounded once more than eager's: of 80 small convolutions with batch
        norm 3 had an element that was beyond twice eager's greatest error."""
        found = super().modelled(part, device, cover_s)
        return found and replace(found, is_judged=found.options == SCALED)
