"""Inputs of a plan that may lie at any address: only kernels of ours read them.

An operation of a library is no concern of the gate, and eager may not have it at such an address
either: cuDNN finds no engine for a convolution whose weight is not aligned, or reads it all the
same, which ends the device's context (ConvNeXt-S, torch 2.11).
"""

from __future__ import annotations

from ...planner.graph.graph import Graph
from ...planner.graph.ops import is_free
from ...planner.lowerings.registry import lowering_of
from ...planner.plan import Plan


def may_lie_anywhere(graph: Graph, plan: Plan) -> set[int]:
    """The places of these inputs."""
    ours = {n for group in plan.groups if lowering_of(group).generated for n in group.nodes}
    source = {node: node for node in graph.inputs}
    """For an input and each view of it, the input."""
    read_by_others: set[int] = set()
    for node in graph.nodes:
        read = [source[i] for i in node.inputs if i in source]
        if is_free(node) and len(read) == 1:
            source[node.id] = read[0]
        elif node.id not in ours:
            read_by_others.update(read)
    return {place for place, node in enumerate(graph.inputs) if node not in read_by_others}
