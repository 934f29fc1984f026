"""Groups near those of a cover: joined, divided, with nodes or copies of nodes of a neighbour."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .candidates import Candidate, Ground
from .legality import bits


def nearby(ground: Ground, cover: Sequence[Candidate]) -> dict[tuple[int, int], None]:
    """Closed groups as (nodes, copies) that one change to a cover gives, each once. Copies are
    nodes that stay in the group they are from."""
    found: dict[tuple[int, int], None] = {}
    for group in cover:
        for part in _parts(ground, group.nodes):
            found[part, 0] = None
            found[group.nodes & ~part, 0] = None
    for one, other in _pairs(ground, cover):
        found[ground.closed(one.nodes | other.nodes), 0] = None
        for part in _parts(ground, other.nodes):
            for piece in (part, other.nodes & ~part):
                if ground.around(one.nodes) & piece:
                    found[ground.closed(one.nodes | piece), 0] = None
        for copies in _copied(ground, one, other):
            found[one.nodes | copies, copies] = None
    known = {each.nodes for each in cover}
    return {
        (nodes, copies): None
        for nodes, copies in found
        if nodes not in known and ground.is_possible(nodes) and ground.closed(nodes) == nodes
    }


def _parts(ground: Ground, group: int) -> Iterator[int]:
    """A node of the group with all that it needs of it, and with all that needs it."""
    if group.bit_count() > 1:
        for node in bits(group):
            yield group & (ground.behind[node] | 1 << node)
            yield group & (ground.ahead[node] | 1 << node)


def _pairs(ground: Ground, cover: Sequence[Candidate]) -> Iterator[tuple[Candidate, Candidate]]:
    """Neighbours, each pair both ways."""
    for one in cover:
        near = ground.around(one.nodes)
        yield from ((one, other) for other in cover if other is not one and near & other.nodes)


def _copied(ground: Ground, one: Candidate, other: Candidate) -> Iterator[int]:
    """What `one` may compute again of `other` instead of reading it: a cheap value, with none,
    one or all of the cheap nodes before it."""
    for node in bits(one.reads & other.nodes & ground.cheap):
        before = ground.behind[node] & other.nodes & ground.cheap
        yield 1 << node
        yield 1 << node | (ground.sources[node] & before)
        yield 1 << node | before
