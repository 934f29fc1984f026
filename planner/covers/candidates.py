"""Groups that a cover may be made of, as bitsets, and how fast each could be at best.

Nothing here asks for a nest or for the cost model: what is told of a group follows from the graph
alone, so that thousands can be looked at in the time that the model takes for one.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from ..bitsets import bits, bitset
from ..costs.device import DeviceProfile
from ..costs.matrix import fastest_s
from ..graph.graph import Graph
from ..graph.ops import Cast, Concat, Contraction, Iota, Pointwise, is_compute, is_input, row
from ..groups.group import is_copied
from ..groups.legality import LARGEST_GROUP, MOST_BUFFERS, Dependences
from ..groups.needs import read_whole
from ..memo import Keeping, asked_once
from ..trace.indexed_writes import nbytes_given
from ..trace.precision import is_stored_beside_its_statistic
from .pricing import SPARED

_ROUNDED = 1 - 1e-9


@dataclass(frozen=True, slots=True)
class CandidateGroup:
    """A group of compute nodes as a bitset. copies: members whose values it does not store,
    because nobody else reads them or somebody else stores them. reads, writes: values of compute
    nodes that it loads and stores. floor_s: seconds that no kernel of it can beat."""

    nodes: int
    copies: int
    reads: int
    writes: int
    floor_s: float

    @property
    def least_s(self) -> float:
        """What its price is at least, also where it spares a large value; for sums of prices,
        which are rounded, a little less."""
        return self.floor_s / SPARED * _ROUNDED


class Ground(Keeping):
    """The graph, its dependences and its device, by which candidates are judged."""

    def __init__(self, graph: Graph, device: DeviceProfile) -> None:
        super().__init__()
        self.graph, self.device = graph, device
        self.dependences = Dependences(graph)
        self.sources, self.users = self.dependences.sources, self.dependences.users

    @cached_property
    def compute(self) -> int:
        """The nodes that groups are made of."""
        nodes = self.graph.nodes
        return bitset(n.id for n in nodes if is_compute(n) and not is_copied(self.graph, n.id))

    @cached_property
    def working(self) -> int:
        """All nodes but inputs and those of which each group has copies."""
        nodes = self.graph.nodes
        return bitset(n.id for n in nodes if not is_input(n) and not is_copied(self.graph, n.id))

    @cached_property
    def neighbours(self) -> tuple[int, ...]:
        """For every node those it shares an edge with."""
        found = [0] * len(self.graph.nodes)
        for a, b in self.dependences.edges:
            found[a] |= 1 << b
            found[b] |= 1 << a
        return tuple(found)

    @cached_property
    def behind(self) -> tuple[int, ...]:
        """For every node all that it depends on."""
        found: list[int] = []
        for own in self.sources:
            whole = own
            for source in bits(own):
                whole |= found[source]
            found.append(whole)
        return tuple(found)

    @cached_property
    def ahead(self) -> tuple[int, ...]:
        """For every node all that depends on it."""
        found = [0] * len(self.graph.nodes)
        for node in reversed(range(len(found))):
            found[node] = self.users[node]
            for user in bits(self.users[node]):
                found[node] |= found[user]
        return tuple(found)

    @cached_property
    def kept(self) -> int:
        """Compute nodes whose values an operation outside all groups reads, or the caller."""
        found = 0
        for output in self.graph.outputs:
            if output is not None:
                copied = is_copied(self.graph, output)
                found |= self.sources[output] if copied else 1 << output
        for node in bits(self.compute):
            if self.users[node] & ~self.compute:
                found |= 1 << node
        return found & self.compute

    @cached_property
    def cheap(self) -> int:
        """Nodes that may be computed more than once: pointwise work without its own library. Not
        what the caller gets rounded, and may compare with its maximum: a copy is not rounded."""
        found = 0
        for node in bits(self.compute):
            kind = row(self.graph.nodes[node])
            pointwise = isinstance(kind, Pointwise) and kind.cost != "libdevice"
            if pointwise or isinstance(kind, (Cast, Concat)):
                own = self.graph.nodes[node]
                found |= (not is_stored_beside_its_statistic(self.graph, own)) << node
        return found

    @cached_property
    def contractions(self) -> int:
        nodes = self.graph.nodes
        return bitset(n for n in bits(self.compute) if isinstance(row(nodes[n]), Contraction))

    @cached_property
    def nbytes(self) -> tuple[int, ...]:
        return tuple(nbytes_given(self.graph, n) for n in self.graph.nodes)

    @cached_property
    def whole(self) -> tuple[int, ...]:
        """For every node the sources of which a kernel needs every element for it."""
        needed = bitset(o for o in self.graph.outputs if o is not None)
        opaque = bitset(n.id for n in self.graph.nodes if self.users[n.id] & ~self.compute)
        return read_whole(self.graph, needed | opaque)

    @cached_property
    def products_s(self) -> tuple[float, ...]:
        """For every node the seconds of its matrix product on all tensor cores; none in a graph
        with positions, by which a mask may spare tiles."""
        nodes = self.graph.nodes
        if any(isinstance(row(n), Iota) for n in nodes):
            return (0.0,) * len(nodes)
        needed = self.whole
        return tuple(
            fastest_s(self.graph, n.id, self.device)
            if isinstance(row(n), Contraction) and needed[n.id]
            else 0.0
            for n in nodes
        )

    # --- groups ---

    @asked_once
    def closed(self, group: int) -> int:
        """The group with all that lies on a path between two of its members."""
        before = after = 0
        for node in bits(group):
            before |= self.behind[node]
            after |= self.ahead[node]
        return group | (before & after)

    @asked_once
    def around(self, group: int) -> int:
        """The nodes outside that share an edge with a member."""
        found = 0
        for node in bits(group):
            found |= self.neighbours[node]
        return found & ~group

    @asked_once
    def stored(self, group: int) -> int:
        """The members whose values something outside reads."""
        found = group & self.kept
        for node in bits(group):
            if self.users[node] & ~group:
                found |= 1 << node
        return found

    def candidate(self, group: int, copies: int = 0) -> CandidateGroup:
        """A closed group as a candidate; `copies` are among what it would otherwise store."""
        read = whole = 0
        product_s = 0.0
        for node in bits(group):
            read |= self.sources[node]
            whole |= self.whole[node]
            product_s += self.products_s[node]
        writes = self.stored(group) & ~copies
        moved = sum(self.nbytes[n] for n in bits((whole & ~group) | writes))
        floor_s = self.device.launch_s + max(moved / self.device.bandwidth, product_s)
        return CandidateGroup(group, copies, read & ~group & self.compute, writes, floor_s)

    def least_part_s(self, each: CandidateGroup, region: int) -> float | None:
        """Seconds that a group adds at least where it is a part of a kernel with another part, to
        which no edge leads: that one may launch it, and read what both read. None where every node
        of the region depends on it or the reverse."""
        apart, whole, other = region & ~each.nodes, 0, 0
        for node in bits(each.nodes):
            apart &= ~(self.behind[node] | self.ahead[node])
            whole |= self.whole[node]
        if not apart:
            return None
        for node in bits(apart):
            other |= self.whole[node]
        moved = sum(self.nbytes[n] for n in bits((whole & ~each.nodes & ~other) | each.writes))
        return moved / self.device.bandwidth

    @asked_once
    def is_possible(self, group: int) -> bool:
        """Whether a closed group holds compute nodes alone and is not too large for a kernel."""
        if group & ~self.compute or group.bit_count() > LARGEST_GROUP:
            return False
        read = 0
        for node in bits(group):
            read |= self.sources[node]
        ends = (read & ~group).bit_count() + (group & self.kept).bit_count()
        return ends <= MOST_BUFFERS

    def variants(self, group: int, most: int = 3) -> Iterator[CandidateGroup]:
        """The group with every choice of cheap values that it computes for itself alone, others
        having computed them too; of more than `most` such values each, and all of them."""
        yield self.candidate(group)
        free = self.stored(group) & self.cheap
        own = list(bits(free))
        if len(own) <= most:
            choices = [
                bitset(n for place, n in enumerate(own) if chosen >> place & 1)
                for chosen in range(1, 1 << len(own))
            ]
        else:
            choices = [free, *(1 << n for n in own)]
        for copies in choices:
            found = self.candidate(group, copies)
            if found.writes:
                yield found


def enumerated(ground: Ground, region: int, least_s: float, most: int) -> tuple[list[int], bool]:
    """Closed, connected groups of a region, and whether these are all of which a cover could take
    at most `least_s` seconds; else the `most` with the best floors, small ones first.

    A group in a cover leaves work outside: what passes between them is written and read, and the
    rest has a kernel of its own. Where that alone takes `least_s`, the group is in no better cover
    and left out; what grows from it is looked at all the same.
    """
    bound = _Bound(ground, region, least_s)
    seen: set[int] = set()
    heap: list[tuple[float, int]] = []

    def push(group: int) -> None:
        if group not in seen and not group & ~region and ground.is_possible(group):
            seen.add(group)
            heapq.heappush(heap, (bound.of(group), group))

    for node in bits(region):
        push(ground.closed(1 << node))
    found = []
    while heap and len(seen) < most:
        at_least_s, group = heapq.heappop(heap)
        if at_least_s < least_s:
            found.append(group)
        for node in bits(ground.around(group) & region):
            push(ground.closed(group | 1 << node))
    complete = not heap
    found += [group for at_least_s, group in heap if at_least_s < least_s]
    return found, complete


class _Bound:
    """Seconds that every cover of a region with a group in it takes at least."""

    def __init__(self, ground: Ground, region: int, least_s: float) -> None:
        self.ground, self.region = ground, region
        read = 0
        for node in bits(region):
            read |= ground.whole[node]
        self.ends = read & ~region
        self.written = ground.kept & region
        for node in bits(region):
            if ground.users[node] & ground.compute & ~region:
                self.written |= 1 << node
        moved = sum(ground.nbytes[n] for n in bits(self.ends | self.written))
        self.moved_s = moved / ground.device.bandwidth
        self.products_s = sum(ground.products_s[n] for n in bits(region))

    def of(self, group: int) -> float:
        ground = self.ground
        found = ground.candidate(group)
        passing = found.reads & self.region
        # Cheap values may be computed twice instead of passing on.
        passing |= found.writes & ~self.written & ~ground.cheap
        passed = 2 * sum(ground.nbytes[n] for n in bits(passing & ~self.written))
        launches = 2 if self.written & ~group or found.reads & self.region else 1
        moved_s = self.moved_s + passed / ground.device.bandwidth
        return launches * ground.device.launch_s + max(moved_s, self.products_s)
