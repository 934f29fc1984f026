"""One way to run a whole graph: as eager does, or by one lowering that takes all of it."""

from __future__ import annotations

from typing import NamedTuple

from ...graph.graph import Graph
from ...graph.ops import is_free
from ...lowerings.base import WholeLowering
from ...lowerings.registry import ATEN, WHOLE, lowering_of
from ...plan import Plan


class WholeWay(NamedTuple):
    """A way to run a whole graph; options: as in a plan."""

    lowering: WholeLowering
    options: str


AS_EAGER = WholeWay(ATEN, "")


def whole_way(plan: Plan, graph: Graph) -> WholeWay | None:
    """The one way in which the plan runs the whole graph; None when it has groups of its own, or a
    CUDA graph of its own of another's kernels."""
    groups = [g for g in plan.groups if not lowering_of(g).one_by_one]
    if not groups:
        return AS_EAGER
    work = {n.id for n in graph.nodes if n.op != "input" and not is_free(n)}
    if len(groups) > 1 or plan.cudagraph or not work <= {*groups[0].nodes}:
        return None
    lowerings = (each for each in WHOLE if each is lowering_of(groups[0]))
    return next((WholeWay(each, groups[0].options) for each in lowerings), None)
