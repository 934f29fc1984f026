"""Two products with a reduction between them, as one group: attention, wherever it is written.

No step of the search leads there: the first product with the softmax alone is not cheaper as one,
nor is the softmax with the second. So the groups between two such products are tried together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from ..bitsets import bits
from ..graph.ops import Cast, Pointwise, Reduction, row
from .candidates import CandidateGroup, Ground
from .pieces import waiting

MOST_NODES = 48
"""Operations of a group that is tried."""


def chained(
    ground: Ground,
    start: Sequence[CandidateGroup],
    price: Callable[[CandidateGroup], float | None],
) -> list[CandidateGroup]:
    """The cover with such groups where they are cheaper than what they replace."""
    cover = list(start)
    for nodes in chains(ground):
        changed = changed_cover(ground, cover, nodes, price)
        if changed is not None and not waiting(ground, (), changed):
            cover = changed
    return cover


def chains(ground: Ground) -> Iterator[int]:
    """Closed groups from one product to the next, a reduction and no other product between."""
    nodes = ground.graph.nodes
    products = ground.contractions
    for last in bits(products):
        for first in bits(ground.behind[last] & products):
            between = ground.ahead[first] & ground.behind[last]
            if between & products:
                continue
            if any(isinstance(row(nodes[n]), Reduction) for n in bits(between)):
                group = ground.closed(1 << first | 1 << last)
                for whole in dict.fromkeys((group | _rounding(ground, last), group)):
                    if whole.bit_count() <= MOST_NODES and ground.is_possible(whole):
                        yield whole


def _rounding(ground: Ground, product: int) -> int:
    """The casts and copies that alone read a product: of one that is rounded to 16 bits at once
    tensor cores may multiply fewer bits."""
    found, last = 0, product
    while (users := ground.users[last]) and not users & (users - 1) and not ground.kept >> last & 1:
        last = users.bit_length() - 1
        if not isinstance(row(ground.graph.nodes[last]), (Cast, Pointwise)):
            break
        if ground.sources[last].bit_count() > 1:
            break
        found |= 1 << last & ground.compute
    return found


def changed_cover(
    ground: Ground,
    cover: Sequence[CandidateGroup],
    nodes: int,
    price: Callable[[CandidateGroup], float | None],
) -> list[CandidateGroup] | None:
    """The cover with this group in place of those it takes from; None where that costs more."""
    touched = [group for group in cover if group.nodes & nodes]
    rests = [group.nodes & ~nodes for group in touched if group.nodes & ~nodes]
    plain = not any(group.copies for group in touched)
    if len(touched) < 2 or not plain or any(ground.closed(rest) != rest for rest in rests):
        return None
    made = [ground.candidate(nodes), *(ground.candidate(rest) for rest in rests)]
    before = sum_of(touched, price)
    if before is None or sum_of(made, price, before) is None:
        return None
    return [*(group for group in cover if group not in touched), *made]


def sum_of(
    groups: Sequence[CandidateGroup],
    price: Callable[[CandidateGroup], float | None],
    below: float = math.inf,
) -> float | None:
    """Seconds of these groups together; None where one has no price, or they take no less than
    `below`. The model is asked as long as they may take less."""
    found, left = 0.0, sum(group.least_s for group in groups)
    for group in groups:
        if found + left >= below:
            return None
        seconds = price(group)
        if seconds is None:
            return None
        found, left = found + seconds, left - group.least_s
    return found if found < below else None
