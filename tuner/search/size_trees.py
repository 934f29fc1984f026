"""Trees over sizes: the few configs of a group that lose least at its anchors, and at which sizes
each of them runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

from ...planner.config import Config, MultipleSplit, SizeSplit, SizeTree

KERNELS = 8
"""Of a group, at most. Of one tree for all sizes each config is two kernels, for multiples of 16
and for others; of two trees each is one, and those for rows that begin anywhere are in both."""

_GAIN = 0.002
"""Gain in time, on average of all anchors, for which another config is kept."""

_WORTH = 0.02
"""Gain in time, over all anchors, for which a tree asks for a size once more."""

Sizes: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AnchorTimes:
    """Times of right configs at anchors. sizes: of each anchor. table: for each, the times as
    multiples of the best there."""

    sizes: Sequence[Sizes]
    table: Sequence[Mapping[Config, float]]

    def tree(self, count: int) -> SizeTree:
        """With so many configs at most."""
        kept = few(self.table, list(self.table[0]), count)
        return tree_of(self.sizes, [{c: times[c] for c in kept} for times in self.table])

    def by_multiples(self, axis: int, of: int) -> SizeTree:
        """A tree for the sizes that are multiples of a number and one for others, which share their
        kernels: those for rows that begin anywhere are for both."""
        both = zip(self.sizes, self.table, strict=True)
        others = [times for each, times in both if each[axis] % of]
        # Most sizes are no multiples, but most that are used are.
        kept = few([*self.table, *others], list(self.table[0]), KERNELS)
        parts: list[SizeTree] = []
        for odd in (False, True):
            own = [place for place, each in enumerate(self.sizes) if bool(each[axis] % of) == odd]
            some = [{c: self.table[i][c] for c in kept if c.anywhere or not odd} for i in own]
            if some and some[0]:
                parts.append(tree_of([self.sizes[i] for i in own], some))
        one, other = parts[0], parts[-1]
        return one if one == other else MultipleSplit(axis, of, one, other)


def _loss(times: Mapping[Config, float], among: Sequence[Config]) -> float:
    return math.log(min(times[c] for c in among))


def few(
    table: Sequence[Mapping[Config, float]], candidates: Sequence[Config], count: int
) -> list[Config]:
    """At most so many configs that lose little beside all. Each is added for what it gains, and
    given up again where another gains more beside those that were added after it."""

    def total(among: Sequence[Config]) -> float:
        return sum(_loss(times, among) for times in table)

    def with_best(kept: Sequence[Config]) -> list[Config]:
        rest = (c for c in candidates if c not in kept)
        return min(([*kept, c] for c in rest), key=total, default=[])

    kept: list[Config] = []
    while len(kept) < count:
        more = with_best(kept)
        for place in range(len(more) - 1):
            other = with_best([*more[:place], *more[place + 1 :]])
            more = other if total(other) < total(more) else more
        if not more or (kept and total(kept) - total(more) < _GAIN * len(table)):
            break
        kept = more
    return kept


def tree_of(sizes: Sequence[Sizes], table: Sequence[Mapping[Config, float]]) -> SizeTree:
    """The tree that loses least over the anchors, where each comparison costs `_WORTH`."""

    @cache
    def best(part: frozenset[int]) -> tuple[float, SizeTree]:
        losses = {c: sum(math.log(table[i][c]) for i in part) for c in table[0]}
        config = min(losses, key=losses.__getitem__)
        found: tuple[float, SizeTree] = losses[config], config
        for axis, most in sorted({(axis, s) for i in part for axis, s in enumerate(sizes[i])}):
            below = frozenset(i for i in part if sizes[i][axis] <= most)
            if below < part:
                (less, one), (more, other) = best(below), best(part - below)
                if less + more + _WORTH < found[0]:
                    found = less + more + _WORTH, SizeSplit(axis, most, one, other)
        return found

    return best(frozenset(range(len(sizes))))[1]
