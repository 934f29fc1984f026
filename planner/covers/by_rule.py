"""Groups by a rule, without the cost model: one start of a search, and what a section of a graph
has that was not planned in time.

Neighbours join, but for two. A product or a convolution is left to the vendor. And what reads a
reduction too long for the tile of a program is a kernel of its own if it gives as much as the
reduction reads: one kernel of both would walk over all of that twice. What gives no more than the
reduction does, such as a variance behind a mean, stays with it. The rule takes 1 to 3 ms for each
operation of a usual model, up to 20 ms of others. On ten sections of the training steps of GPT-2
and ResNet-50 the groups take 0.95 to 1.6 times as long, by the model, as those of a search;
operation by operation it is 2.7 to 5.6 times.
"""

from __future__ import annotations

import math

from ..bitsets import bits
from ..graph.graph import Graph, Node
from ..graph.ops import Contraction, Cumulative, Depthwise, Reduction, bound, row
from ..groups.group import Groups
from ..groups.legality import Dependences
from .growing import Edge, cut_edges, grow

HELD = 1 << 14
"""Elements that go into one result of a reduction and that a program can hold at once."""

MOST = 48
"""Operations of a group: no model says how many values wait in registers meanwhile."""


def groups_by_rule(graph: Graph) -> Groups:
    """Groups that hold every compute node of the graph once, each of them a legal kernel where it
    has more than one."""
    rule = _Rule(graph)
    return grow(graph, rule.is_wanted, rule.may_join).groups


class _Rule:
    def __init__(self, graph: Graph) -> None:
        self.graph, self._dependences = graph, Dependences(graph)
        self._late = self._behind_long_reductions()
        self._cuts = frozenset(edge for edge in cut_edges(graph) if self._is_cut(*edge))

    def is_wanted(self, edge: Edge) -> bool:
        return edge not in self._cuts

    def may_join(self, left: int, right: int) -> bool:
        """Of two groups as sets of bits, whether they are few operations and hold no edge that is
        cut, or store no value larger than the results of their long reductions."""
        joined = left | right
        if joined.bit_count() > MOST:
            return False
        if not any(joined >> first & 1 and joined >> second & 1 for first, second in self._cuts):
            return True
        narrow = max((self._numel(n) for n in bits(joined) if self._late[n]), default=0)
        return all(self._numel(n) <= narrow for n in bits(joined) if self._is_stored(n, joined))

    def _is_cut(self, first: int, second: int) -> bool:
        if any(_is_product(self.graph.nodes[n]) for n in (first, second)):
            return True
        reads = self._dependences.sources[second] >> first & 1
        return bool(reads and self._late[first] and self._numel(second) > self._numel(first))

    def _behind_long_reductions(self) -> list[bool]:
        """For every node whether it is a long reduction, or is computed from one alone."""
        found: list[bool] = []
        for node in self.graph.nodes:
            read = [n for n in node.inputs if found[n]]
            small = any(self._numel(n) >= self._numel(node.id) for n in read)
            found.append(_is_long(self.graph, node) or small)
        return found

    def _is_stored(self, node: int, group: int) -> bool:
        return node in self.graph.outputs or bool(self._dependences.users[node] & ~group)

    def _numel(self, node: int) -> int:
        kind = self.graph.nodes[node].type
        return kind.numel if kind is not None else 0


def _is_product(node: Node) -> bool:
    return isinstance(row(node), (Contraction, Depthwise))


def _is_long(graph: Graph, node: Node) -> bool:
    """Whether more goes into one of its results than a program can hold."""
    kind, source = row(node), graph.nodes[node.inputs[0]].type if node.inputs else None
    if isinstance(kind, Cumulative):
        return True
    if not isinstance(kind, Reduction) or source is None:
        return False
    count, dim = len(source.shape), bound(node).get(kind.dim)
    given = dim if isinstance(dim, tuple) else (dim,) if isinstance(dim, int) else ()
    dims = {d % count for d in given if isinstance(d, int)} or {*range(count)}
    return math.prod(source.shape[d] for d in dims) > HELD
