"""Cuts a graph into pieces that are small enough for the search, and makes covers that can run.

Parts of a graph that no edge joins are pieces anyway. A larger piece is cut where the fewest bytes
pass, between two groups of a known cover: its groups stay whole, so that it remains a cover.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..bitsets import bits
from .candidates import CandidateGroup, Ground

LARGEST = 200
"""Nodes of a piece."""


def pieces(ground: Ground, groups: Sequence[int], largest: int = LARGEST) -> tuple[list[int], int]:
    """Sets of nodes, unions of these groups, of at most `largest` nodes where the groups allow; and
    how many cuts that took."""
    found: list[int] = []
    cuts = 0
    for joined in _connected(ground, groups):
        parts = list(_cut(ground, joined, largest))
        cuts += len(parts) - 1
        found += parts
    return found, cuts


def _connected(ground: Ground, groups: Sequence[int]) -> Iterator[list[int]]:
    """The groups by what edges join, in the order of the graph."""
    left = sorted(groups, key=lambda group: group & -group)
    while left:
        whole, found = left[0], [left[0]]
        rest = left[1:]
        grows = True
        while grows:
            near = ground.around(whole)
            joined = [group for group in rest if group & near]
            grows = bool(joined)
            rest = [group for group in rest if not group & near]
            found += joined
            for group in joined:
                whole |= group
        yield sorted(found, key=int.bit_length)
        left = rest


def _cut(ground: Ground, groups: list[int], largest: int) -> Iterator[int]:
    """Groups in the order of their last nodes, in runs of at most `largest` nodes; of the places
    where a run that is half full may end, that across which the fewest bytes pass."""
    while groups:
        best, least, size, whole = len(groups), -1, 0, 0
        for place, group in enumerate(groups, 1):
            size += group.bit_count()
            if size > largest and place > 1:
                break
            whole |= group
            if size * 2 >= largest and place < len(groups):
                passed = sum(ground.nbytes[n] for n in bits(ground.stored(whole)))
                if least < 0 or passed < least:
                    best, least = place, passed
        else:
            best = len(groups)
        run = 0
        for group in groups[:best]:
            run |= group
        yield run
        groups = groups[best:]


def waiting(
    ground: Ground, others: Sequence[CandidateGroup], chosen: Sequence[CandidateGroup]
) -> list[CandidateGroup]:
    """Those of the chosen candidates that wait for each other, perhaps through other groups and
    operations; none where all can run."""
    units = [(c.nodes, c.writes) for c in (*chosen, *others)]
    giver: dict[int, int] = {}
    for number, (_, writes) in enumerate(units):
        for node in bits(writes):
            giver.setdefault(node, number)
    held = 0
    for nodes, _ in units:
        held |= nodes
    for node in bits(ground.working & ~held):
        giver[node] = len(units)
        units.append((1 << node, 1 << node))
    before = [_givers(ground, nodes, giver) for nodes, _ in units]
    return [chosen[i] for i in _cycle(before) if i < len(chosen)]


def _givers(ground: Ground, nodes: int, giver: dict[int, int]) -> set[int]:
    read = 0
    for node in bits(nodes):
        read |= ground.sources[node]
    return {giver[node] for node in bits(read & ~nodes) if node in giver}


def _cycle(before: Sequence[set[int]]) -> list[int]:
    """The members of one cycle of a graph, given what each waits for."""
    state = [0] * len(before)  # 1: on the path, 2: done
    for root in range(len(before)):
        if state[root]:
            continue
        path, stack = [root], [iter(before[root])]
        state[root] = 1
        while stack:
            step = next(stack[-1], None)
            if step is None:
                state[path.pop()] = 2
                stack.pop()
            elif state[step] == 1:
                return path[path.index(step) :]
            elif state[step] == 0:
                state[step] = 1
                path.append(step)
                stack.append(iter(before[step]))
    return []
