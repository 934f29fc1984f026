"""The rules by which two groups may become one, or the reason why not.

Groups are bitsets of compute nodes (bit i: node i). Free nodes, views and constants, belong to no
group: each group takes in copies of those it reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property, lru_cache

from ..bitsets import bits
from ..config import NATURAL
from ..errors import Refusal
from ..graph.graph import Graph
from ..graph.ops import IndexedWrite, is_compute, row
from ..memo import Keeping, asked_once
from ..nests.nest import schedule
from .group import GroupContent, is_copied, with_free_nodes

LARGEST_GROUP = 96
MOST_BUFFERS = 40


class Dependences(Keeping):
    """The readers of each node that does work, through views and constants."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.graph = graph

    @asked_once
    def users_of(self, group: int) -> int:
        """The working nodes that read values of a group, its own members among them."""
        found = 0
        for node in bits(group):
            found |= self.users[node]
        return found

    @cached_property
    def sources(self) -> tuple[int, ...]:
        """For every node the working nodes and inputs whose values it reads, as a bitset."""
        found: list[int] = []
        for node in self.graph.nodes:
            own = 0
            for source in node.inputs:
                own |= found[source] if is_copied(self.graph, source) else 1 << source
            found.append(own)
        return tuple(found)

    @cached_property
    def users(self) -> tuple[int, ...]:
        """For every node the working nodes that read its value, as a bitset."""
        found = [0] * len(self.graph.nodes)
        for node in self.graph.nodes:
            if not is_copied(self.graph, node.id):
                for source in bits(self.sources[node.id]):
                    found[source] |= 1 << node.id
        return tuple(found)

    @cached_property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """Pairs of compute nodes that could share a kernel: producer and consumer, and two that
        read the same value, each with the next. A write by index is not paired with who reads the
        tensor after it (see `covers.written_places`)."""
        nodes = self.graph.nodes
        compute = [n.id for n in nodes if is_compute(n) and not is_copied(self.graph, n.id)]
        pairs: dict[tuple[int, int], None] = {}
        readers: dict[int, int] = {}
        for node in compute:
            for source in bits(self.sources[node]):
                if is_compute(nodes[source]) and not isinstance(row(nodes[source]), IndexedWrite):
                    pairs[source, node] = None
        for node in compute:
            for source in bits(self.sources[node]):
                if source in readers and _is_large(self.graph, source):
                    pairs.setdefault((readers[source], node), None)
                readers[source] = node
        return tuple(pairs)


def _is_large(graph: Graph, node: int) -> bool:
    """Whether reading a value once instead of twice is worth sharing a kernel for."""
    tensor = graph.nodes[node].type
    return tensor is not None and tensor.nbytes >= 1 << 14


class Homes(dict[int, int]):
    """The group of each node, while groups join."""

    def __init__(self, graph: Graph, nodes: Iterable[int]) -> None:
        super().__init__((node, 1 << node) for node in nodes)
        self._last = list(range(len(graph.nodes)))
        """Of each node the last of its group."""

    def join(self, group: int) -> None:
        """Make one group of these nodes."""
        last = group.bit_length() - 1
        for node in bits(group):
            self[node], self._last[node] = group, last

    def within(self, group: int) -> int:
        """The nodes that a path from a group passes where it comes back: no group reaches from
        those behind them to one before."""
        end, last = 0, group.bit_length()
        while last > end:
            end, last = last, max(self._last[:last]) + 1
        return (1 << end) - 1


def may_join(
    graph: Graph,
    dependences: Dependences,
    home: Mapping[int, int],
    left: int,
    right: int,
    within: int = -1,
) -> Refusal | None:
    """Whether two groups of a partition may become one kernel; `home` gives each node's group.
    within: see `comes_back`."""
    merged = left | right
    if merged.bit_count() > LARGEST_GROUP:
        return Refusal("size", f"more than {LARGEST_GROUP} operations")
    if comes_back(dependences, home, merged, within):
        return Refusal("convex", "a path leaves the group and comes back")
    return may_be_kernel(graph, merged)


def may_be_kernel(graph: Graph, group: int) -> Refusal | None:
    """Whether a group has a nest."""
    return has_nest(GroupContent.of(graph, with_free_nodes(graph, bits(group))))


@lru_cache(maxsize=4096)
def has_nest(part: GroupContent) -> Refusal | None:
    """The same of a group that is a graph of its own."""
    group = part.group
    if len(group.inputs) + len(group.outputs) > MOST_BUFFERS:
        return Refusal("buffers", f"more than {MOST_BUFFERS} tensors")
    found = schedule(group, NATURAL)
    return found if isinstance(found, Refusal) else None


def comes_back(
    dependences: Dependences, home: Mapping[int, int], merged: int, within: int = -1
) -> bool:
    """Whether something outside reads the group and is read by it, other groups taken whole.
    within: nodes beyond which no path has to be followed (see `Homes`)."""
    ahead = dependences.users_of(merged) & ~merged & within
    reached = merged
    while ahead:
        node = (ahead & -ahead).bit_length() - 1
        group = home.get(node, 1 << node)
        reached |= group | 1 << node
        users = dependences.users_of(group)
        if users & merged:
            return True
        ahead = (ahead | users & within) & ~reached
    return False
