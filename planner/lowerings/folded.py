"""A convolution with all that follows it as one call of the library. `options`: the name of the
call; SCALED: on a weight that a kernel of ours scales in each call.
"""

from __future__ import annotations

from dataclasses import replace

from ..costs.device import DeviceProfile
from ..errors import Refusal
from ..graph.graph import Graph
from ..graph.ops import is_input
from ..groups.group import GroupContent, subgraph
from ..plan import LoweringName, Plan
from ..regions.chunks import Walk
from ..regions.fold_convolutions import folded
from .base import CoverSeconds, GroupSite, Modelled, Preparation, PreparedCall
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

    def prepared(self, site: GroupSite) -> PreparedCall | None:
        """The preparation of weight and bias, and the call."""
        walk = self.walk(site.group, site.options)
        if isinstance(walk, Refusal) or len(site.bodies) != len(walk.bodies):
            return None
        (body,), (plan,) = walk.bodies, site.bodies
        made = _preparations(body, plan, site)
        if not made:
            return None
        values = [*body.inputs, *(value for _, values in made for value in values)]
        rest = subgraph(body, _needed(body, {*values}))
        if rest.outputs != body.outputs or not {*rest.inputs} <= {*values}:
            return None
        reads = tuple(map(values.index, rest.inputs))
        return PreparedCall(tuple(each for each, _ in made), rest.graph, reads)


def _preparations(
    body: Graph, plan: Plan, site: GroupSite
) -> list[tuple[Preparation, tuple[int, ...]]] | None:
    """The kernels of a body that read nothing but its inputs, with the values that they give; None
    where there are others."""
    found = []
    for group in plan.groups:
        if group.config is None:
            if group.lowering == "aten":
                continue
            return None
        part = subgraph(body, group.nodes, group.copies)
        types = tuple(t for t in (body.nodes[o].type for o in part.outputs) if t)
        program = site.lower(part.graph, group.config)
        if isinstance(program, Refusal) or not {*part.inputs} <= {*body.inputs}:
            return None
        if program.written or len(types) < len(part.outputs):
            return None
        places = tuple(map(body.inputs.index, part.inputs))
        found.append((Preparation(program, places, types), part.outputs))
    return found


def _needed(body: Graph, given: set[int]) -> tuple[int, ...]:
    """The nodes that compute the result from what is given."""
    found: set[int] = set()
    pending = [o for o in body.outputs if o is not None]
    while pending:
        node = pending.pop()
        if node not in given | found and not is_input(body.nodes[node]):
            found.add(node)
            pending += body.nodes[node].inputs
    return tuple(sorted(found))
