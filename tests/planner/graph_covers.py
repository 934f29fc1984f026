"""Plans for random graphs: the model's, and covers and configs that no model would choose."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from fusionplan.planner.config import Config, Layout
from fusionplan.planner.costs.cost import Cost
from fusionplan.planner.costs.device import H200
from fusionplan.planner.covers.cover import modelled_plan, partition
from fusionplan.planner.covers.growing import Edge, cut_edges
from fusionplan.planner.graph.graph import Graph, key
from fusionplan.planner.groups.group import subgraph
from fusionplan.planner.nests.linear_forms import Role
from fusionplan.planner.plan import GroupPlan, Plan
from fusionplan.planner.space.space import Space, space_of

Planner = Callable[[Graph], Plan]
MOST = 3000
"""Configs of a space among which one is drawn."""


def modelled(graph: Graph) -> Plan:
    """The plan that the model thinks best."""
    return modelled_plan(graph, H200)


def largest(graph: Graph, seed: int = 0) -> Plan:
    """The largest legal groups, products of matrices with them, each in any way of its space."""
    return _planned(graph, frozenset(), random.Random(seed))


def any_groups(graph: Graph) -> Plan:
    """Groups that grow along a part of the edges, another part for each graph."""
    pick = random.Random(key(graph))
    part = pick.choice((0.2, 0.5, 0.8))
    cuts = frozenset(edge for edge in cut_edges(graph) if pick.random() < part)
    return _planned(graph, cuts, pick)


def _planned(graph: Graph, cuts: frozenset[Edge], pick: random.Random) -> Plan:
    groups = []
    for nodes in partition(graph, cuts):
        part = subgraph(graph, nodes).graph
        config = _any_config(part, pick)
        if config is not None:
            groups.append(GroupPlan(nodes, "triton", key(part), config))
    return Plan(key(graph), H200.key, (), "modelled", tuple(groups))


def _any_config(part: Graph, pick: random.Random) -> Config | None:
    """A config of any layout that the model lets through, of few enough programs for the
    interpreter."""
    space = space_of(part, H200)
    if not isinstance(space, Space):
        return None
    kinds: dict[object, list[Layout]] = {}
    for layout in space.schedules:
        kinds.setdefault((layout.tiling, layout.reduction, layout.split > 1), []).append(layout)
    layouts = list(kinds.values())
    pick.shuffle(layouts)
    for same in layouts:
        each = MOST // len(space.schedules)
        configs = [c for layout in same for c in space.enumerate(each, (layout,))]
        few = sorted(configs, key=lambda c: _programs(space, c))[: max(20, len(configs) // 8)]
        pick.shuffle(few)
        for config in few[:20]:
            if isinstance(space.judge(config), Cost):
                return config
    return None


def _programs(space: Space, config: Config) -> int:
    nest = space.schedules[config.layout].kernels[0].nest
    blocks = dict(config.blocks)
    grid = (axis for axis in nest.axes if axis.role is Role.GRID)
    return config.split * math.prod(-(-axis.extent // blocks.get(axis.name, 1)) for axis in grid)


PLANNERS: dict[str, Planner] = {"modelled": modelled, "largest": largest, "any": any_groups}
