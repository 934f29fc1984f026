"""Sections of a graph, of which each can be planned by a process of its own: most of the groups
that a look for the covers of the whole prices are groups of a section (see `pricing.quick_s`).
"""

from __future__ import annotations

from ..graph.graph import Graph, key
from ..graph.ops import is_compute, is_input
from ..groups.group import is_copied, subgraph, with_free_nodes

OPERATIONS = 100
"""Of a section. Of Swin-S, 1,667 operations, sections of a hundred hold all but 31 of 1,044 groups
that are priced."""


def sections(graph: Graph, operations: int = OPERATIONS) -> tuple[Graph, ...]:
    """Runs of so many operations as graphs of their own, those that are equal but for names once.
    None where the graph has no more than one."""
    working = [n.id for n in graph.nodes if not is_input(n) and not is_copied(graph, n.id)]
    starts = range(0, len(working), operations) if len(working) > operations else ()
    found: dict[str, Graph] = {}
    for start in starts:
        nodes = with_free_nodes(graph, working[start : start + operations])
        section = subgraph(graph, nodes).graph
        if any(map(is_compute, section.nodes)):
            found.setdefault(key(section), section)
    return tuple(found.values())
