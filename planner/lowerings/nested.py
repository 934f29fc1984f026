"""The groups of a plan, with those of the graphs that stand for a region."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ..graph.graph import Graph
from ..groups.group import subgraph
from ..plan import GroupPlan, Plan
from ..regions.chunks import Walk
from .registry import lowering_of


class NumberedGroup(NamedTuple):
    """A group with its number, and the graph that its nodes are of."""

    number: str
    graph: Graph
    group: GroupPlan


def groups_within(graph: Graph, plan: Plan, prefix: str = "") -> Iterator[NumberedGroup]:
    """All groups of a plan in order, the groups of a region's bodies after it: "1", "1.0.0"."""
    for number, group in enumerate(plan.groups):
        yield NumberedGroup(f"{prefix}{number}", graph, group)
        if not group.bodies:
            continue
        part = subgraph(graph, group.nodes, group.copies).graph
        found = lowering_of(group).walk(part, group.options)
        bodies = found.bodies if isinstance(found, Walk) else ()
        for place, (body, own) in enumerate(zip(bodies, group.bodies, strict=False)):
            yield from groups_within(body, own, f"{prefix}{number}.{place}.")
