"""A group of nodes as a graph of its own, and which of its values the outside needs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ..bitsets import bits, bitset
from ..graph.graph import INPUT, Graph, Node, content, kernel_key, map_refs, refs, sorted_kwargs
from ..graph.ops import Cast, Contraction, Depthwise, Pointwise, View, is_free, is_input, row
from ..memo import by_identity
from ..trace.precision import held

Groups = tuple[tuple[int, ...], ...]
"""The nodes of each of several groups."""


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
    nothing, a broadcast of a few inputs costs less than reading its result, and 16-bit numbers
    upcast to float32 are read in half the bytes."""
    return copied(graph)[node]


@by_identity(64)
def copied(graph: Graph) -> tuple[bool, ...]:
    """For every node whether it `is_copied`."""
    # The inputs a node is computed from, if nothing but copied nodes lies between.
    leaves: list[frozenset[int] | None] = []
    found: list[bool] = []
    shown = _shown(graph)
    for node in graph.nodes:
        own: frozenset[int] | None = frozenset()
        for source in node.inputs:
            single = is_input(graph.nodes[source])
            below = frozenset((source,)) if single else leaves[source] if found[source] else None
            own = None if own is None or below is None else own | below
        leaves.append(own)
        grown = own is not None and _is_grown(graph, node, own)
        found.append(is_free(node) or grown or _is_spread(graph, node, shown))
    return tuple(found)


def _shown(graph: Graph) -> set[int]:
    """Nodes whose value is read by the caller or an opaque operation, perhaps through views."""
    found = {o for o in graph.outputs if o is not None}
    for node in reversed(graph.nodes):
        if row(node) is None or (node.id in found and isinstance(row(node), View)):
            found.update(node.inputs)
    return found


def _is_spread(graph: Graph, node: Node, shown: set[int]) -> bool:
    """Whether it holds 16-bit numbers as float32, for kernels to read."""
    if node.type is None or node.type.dtype != "float32" or node.id in shown:
        return False
    return isinstance(row(node), (Cast, Pointwise)) and held(graph, node.id) is not None


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
    below, whole = _surroundings(graph).below, 0
    for node in compute:
        whole |= 1 << node | below[node]
    return tuple(bits(whole))


def subgraph(graph: Graph, nodes: tuple[int, ...], copies: tuple[int, ...] = ()) -> Subgraph:
    """Cut the group out. Outputs are the computed values that another group, an opaque
    operation or the graph's caller reads, perhaps through views; but not `copies`, which others
    compute or store as well."""
    members, around = set(nodes), _surroundings(graph)
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
        inner.append(Node(renumber[old], source.name, source.op, args, kwargs, source.type))
    outputs = around.stored(nodes, copies)
    own = Graph(tuple(inner), tuple(renumber[o] for o in outputs), graph.numerics)
    return Subgraph(own, inputs, outputs)


def copies_in(graph: Graph, groups: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """For each group of a cover the nodes that it computes and does not store although something
    outside reads them. Of a node in several groups the first stores the value, if anybody reads
    it who does not compute it too."""
    homes: dict[int, list[int]] = {}
    for number, nodes in enumerate(groups):
        for node in nodes:
            if not is_copied(graph, node):
                homes.setdefault(node, []).append(number)
    around = _surroundings(graph)
    found: list[list[int]] = [[] for _ in groups]
    for node, numbers in homes.items():
        if len(numbers) == 1:
            continue
        loaded = around.returned >> node & 1 or any(
            not homes.get(reader) or not set(homes[reader]) <= set(numbers)
            for reader in bits(around.readers[node])
        )
        for number in numbers[1:] if loaded else numbers:
            found[number].append(node)
    return [tuple(nodes) for nodes in found]


@dataclass(frozen=True, slots=True)
class _Surroundings:
    """Of every node, as bitsets, below: the nodes it reads of which every group has a copy, and
    those that these read; readers: the nodes that do work with its value, perhaps through such
    copies. copied: see `is_copied`; returned: the nodes whose value is the caller's, perhaps
    through views."""

    copied: tuple[bool, ...]
    below: tuple[int, ...]
    readers: tuple[int, ...]
    returned: int

    def stored(self, nodes: Sequence[int], copies: Sequence[int] = ()) -> tuple[int, ...]:
        """Those of a group whose values are needed outside of it, copies left out."""
        members = bitset(nodes)
        return tuple(
            node
            for node in bits(members & ~bitset(copies))
            if not self.copied[node]
            and (self.returned >> node & 1 or self.readers[node] & ~members)
        )


@by_identity(64)
def _surroundings(graph: Graph) -> _Surroundings:
    is_copy = copied(graph)
    below: list[int] = []
    for node in graph.nodes:
        own = 0
        for source in node.inputs:
            own |= 1 << source | below[source] if is_copy[source] else 0
        below.append(own)
    readers = [0] * len(graph.nodes)
    returned = bitset(o for o in graph.outputs if o is not None)
    for number in reversed(range(len(graph.nodes))):
        for user in graph.users(number):
            readers[number] |= readers[user] if is_copy[user] else 1 << user
            if is_copy[user] and returned >> user & 1:
                returned |= 1 << number
    return _Surroundings(is_copy, tuple(below), tuple(readers), returned)


@dataclass(frozen=True, slots=True)
class GroupContent:
    """A group by its content: the layers of a model are equal but for the names of their nodes."""

    key: str
    group: Graph = field(compare=False)

    @staticmethod
    def of(graph: Graph, nodes: tuple[int, ...], copies: tuple[int, ...] = ()) -> GroupContent:
        return _contents(graph).part(nodes, copies)

    @property
    def contracts(self) -> bool:
        return any(isinstance(row(node), Contraction) for node in self.group.nodes)

    @property
    def convolves(self) -> bool:
        return any(isinstance(row(node), Depthwise) for node in self.group.nodes)


class _Contents:
    """The parts of one graph. Isomorphic groups are told by numbers for what their nodes are and
    by which of their nodes read which, and only the first of them is cut out."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.around = graph, _surroundings(graph)
        known: dict[str, int] = {}
        # An input of a group shows its type alone, whatever computes it.
        texts = ((content(n), content(Node(0, "", INPUT, type=n.type))) for n in graph.nodes)
        self.kinds = [
            (known.setdefault(own, len(known)), known.setdefault(read, len(known)))
            for own, read in texts
        ]
        self.reads = [
            tuple(r for value in (*n.args, *(v for _, v in sorted_kwargs(n))) for r in refs(value))
            for n in graph.nodes
        ]
        self.parts: dict[object, GroupContent] = {}

    def part(self, nodes: tuple[int, ...], copies: tuple[int, ...]) -> GroupContent:
        shape = self._shape(nodes, copies)
        found = self.parts.get(shape)
        if found is None:
            group = subgraph(self.graph, nodes, copies).graph
            found = self.parts[shape] = GroupContent(kernel_key(group), group)
        return found

    def _shape(self, nodes: tuple[int, ...], copies: tuple[int, ...]) -> object:
        members = set(nodes)
        outer = sorted({r for n in nodes for r in self.reads[n]} - members)
        order = sorted(members)
        place = {node: number for number, node in enumerate((*outer, *order))}
        return (
            tuple(self.kinds[n][1] for n in outer),
            tuple((self.kinds[n][0], *(place[r] for r in self.reads[n])) for n in order),
            tuple(place[n] for n in self.around.stored(nodes, copies)),
        )


_contents = by_identity(16)(_Contents)
