"""Moves a write by index to the group that reads the tensor after it, with what the write stores.

A step that generates text writes a key and a value into its caches, and reads both at once. As one
kernel each program takes what is new from the row itself, and a launch that all of attention waits
for falls away. Groups do not grow along this edge: a write would go to the first operation that
reads the tensor, before that has become attention.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ..bitsets import bits, bitset
from ..graph.ops import IndexedWrite, row
from .candidates import CandidateGroup, Ground
from .chained import chains, changed_cover
from .pieces import waiting

Price = Callable[[CandidateGroup], float | None]


def with_writes(
    ground: Ground, start: Sequence[CandidateGroup], price: Price
) -> list[CandidateGroup]:
    """The cover with such groups where they are cheaper than what they replace, and with what only
    they read."""
    nodes = ground.graph.nodes
    writes = bitset(n for n in bits(ground.compute) if isinstance(row(nodes[n]), IndexedWrite))
    cover = list(start)
    for whole in _chains_with(ground, writes, start) if writes else ():
        cover = _joined(ground, cover, whole, price) or cover
    for write in bits(writes):
        for whole in _with_reader(ground, write, cover):
            found = _joined(ground, cover, whole, price)
            if found is not None:
                cover = found
                break
    return cover


def _joined(
    ground: Ground, cover: Sequence[CandidateGroup], whole: int, price: Price
) -> list[CandidateGroup] | None:
    """The cover with a group in place of those it is made of, and then with groups that nothing
    else reads taken in; None where that costs more."""
    if ground.closed(whole) != whole or not ground.is_possible(whole):
        return None
    found = changed_cover(ground, cover, whole, price)
    if found is None or waiting(ground, (), found):
        return None
    for group in found:
        users = ground.dependences.users_of(group.nodes) & ~group.nodes
        if users and not users & ~whole and not group.nodes & ground.kept:
            more = _joined(ground, found, group.nodes | whole, price)
            if more is not None:
                return more
    return found


def _chains_with(ground: Ground, writes: int, cover: Sequence[CandidateGroup]) -> Iterator[int]:
    """Two products with a reduction between them, together with the groups that write what they
    read: as one, where the products by themselves are no slower apart."""
    for chain in chains(ground):
        whole = chain
        for group in cover:
            if group.nodes & chain and group.nodes & ~chain:
                break
            if ground.dependences.users_of(group.nodes & writes) & chain:
                whole |= group.nodes
        else:
            if whole != chain:
                yield whole


def _with_reader(ground: Ground, write: int, cover: Sequence[CandidateGroup]) -> Iterator[int]:
    """The group that writes, with one that reads what is written."""
    for group in cover:
        if group.nodes & ground.users[write] and not group.nodes >> write & 1:
            yield from (group.nodes | each.nodes for each in cover if each.nodes >> write & 1)
