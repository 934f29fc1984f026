"""A group whose large values are computed again for each of their readers.

The scores of attention have several readers in a backward pass: sums over the keys, sums over the
queries, and the statistics of a row. One kernel cannot serve them all, and whatever passes between
kernels must be stored. Computed again from the small values that they come from, the large ones
belong to one kernel each, and none is stored.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ..errors import Refusal
from ..graph.graph import INPUT, Graph, Node, TensorType, map_refs
from ..graph.ops import View, is_compute, row
from ..groups.group import is_copied
from .chunks import ChunkInput, ChunkOutput, Walk


def recomputed(group: Graph, large: int) -> Walk | Refusal:
    """The group as one chunk, its values of at least `large` bytes once for each of the smaller
    values and results that are made of them."""
    copier = _Copier(group, large)
    outputs = [o for o in group.outputs if o is not None]
    if len(outputs) != len(group.outputs):
        return Refusal("output", "a group's output is no tensor")
    body = copier.body()
    if copier.shared == 0:
        return Refusal("recompute", "no large value of the group has several readers")
    types = {n: group.nodes[n].type for n in (*group.inputs, *outputs)}
    if any(t is None for t in types.values()):
        return Refusal("opaque", "a group reads or gives what is no single tensor")
    given = tuple(
        ChunkInput("input", t, (), i) for i, n in enumerate(group.inputs) if (t := types[n])
    )
    results = tuple(ChunkOutput(t, (), summed=False) for o in outputs if (t := types[o]))
    return Walk(given, results, (), (body,), 0)


@dataclass(slots=True)
class _Copier:
    group: Graph
    large: int
    nodes: list[Node] = field(default_factory=list)
    shared: int = 0
    _made: dict[int, int] = field(default_factory=dict)
    _copies: dict[int, int] = field(default_factory=dict)

    def body(self) -> Graph:
        for node in self.group.nodes:
            if not self._is_again(node):
                own: dict[int, int] = {}
                self._made[node.id] = self._copy(node, own)
        outputs = tuple(None if o is None else self._made[o] for o in self.group.outputs)
        return Graph(tuple(self.nodes), outputs, self.group.numerics)

    def _is_again(self, node: Node) -> bool:
        """Whether each reader has a value for itself: large ones, and views of those."""
        if node.op == INPUT or node.id in self.group.outputs:
            return False
        if isinstance(row(node), View):
            return any(self._is_again(self.group.nodes[s]) for s in node.inputs)
        return is_compute(node) and self._bytes(node) >= self.large

    def _bytes(self, node: Node) -> int:
        return node.type.nbytes if isinstance(node.type, TensorType) else 0

    def _copy(self, node: Node, own: dict[int, int]) -> int:
        """The node in the body, with the large values that it is made of; `own`: those that are
        there for the same reader."""
        renumber = {}
        for source in node.inputs:
            found = self.group.nodes[source]
            if not self._is_again(found):
                renumber[source] = self._made[source]
                continue
            if source not in own:
                own[source] = self._copy(found, own)
            renumber[source] = own[source]
        if node.id in self._copies and not is_copied(self.group, node.id):
            self.shared += is_compute(node)
        args = tuple(map_refs(a, renumber) for a in node.args)
        kwargs = tuple((k, map_refs(v, renumber)) for k, v in node.kwargs)
        number = len(self.nodes)
        self._copies[node.id] = number
        self.nodes.append(replace(node, id=number, args=args, kwargs=kwargs))
        return number
