"""The plan for given sizes, made from a plan for all sizes."""

from __future__ import annotations

from dataclasses import replace

from ..config import leaf
from ..graph.graph import Graph, key
from ..graph.varying import sizes_of
from ..plan import GroupPlan, Plan
from .group import subgraph


def plan_at(plan: Plan, graph: Graph) -> Plan:
    """The plan for this graph, which is of its family or its bucket: each group by what its tree
    says of the sizes at hand. Raises IndexError where the plan is no plan of the family."""
    groups = tuple(_group_at(group, graph) for group in plan.groups)
    return replace(plan, graph_key=key(graph), groups=groups)


def _group_at(group: GroupPlan, graph: Graph) -> GroupPlan:
    if group.sizes is None:
        return group
    sizes = sizes_of(subgraph(graph, group.nodes, group.copies).graph)
    return replace(group, config=leaf(group.sizes, sizes))
