"""A group of nodes as a graph of its own, and which of its values the outside needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from .graph import INPUT, Graph, Node, kernel_key, map_refs
from .memo import by_identity
from .ops import Cast, Contraction, Pointwise, is_free, is_input, row


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
    return copied(graph)[node]


@by_identity(64)
def copied(graph: Graph) -> tuple[bool, ...]:
    """For every node whether it `is_copied`."""
    # The inputs a node is computed from, if nothing but copied nodes lies between.
    leaves: list[frozenset[int] | None] = []
    found: list[bool] = []
    for node in graph.nodes:
        own: frozenset[int] | None = frozenset()
        for source in node.inputs:
            single = is_input(graph.nodes[source])
            below = frozenset((source,)) if single else leaves[source] if found[source] else None
            own = None if own is None or below is None else own | below
        leaves.append(own)
        found.append(is_free(node) or (own is not None and _is_grown(graph, node, own)))
    return tuple(found)


def _is_grown(graph: Graph, node: Node, leaves: frozenset[int]) -> bool:
    """Whether to compute a node of a few inputs is cheaper than to read it."""
    kind = row(node)
    if not isinstance(kind, (Pointwise, Cast)) or node.type is None or node.id in graph.outputs:
        return False
    if isinstance(kind, Pointwise) and kind.cost in ("div", "libdevice"):
        return False
    if any(row(graph.nodes[u]) is None for u in graph.users(node.id)):
        return False
    read = sum(t.nbytes for t in (graph.nodes[leaf].type for leaf in leaves) if t)
    return read * _GROWS <= node.type.nbytes


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


def subgraph(graph: Graph, nodes: tuple[int, ...], copies: tuple[int, ...] = ()) -> Subgraph:
    """Cut the group out. Outputs are the computed values that another group, an opaque
    operation or the graph's caller reads, perhaps through views; but not `copies`, which others
    compute or store as well."""
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
    stored = sorted(members.difference(copies))
    outputs = tuple(n for n in stored if _is_needed_outside(graph, n, members))
    return Subgraph(Graph(tuple(inner), tuple(renumber[o] for o in outputs)), inputs, outputs)


def _is_needed_outside(graph: Graph, node: int, members: set[int]) -> bool:
    if is_copied(graph, node):
        return False
    return _is_read_outside(graph, node, members)


def _is_read_outside(graph: Graph, node: int, members: set[int]) -> bool:
    return _is_returned(graph, node) or not _readers(graph, node) <= members


def copies_in(graph: Graph, groups: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """For each group of a cover the nodes that it computes and does not store although something
    outside reads them. Of a node in several groups the first stores the value, if anybody reads
    it who does not compute it too."""
    homes: dict[int, list[int]] = {}
    for number, nodes in enumerate(groups):
        for node in nodes:
            if not is_copied(graph, node):
                homes.setdefault(node, []).append(number)
    found: list[list[int]] = [[] for _ in groups]
    for node, numbers in homes.items():
        if len(numbers) == 1:
            continue
        loaded = _is_returned(graph, node) or any(
            not homes.get(reader) or not set(homes[reader]) <= set(numbers)
            for reader in _readers(graph, node)
        )
        for number in numbers[1:] if loaded else numbers:
            found[number].append(node)
    return [tuple(nodes) for nodes in found]


def _readers(graph: Graph, node: int) -> set[int]:
    """The nodes that do work with a value, through those of which there are copies."""
    users = {user for seen in _through_copies(graph, node) for user in graph.users(seen)}
    return {user for user in users if not is_copied(graph, user)}


def _is_returned(graph: Graph, node: int) -> bool:
    """Whether a value is the caller's, perhaps through views."""
    return any(seen in graph.outputs for seen in _through_copies(graph, node))


def _through_copies(graph: Graph, node: int) -> Iterator[int]:
    """A node, and what nodes of which there are copies make of it, each once."""
    seen, pending = {node}, [node]
    while pending:
        yield (each := pending.pop())
        new = [u for u in graph.users(each) if is_copied(graph, u) and u not in seen]
        seen.update(new)
        pending.extend(new)


@dataclass(frozen=True, slots=True)
class Part:
    """A group by its content: the layers of a model are equal but for the names of their nodes."""

    key: str
    group: Graph = field(compare=False)

    @staticmethod
    def of(graph: Graph, nodes: tuple[int, ...], copies: tuple[int, ...] = ()) -> Part:
        group = subgraph(graph, nodes, copies).graph
        return Part(kernel_key(group), group)

    @property
    def contracts(self) -> bool:
        return any(isinstance(row(node), Contraction) for node in self.group.nodes)
