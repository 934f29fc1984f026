"""A group of nodes as a graph of its own, and which of its values the outside needs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from .graph import INPUT, Graph, Node, map_refs
from .ops import is_free


@dataclass(frozen=True, slots=True)
class Subgraph:
    """`graph` computes the group; its inputs and outputs stand for these nodes of the whole."""

    graph: Graph
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def with_free_nodes(graph: Graph, compute: Iterable[int]) -> tuple[int, ...]:
    """The compute nodes, with the views and constants they read taken in: those cost nothing, so
    every group has a copy of its own and reads what lies behind them."""
    members = set(compute)
    stack = list(members)
    while stack:
        for source in graph.nodes[stack.pop()].inputs:
            if source not in members and is_free(graph.nodes[source]):
                members.add(source)
                stack.append(source)
    return tuple(sorted(members))


def subgraph(graph: Graph, nodes: tuple[int, ...]) -> Subgraph:
    """Cut the group out. Outputs are the computed values that another group, an opaque
    operation or the graph's caller reads, perhaps through views."""
    members = set(nodes)
    outer: dict[int, None] = {}
    for node in nodes:
        outer.update(dict.fromkeys(i for i in graph.nodes[node].inputs if i not in members))
    inputs = tuple(sorted(outer))
    order = [*inputs, *sorted(members)]
    renumber = {old: new for new, old in enumerate(order)}
    inner: list[Node] = []
    for old in order:
        source = graph.nodes[old]
        if old in outer:
            inner.append(Node(renumber[old], source.name, INPUT, type=source.type))
            continue
        args = tuple(map_refs(a, renumber) for a in source.args)
        kwargs = tuple((k, map_refs(v, renumber)) for k, v in source.kwargs)
        inner.append(replace(source, id=renumber[old], args=args, kwargs=kwargs))
    outputs = tuple(n for n in sorted(members) if _is_needed_outside(graph, n, members))
    return Subgraph(Graph(tuple(inner), tuple(renumber[o] for o in outputs)), inputs, outputs)


def _is_needed_outside(graph: Graph, node: int, members: set[int]) -> bool:
    if is_free(graph.nodes[node]):
        return False
    return _is_read_outside(graph, node, members)


def _is_read_outside(graph: Graph, node: int, members: set[int]) -> bool:
    if node in graph.outputs:
        return True
    for user in graph.users(node):
        if is_free(graph.nodes[user]):
            if _is_read_outside(graph, user, members):
                return True
        elif user not in members:
            return True
    return False
