"""A group of nodes as a graph of its own, and which of its values the outside needs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from .graph import INPUT, Graph, Node, map_refs
from .ops import Cast, Pointwise, is_free, is_input, row


@dataclass(frozen=True, slots=True)
class Subgraph:
    """`graph` computes the group; its inputs and outputs stand for these nodes of the whole."""

    graph: Graph
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


_GROWS = 8
"""Times the bytes of what it is computed from that a value has, to be computed wherever it is
read: `arange[:, None] >= arange[None, :]` is cheaper to compare again than to load."""


def is_copied(graph: Graph, node: int) -> bool:
    """Whether every group that reads a node has a copy of its own: views and constants cost
    nothing, and a broadcast of a few inputs costs less than reading its result."""
    found = graph.nodes[node]
    if is_free(found):
        return True
    kind = row(found)
    if not isinstance(kind, (Pointwise, Cast)) or found.type is None:
        return False
    if isinstance(kind, Pointwise) and kind.cost in ("div", "libdevice"):
        return False
    used = not any(row(graph.nodes[u]) is None for u in graph.users(node))
    leaves = _leaves(graph, node) if used and node not in graph.outputs else None
    if leaves is None:
        return False
    read = sum(t.nbytes for t in (graph.nodes[leaf].type for leaf in leaves) if t)
    return read * _GROWS <= found.type.nbytes


def _leaves(graph: Graph, node: int) -> set[int] | None:
    """The inputs a node is computed from, if nothing but copied nodes lies between."""
    found: set[int] = set()
    for source in graph.nodes[node].inputs:
        if is_input(graph.nodes[source]):
            found.add(source)
            continue
        below = _leaves(graph, source) if is_copied(graph, source) else None
        if below is None:
            return None
        found |= below
    return found


def with_free_nodes(graph: Graph, compute: Iterable[int]) -> tuple[int, ...]:
    """The compute nodes, with those they read taken in of which every group has a copy."""
    members = set(compute)
    stack = list(members)
    while stack:
        for source in graph.nodes[stack.pop()].inputs:
            if source not in members and is_copied(graph, source):
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
    if is_copied(graph, node):
        return False
    return _is_read_outside(graph, node, members)


def _is_read_outside(graph: Graph, node: int, members: set[int]) -> bool:
    if node in graph.outputs:
        return True
    for user in graph.users(node):
        if is_copied(graph, user):
            if _is_read_outside(graph, user, members):
                return True
        elif user not in members:
            return True
    return False
