"""Groups near those of a cover: joined, divided, with nodes or copies of nodes of a neighbour."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..bitsets import bits
from .candidates import CandidateGroup, Ground

Changed = tuple[int, int]
"""Nodes of a group, and those of them that stay in the group they are from as well."""


class Nearby:
    """The covers near a cover. What is known of groups is kept from one cover to the next."""

    def __init__(self, ground: Ground) -> None:
        self.ground = ground
        self._known: dict[tuple[int, int], tuple[Changed, ...]] = {}

    def groups(self, cover: Sequence[CandidateGroup]) -> dict[Changed, None]:
        """Closed groups that one change to a cover gives, each once."""
        found: dict[Changed, None] = {}
        for group in cover:
            found.update(dict.fromkeys(self._of(group.nodes, 0, self._divided(group))))
        for one, other in _pairs(self.ground, cover):
            changed = self._joined(one, other)
            found.update(dict.fromkeys(self._of(one.nodes, other.nodes, changed)))
        own = {each.nodes for each in cover}
        return {each: None for each in found if each[0] not in own}

    def _of(self, one: int, other: int, changed: Iterator[Changed]) -> tuple[Changed, ...]:
        """Those of the changed groups that are possible; they are made only the first time."""
        known = self._known.get((one, other))
        if known is None:
            known = tuple(each for each in dict.fromkeys(changed) if self._is_possible(each[0]))
            self._known[one, other] = known
        return known

    def _is_possible(self, nodes: int) -> bool:
        return self.ground.is_possible(nodes) and self.ground.closed(nodes) == nodes

    def _divided(self, group: CandidateGroup) -> Iterator[Changed]:
        for part in _parts(self.ground, group.nodes):
            yield part, 0
            yield group.nodes & ~part, 0

    def _joined(self, one: CandidateGroup, other: CandidateGroup) -> Iterator[Changed]:
        ground = self.ground
        yield ground.closed(one.nodes | other.nodes), 0
        for part in _parts(ground, other.nodes):
            for piece in (part, other.nodes & ~part):
                if ground.around(one.nodes) & piece:
                    yield ground.closed(one.nodes | piece), 0
        for copies in _copied(ground, one, other):
            yield one.nodes | copies, copies


def _parts(ground: Ground, group: int) -> Iterator[int]:
    """A node of the group with all that it needs of it, and with all that needs it."""
    if group.bit_count() > 1:
        for node in bits(group):
            yield group & (ground.behind[node] | 1 << node)
            yield group & (ground.ahead[node] | 1 << node)


def _pairs(
    ground: Ground, cover: Sequence[CandidateGroup]
) -> Iterator[tuple[CandidateGroup, CandidateGroup]]:
    """Neighbours, each pair both ways."""
    for one in cover:
        near = ground.around(one.nodes)
        yield from ((one, other) for other in cover if other is not one and near & other.nodes)


def _copied(ground: Ground, one: CandidateGroup, other: CandidateGroup) -> Iterator[int]:
    """What `one` may compute again of `other` instead of reading it: a cheap value, with none,
    one or all of the cheap nodes before it."""
    for node in bits(one.reads & other.nodes & ground.cheap):
        before = ground.behind[node] & other.nodes & ground.cheap
        yield 1 << node
        yield 1 << node | (ground.sources[node] & before)
        yield 1 << node | before
