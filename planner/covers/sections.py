"""Sections of a graph, of which each can be planned by a process of its own, equal ones once. The
covers of all sections are a cover of the whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from ..graph.graph import Graph, key
from ..graph.ops import Contraction, Depthwise, is_compute, is_input, row
from ..groups.group import Groups, is_copied, subgraph, with_free_nodes
from ..plan import Chosen
from .by_rule import groups_by_rule
from .cover import Cover

OPERATIONS = 100
"""The most operations of a section. By the model the cover of Swin-S, 1,667 operations, that is put
together of 24 sections of 10 kinds takes 5.65 ms; looked for as a whole, 5.83 ms."""


@dataclass(frozen=True, slots=True)
class Section:
    """A run of operations. key: its content; nodes: for each of its nodes that of the whole."""

    key: str
    graph: Graph = field(compare=False)
    nodes: tuple[int, ...]


def sections(graph: Graph, operations: int = OPERATIONS) -> tuple[Section, ...]:
    """Runs of at most so many operations, cut where the fewest bytes pass from one to the next, so
    that equal layers are cut alike. Empty where one section would do."""
    working = [n.id for n in graph.nodes if not is_input(n) and not is_copied(graph, n.id)]
    found: list[Section] = []
    if len(working) <= operations:
        return ()
    passed = _passed(graph)
    while working:
        size = _size(graph, working, passed, operations)
        nodes = with_free_nodes(graph, working[:size])
        cut = subgraph(graph, nodes)
        if any(map(is_compute, cut.graph.nodes)):
            found.append(Section(key(cut.graph), cut.graph, (*cut.inputs, *nodes)))
        working = working[size:]
    return tuple(found)


def _size(graph: Graph, working: Sequence[int], passed: Sequence[int], operations: int) -> int:
    """The number of operations of the next section. Among the cuts behind half of the limit it is
    the one that the fewest bytes cross; of equal ones the last before a matmul or an opaque
    operation, for there a group begins."""

    def order(size: int) -> tuple[int, bool]:
        after = graph.nodes[working[size]]
        begins = not is_compute(after) or isinstance(row(after), (Contraction, Depthwise))
        return passed[working[size - 1]], not begins

    if len(working) <= operations:
        return len(working)
    return min(range(operations, operations // 2, -1), key=order)


def _passed(graph: Graph) -> list[int]:
    """Bytes that are computed up to each node and read after it."""
    last = list(range(len(graph.nodes)))
    for node in reversed(graph.nodes):
        for source in node.inputs:
            read = last[node.id] if is_copied(graph, node.id) else node.id
            last[source] = max(last[source], read)
    ends: list[list[int]] = [[] for _ in graph.nodes]
    alive, found = 0, []
    for node in graph.nodes:
        if not is_input(node) and not is_copied(graph, node.id) and node.type is not None:
            alive += node.type.nbytes
            ends[last[node.id]].append(node.type.nbytes)
        alive -= sum(ends[node.id])
        found.append(alive)
    return found


def put_together(graph: Graph, parts: Sequence[Section], covers: Mapping[str, Cover]) -> Cover:
    """The covers of the sections, by key, as one of the whole. A section without one has groups by
    a rule, of which `chosen` knows nothing."""
    found = {key: cover.groups for key, cover in covers.items()}
    chosen = [covers[part.key].chosen for part in parts if part.key in covers]
    told = Chosen(
        seconds=sum(each.seconds for each in chosen),
        greedy_s=sum(each.greedy_s for each in chosen),
        least_s=0.0,
        proven=False,
        priced=sum(cover.chosen.priced for cover in covers.values()),
        pieces=len(parts),
        cuts=max(0, len(parts) - 1),
    )
    return Cover(groups_together(graph, parts, found), told)


def groups_together(graph: Graph, parts: Sequence[Section], found: Mapping[str, Groups]) -> Groups:
    """As `put_together`, of groups alone."""
    own = ((part, found.get(part.key) or _by_rule(part)) for part in parts)
    every = (each for part, groups in own for each in _groups(graph, part, groups))
    return tuple(with_free_nodes(graph, nodes) for nodes in every)


@lru_cache(maxsize=256)
def _by_rule(part: Section) -> Groups:
    return groups_by_rule(part.graph)


def _groups(graph: Graph, part: Section, groups: Groups) -> Groups:
    """The operations of each group, as nodes of the whole."""
    inside = part.nodes[len(part.graph.inputs) :]
    own = {n for n in inside if is_compute(graph.nodes[n]) and not is_copied(graph, n)}
    found = (tuple(part.nodes[n] for n in nodes) for nodes in groups)
    return tuple(kept for nodes in found if (kept := tuple(n for n in nodes if n in own)))
