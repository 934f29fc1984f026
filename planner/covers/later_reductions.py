"""Moves a reduction to the group that reads its result, with what only that reduction reads, and
what stands behind a product to a kernel without one that reads it.

Groups grow along edges, so that the sum of a norm joins the matmul before it, which then needs a
second kernel to combine the partial sums of its programs. The matmul after the norm can compute the
sum again in each of its programs, and square the elements that it reads anyway. The search for
groups near a cover finds that among thousands of other changes or not at all, so it is tried first.

A residual sum joins the product before it in the same way, where the vendor's product and a norm
that adds up what it reads are faster; and so does the first term of a rotary embedding,
q * cos + rotated(q) * sin, which is then stored beside q.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

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
    reductions = partial(_passed_on, passes=_is_reduction)
    only_reduced = partial(_passed_on, passes=_is_only_reduced)
    for passed in (reductions, only_reduced, _behind_product):
        for group in tuple(cover):
            for nodes in passed(ground, group, cover):
                changed = changed_cover(ground, cover, nodes, price)
                if changed is not None and not waiting(ground, (), changed):
                    cover = changed
                    break
    return cover


def _behind_product(
    ground: Ground, group: CandidateGroup, cover: Sequence[CandidateGroup]
) -> Iterator[int]:
    """Groups without a product that take over what ends one with a product."""
    if group.nodes & ground.contractions:
        others = [other for other in cover if not other.nodes & ground.contractions]
        yield from _passed_on(ground, group, others, _is_cheap)


def _is_cheap(ground: Ground, node: int) -> bool:
    return bool(1 << node & ground.cheap)


def _is_reduction(ground: Ground, node: int) -> bool:
    return isinstance(row(ground.graph.nodes[node]), Reduction)


def _is_only_reduced(ground: Ground, node: int) -> bool:
    """Whether a value is cheap, and all that reads it are reductions."""
    readers = [*bits(ground.users[node])]
    is_inner = bool(1 << node & ground.cheap & ~ground.kept) and bool(readers)
    return is_inner and all(_is_reduction(ground, reader) for reader in readers)


def _passed_on(
    ground: Ground,
    group: CandidateGroup,
    cover: Sequence[CandidateGroup],
    passes: Callable[[Ground, int], bool],
) -> Iterator[int]:
    """Closed groups of what ends a group, from a node on that may pass, with one that reads it."""
    for node in bits(group.nodes):
        if not passes(ground, node):
            continue
        part = group.nodes & (ground.ahead[node] | 1 << node)
        if part == group.nodes or part.bit_count() > MOST_PASSED:
            continue
        for other in cover:
            if other.nodes != group.nodes and ground.around(other.nodes) & part:
                whole = ground.closed(other.nodes | part)
                if whole == other.nodes | part and ground.is_possible(whole):
                    yield whole
