"""Reductions that go to the group that reads their results, with what follows them.

Groups grow along edges, so that the sum of a norm joins the product before it, which then takes a
second kernel to add up what its programs have. The product after the norm could add it up again in
each of its programs. The search for groups near a cover finds that among thousands of other changes
or not at all, so that it is tried first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ..bitsets import bits
from ..graph.ops import Reduction, row
from .candidates import CandidateGroup, Ground
from .chained import changed_cover
from .pieces import waiting

MOST_PASSED = 8
"""Operations that go with a reduction, at most."""


def with_readers(
    ground: Ground,
    start: Sequence[CandidateGroup],
    price: Callable[[CandidateGroup], float | None],
) -> list[CandidateGroup]:
    """The cover with such groups where they are cheaper than what they replace."""
    cover = list(start)
    for group in start:
        for nodes in _passed_on(ground, group, cover):
            changed = changed_cover(ground, cover, nodes, price)
            if changed is not None and not waiting(ground, (), changed):
                cover = changed
                break
    return cover


def _passed_on(
    ground: Ground, group: CandidateGroup, cover: Sequence[CandidateGroup]
) -> Iterator[int]:
    """Closed groups of what ends a group, from a reduction on, with one that reads it."""
    for node in bits(group.nodes):
        if not isinstance(row(ground.graph.nodes[node]), Reduction):
            continue
        part = group.nodes & (ground.ahead[node] | 1 << node)
        if part == group.nodes or part.bit_count() > MOST_PASSED:
            continue
        for other in cover:
            if other.nodes != group.nodes and ground.around(other.nodes) & part:
                whole = ground.closed(other.nodes | part)
                if whole == other.nodes | part and ground.is_possible(whole):
                    yield whole
