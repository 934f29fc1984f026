"""Sets of nodes as integers: bit i stands for node i."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def bits(group: int) -> Iterator[int]:
    """The members of a bitset, ascending."""
    while group:
        low = group & -group
        yield low.bit_length() - 1
        group ^= low


def bitset(nodes: Iterable[int]) -> int:
    found = 0
    for node in nodes:
        found |= 1 << node
    return found
