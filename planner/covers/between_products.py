"""Cuts groups between their products, where the parts are cheaper by the model.

A group grows edge by edge, and each step is judged by what stood there before it. The beginning of
a convolution's epilogue by itself is slow, so that a whole block of convolutions may join one
kernel that is slower than its parts in the end. Here the parts are whole: what stands between two
products is one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from ..bitsets import bits
from ..graph.ops import Contraction, Depthwise, is_convolution, row
from .candidates import CandidateGroup, Ground
from .chained import changed_cover
from .pieces import waiting

MOST_STAGES = 8
"""Products one after the other in a group that is looked at."""

Price = Callable[[CandidateGroup], float | None]


def cut_between_products(
    ground: Ground, start: Sequence[CandidateGroup], price: Price
) -> list[CandidateGroup]:
    """The cover with the cheapest parts of each group that has several products in a row."""
    return [part for group in start for part in _cheapest(ground, group, price)]


def with_epilogues(
    ground: Ground, start: Sequence[CandidateGroup], price: Price
) -> list[CandidateGroup]:
    """The cover in which depthwise convolutions that stand alone take over what stands between them
    and a product, from the product's group, where that is cheaper: a few of these operations are
    no faster with the convolution, and no step of the search moves all."""
    cover = list(start)
    for group in start:
        node = group.nodes.bit_length() - 1
        if group.nodes != 1 << node or not isinstance(row(ground.graph.nodes[node]), Depthwise):
            continue
        for other in tuple(cover):
            nodes = _before_product(ground, node, other.nodes)
            if not nodes or ground.closed(nodes) != nodes or not ground.is_possible(nodes):
                continue
            changed = changed_cover(ground, cover, nodes, price)
            if changed is not None and not waiting(ground, (), changed):
                cover = changed
                break
    return cover


def _before_product(ground: Ground, node: int, nodes: int) -> int:
    """A node with what a group computes of it before its products, and what that alone reads; 0
    where the group does not compute a product of it."""
    products = nodes & ground.contractions & ground.ahead[node]
    behind = 0
    for product in bits(products):
        behind |= ground.behind[product]
    found = nodes & ground.ahead[node] & behind & ~products
    for product in bits(products):
        found &= ~ground.ahead[product]
    if not found:
        return 0
    found |= 1 << node
    for each in reversed([*bits(nodes & ~ground.kept)]):
        users = ground.users[each]
        if users and not users & ~found:
            found |= 1 << each
    return found


def _cheapest(ground: Ground, group: CandidateGroup, price: Price) -> Sequence[CandidateGroup]:
    stages = stages_of(ground, group.nodes)
    if group.copies or not 1 < len(stages) <= MOST_STAGES:
        return (group,)
    whole_s = price(group)
    # The best parts of the first stages, as many as the index says.
    best: list[tuple[float, tuple[CandidateGroup, ...]]] = [(0.0, ())]
    for end in range(1, len(stages) + 1):
        ways = ((best[begin], _joined(stages[begin:end])) for begin in range(end))
        best.append(_best_way(ground, group, whole_s, ways, price))
    seconds, parts = best[-1]
    return parts if seconds < (math.inf if whole_s is None else whole_s) else (group,)


def _best_way(
    ground: Ground,
    group: CandidateGroup,
    whole_s: float | None,
    ways: Iterator[tuple[tuple[float, tuple[CandidateGroup, ...]], int]],
    price: Price,
) -> tuple[float, tuple[CandidateGroup, ...]]:
    """The best way to make some first stages: that of fewer stages, with one group more."""
    best: tuple[float, tuple[CandidateGroup, ...]] = (math.inf, ())
    for (before_s, before), nodes in ways:
        if nodes == group.nodes:
            own, own_s = group, whole_s
        elif math.isinf(before_s) or not ground.is_possible(nodes):
            continue
        else:
            own = ground.candidate(nodes)
            if before_s + own.least_s >= best[0]:
                continue
            own_s = price(own)
        if own_s is not None and before_s + own_s < best[0]:
            best = before_s + own_s, (*before, own)
    return best


def stages_of(ground: Ground, nodes: int) -> list[int]:
    """The nodes of a group by the number of products on the longest way to them, themselves
    included. What no product comes before stands with what reads it first."""
    own = ground.graph.nodes
    depth: dict[int, int] = {}
    for node in bits(nodes):
        before = max((depth[source] for source in bits(ground.sources[node] & nodes)), default=0)
        multiplies = isinstance(row(own[node]), Contraction) or is_convolution(own[node])
        depth[node] = before + multiplies
    for node in reversed([*bits(nodes)]):
        if not depth[node]:
            readers = [depth[reader] for reader in bits(ground.users[node] & nodes)]
            depth[node] = min(readers, default=1)
    found = [0] * max(depth.values())
    for node, stage in depth.items():
        found[stage - 1] |= 1 << node
    return found


def _joined(stages: Sequence[int]) -> int:
    found = 0
    for stage in stages:
        found |= stage
    return found
