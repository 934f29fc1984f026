"""The groups of a partition that are better run together, in chunks.

A value that passes between two groups must be stored. Where that value is *grown*, much larger than
what its group reads, and too large for the second-level cache, the groups that write and read it
form a region: `chunks.walk` may run them for a part of an axis at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..bitsets import bits, bitset
from ..graph.graph import Graph
from ..graph.ops import Contraction, is_compute, row
from ..groups.group import Groups, is_copied, subgraph, with_free_nodes
from ..groups.legality import Dependences, comes_back
from .fold_convolutions import around_convolutions

LARGE_BYTES = 64 << 20
"""A smaller value stays in the second-level cache, or nearly."""

GROWN = 2
"""Times the bytes of all that a group reads."""

MOST_NODES = 256


def regions(graph: Graph, groups: Groups, *, large: int | None = None) -> Groups:
    """Sets of nodes of a partition (free ones included) around its large, grown values, each a
    union of groups, and around its convolutions; none depends on itself through the outside.
    large: bytes; None is LARGE_BYTES."""
    finder = _Finder(graph, groups, LARGE_BYTES if large is None else large)
    found = list(finder.found())
    taken = {node for nodes in found for node in nodes}
    others = around_convolutions(graph, groups)
    return (*found, *(nodes for nodes in others if taken.isdisjoint(nodes)))


class _Finder:
    def __init__(self, graph: Graph, groups: Groups, large: int) -> None:
        self.graph, self.groups, self.large = graph, groups, large
        self.dependences = Dependences(graph)
        self.users = self.dependences.users
        self.parts = [subgraph(graph, nodes) for nodes in groups]
        work = [[n for n in nodes if self._is_work(n)] for nodes in groups]
        self.bits = [bitset(nodes) for nodes in work]
        self.home = {n: i for i, nodes in enumerate(work) for n in nodes}
        self.grown: set[int] = set()

    def found(self) -> Iterator[tuple[int, ...]]:
        joined = list(range(len(self.groups)))
        for number in self._order():
            for value in self.parts[number].outputs:
                if self._is_grown(value, number):
                    self.grown.add(value)
                    for user in self._readers(value):
                        _join(joined, number, user)
        together: dict[int, set[int]] = {}
        for number in range(len(self.groups)):
            together.setdefault(_root(joined, number), set()).add(number)
        taken: set[int] = set()
        for members in together.values():
            whole = self._closed(members) if len(members) > 1 else members
            if len(whole) > 1 and not whole & taken and self._is_worth(whole):
                taken |= whole
                yield with_free_nodes(self.graph, bits(self._union(whole)))

    def _is_work(self, node: int) -> bool:
        return is_compute(self.graph.nodes[node]) and not is_copied(self.graph, node)

    def _order(self) -> list[int]:
        """Groups by their last node: what writes a value comes before what it makes grow."""
        return sorted(range(len(self.groups)), key=lambda i: self.groups[i][-1])

    def _is_grown(self, value: int, number: int) -> bool:
        size = self._bytes(value)
        if size < self.large or value in self.graph.outputs or not self._readers(value):
            return False
        inputs = self.parts[number].inputs
        if any(self._elements(value) * GROWN <= self._elements(i) for i in self.grown & {*inputs}):
            return False  # a sum over a grown value is where growing ends
        return size >= GROWN * sum(self._bytes(i) for i in inputs if i not in self.grown)

    def _readers(self, value: int) -> set[int]:
        return {self.home[u] for u in bits(self.users[value]) if u in self.home}

    def _union(self, members: set[int]) -> int:
        whole = 0
        for number in members:
            whole |= self.bits[number]
        return whole

    def _closed(self, members: set[int]) -> set[int]:
        """The groups with all that lie on a path between two of them."""
        after = self._reached(members, self._ahead())
        before = self._reached(members, self._behind())
        return members | (after & before)

    def _ahead(self) -> list[set[int]]:
        found: list[set[int]] = []
        for own in self.bits:
            users = 0
            for node in bits(own):
                users |= self.users[node]
            found.append({self.home[u] for u in bits(users) if u in self.home})
        return found

    def _behind(self) -> list[set[int]]:
        found: list[set[int]] = [set() for _ in self.bits]
        for number, users in enumerate(self._ahead()):
            for user in users:
                found[user].add(number)
        return found

    def _reached(self, members: set[int], steps: Sequence[set[int]]) -> set[int]:
        seen: set[int] = set()
        stack = [s for m in members for s in steps[m] if s not in members]
        while stack:
            number = stack.pop()
            if number not in seen:
                seen.add(number)
                stack.extend(s for s in steps[number] if s not in members)
        return seen

    def _is_worth(self, members: set[int]) -> bool:
        whole = self._union(members)
        nodes = list(bits(whole))
        if len(nodes) > MOST_NODES:
            return False
        home = {n: self.bits[i] for n, i in self.home.items()}
        if comes_back(self.dependences, home | dict.fromkeys(nodes, whole), whole):
            return False  # through an operation that is in no group
        return any(isinstance(row(self.graph.nodes[n]), Contraction) for n in nodes)

    def _elements(self, node: int) -> int:
        found = self.graph.nodes[node].type
        return 0 if found is None else found.numel

    def _bytes(self, node: int) -> int:
        found = self.graph.nodes[node].type
        return 0 if found is None else found.nbytes


def _root(joined: Sequence[int], number: int) -> int:
    while joined[number] != number:
        number = joined[number]
    return number


def _join(joined: list[int], left: int, right: int) -> None:
    joined[_root(joined, right)] = _root(joined, left)
