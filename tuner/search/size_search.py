"""Configs of a group for all sizes: a small tree over the sizes, learned at a few of them.

The group is looked at with its varying sizes at *anchors*, which are powers of two. At each of them
the cost model names its best configs; those are measured there, where there is a device. A few
configs that are together nearly as good as the best of each anchor are kept, and a tree of
comparisons of single sizes chooses among them. A tile that holds a whole axis is made as large as
the largest size of its branch, so that one kernel serves all sizes of the branch.

Where a size decides whether rows begin at the start of a vector, sizes that are multiples of 16 and
others have a tree each: blocks of rows that begin anywhere have lanes before the row.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TypeAlias

from ...planner.config import Config, MultipleSplit, SizeSplit, SizeTree
from ...planner.costs.cost import Cost
from ...planner.costs.device import DeviceProfile
from ...planner.errors import Refusal
from ...planner.graph.graph import Graph
from ...planner.graph.sizes import ALIGNED, varies
from ...planner.graph.varying import sizes_of
from ...planner.nests.linear_forms import Role
from ...planner.space.space import Space, space_of
from ...planner.tiles.blocks import power_of_two
from ..gate.bucket_edges import at_sizes
from ..trial.outcome import Candidate, Timed, is_transient
from ..workers.lab import Group
from .group_trials import Budget, GroupTrials
from .runoff import SharedSearch

SIZES = (16, 64, 128, 512, 1024, 2048, 3072, 4096, 6144, 8192)
"""Anchors of one size; those of a group are all combinations, as long as there are few."""

FEW = (32, 512, 8192)
"""Anchors of each size where two vary, (64, 4096) where more do."""

_PAIR = (64, 4096)

LENGTHS, _AROUND = (16, 64, 256, 1024, 2048, 4096, 8192), (32, 2048)
"""Anchors where two or three sizes vary and one of them alone is that of rows which a kernel holds
or loops over: of that size, and of all others together. A tile for rows of 4096 takes 60 times as
long as it has to for rows of 70."""

KERNELS = 4
"""Configs of a tree at most. Of one tree for all sizes each is two kernels, for multiples of 16 and
for others; of two trees each is one."""

_UNLIKE = 1.005
"""Times the model's seconds of a multiple of 16, from which other sizes have a tree of their own:
where rows begin anywhere, they are read as well by other configs."""

_LOOKED_AT = 48
"""Configs of each layout that the model judges at an anchor: the usual ones."""

_TILED, _TILES = 3000, 6
"""Configs of each layout of matrix products among which it looks for the best tiles and numbers of
warps, and how many of these it keeps."""

_NEAR = 1.7
"""Times the seconds of the best layout's best usual config, up to which a layout is looked at."""

_OTHER_WAYS = 3
"""Configs that are measured though the model prefers to walk rows in another way."""

_MEASURED = 10
"""Configs that are measured at the anchors."""

_CLOSE = 1.3
"""Times the model's seconds of the best at an anchor, up to which a config is measured there. The
same with other warps is, too: the model ranks numbers of warps less surely than blocks."""

LARGEST = 4 << 30
"""Bytes of all values of a group beyond which it is not measured: its inputs are made several
times."""

_TAKEN = 3
"""Of these, how many are candidates."""

_GAIN = 0.005
"""Gain in time, on average of all anchors, for which another config is kept."""

_WORTH = 0.02
"""Gain in time, over all anchors, for which a tree asks for a size once more."""

_NEVER = 1e3
"""Times the best, of a config that an anchor cannot have."""

Sizes: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Anchor:
    """A group at some sizes, with what is known of configs there."""

    sizes: Sizes
    graph: Graph
    space: Space
    odd: bool = False
    """Whether rows begin anywhere."""

    def modelled(self, config: Config) -> float:
        cost = self.space.judge(config)
        return cost.seconds if isinstance(cost, Cost) else math.inf

    def best(self, count: int) -> list[Config]:
        """The model's best configs among the usual ones."""
        judged = [(self.modelled(config), str(config), config) for config in self._usual()]
        best = sorted(each for each in judged if each[0] < math.inf)
        return [config for _, _, config in best[:count]]

    def _usual(self) -> Iterator[Config]:
        """Of matrix products all configs of a few tiles, those that are fastest when they are run
        in the first way that is possible: a tile can be run in dozens of ways."""
        near = self.space.near(_NEAR)
        if all(dimension.name != "group" for dimension in self.space.dimensions):
            yield from self.space.enumerate(_LOOKED_AT * len(near), near)
            return
        tiles: dict[object, list[Config]] = {}
        for config in self.space.enumerate(_TILED * len(near), near):
            tile = config.layout, config.blocks, config.num_warps
            tiles.setdefault(tile, []).append(config)

        def first(ways: Sequence[Config]) -> float:
            return next((s for s in map(self.modelled, ways) if s < math.inf), math.inf)

        for ways in heapq.nsmallest(_TILES, tiles.values(), key=first):
            yield from ways


Measure: TypeAlias = Callable[[Anchor, Sequence[Config]], Mapping[Config, float]]
"""Seconds of configs at an anchor, infinite of those that fail; those without time are left out."""


@dataclass(frozen=True, slots=True)
class SizeTrials:
    """Measures configs of a group at other sizes, as trials like all others."""

    name: str
    shared: SharedSearch
    budget: Budget

    def __call__(self, anchor: Anchor, configs: Sequence[Config]) -> Mapping[Config, float]:
        kinds = [node.type for node in anchor.graph.nodes if node.type is not None]
        if self.budget.is_spent or sum(kind.nbytes for kind in kinds) > LARGEST:
            return {}
        group = Group.of(anchor.graph, f"{self.name} {anchor.sizes}")
        own = self.shared.findings.of(group.key)
        trials = GroupTrials(group, self.shared, own, self.budget, waits=False)
        trials.resume(self.shared.ledger.open(group))
        candidates = {Candidate.generated(config): config for config in configs}
        begun = [
            (candidate, self.shared.lab.compile(group, config))
            for candidate, config in candidates.items()
            if candidate not in own.outcomes and trials.is_ours(candidate)
        ]
        for candidate, pending in begun:
            cost = anchor.space.judge(candidates[candidate])
            if self.budget.is_spent or isinstance(cost, Refusal):
                pending.cancel()
                continue
            trials.measure(candidate, cost, pending.result(), _nothing)
        told = {config: own.outcomes.get(each) for each, config in candidates.items()}
        return {
            config: outcome.seconds if isinstance(outcome, Timed) else math.inf
            for config, outcome in told.items()
            if outcome is not None and not is_transient(outcome)
        }


def _nothing() -> None:
    """What else to do while the device is at work."""


def learned(
    graph: Graph, config: Config, device: DeviceProfile, measure: Measure | None = None
) -> SizeTree | None:
    """The tree of a group that runs by this config at the sizes of its graph; None where nothing
    varies, where it is not known how its numbers follow from its sizes, or no config is right."""
    own, here = sizes_of(graph), space_of(graph, device)
    if isinstance(here, Refusal):
        return None
    learn = _Learned(graph, config, device, measure, _length(graph, device))
    axis = _deciding(graph, device, len(own))
    if axis is None:
        return learn.tree(Anchor(own, graph, here), None, False)
    is_odd = bool(own[axis] % ALIGNED)
    at = Anchor(own, graph, here, is_odd)
    trees: dict[bool, SizeTree | None] = {}
    for odd in (not is_odd, is_odd):  # Of the sizes of the tune something is known in any case.
        trees[odd] = learn.tree(at if odd == is_odd else None, axis, odd)
    multiples, others = trees[False], trees[True]
    if multiples is None or others is None or multiples == others:
        return multiples or others
    return MultipleSplit(axis, ALIGNED, multiples, others)


def _deciding(graph: Graph, device: DeviceProfile, count: int) -> int | None:
    """The size that makes the group slowest where 16 does not divide it; None: none does so."""
    middle = [next(iter(sorted(each)[len(each) // 2 :])) for each in _each(count)]
    seconds: dict[int, float] = {}
    for axis in (-1, *range(count)):
        sizes = [_beside(n)[0] if a == axis else n for a, n in enumerate(middle)]
        anchor = _anchor(graph, sizes, device)
        usual = None if anchor is None else anchor.space.quick()
        if usual is not None:
            seconds[axis] = usual.seconds
    plain = seconds.pop(-1, math.inf)
    slowest = max(seconds, key=seconds.__getitem__, default=None)
    return None if slowest is None or seconds[slowest] < _UNLIKE * plain else slowest


def _beside(size: int) -> tuple[int, ...]:
    """Sizes near a power of two that 16 does not divide: so much less that a tile which holds the
    power of two has room for what lies before the row. Of the largest one less, too: all sizes up
    to it are to run by some kernel."""
    less = max(size - (ALIGNED - 1), ALIGNED // 2 + 1)
    return (less, size - 1) if size == SIZES[-1] else (less,)


@dataclass(frozen=True, slots=True)
class _Learned:
    """What trees of a group are learned from. length: see `_length`."""

    graph: Graph
    config: Config
    device: DeviceProfile
    measure: Measure | None
    length: int | None

    def tree(self, own: Anchor | None, axis: int | None, odd: bool) -> SizeTree | None:
        """A tree over the anchors and the sizes of the tune, where they belong to them. axis: the
        size that is a multiple of 16 at all anchors, or at none where they are odd."""
        device, anchors = self.device, self._anchors(axis, odd)
        if own is not None:
            anchors = [*(a for a in anchors if a.sizes != own.sizes), own]
        if not anchors:
            return None
        candidates = {} if own is None else {_reaching(self.config, own): None}
        for anchor in anchors:
            candidates |= {_reaching(each, anchor): None for each in anchor.best(_TAKEN)}
        table = [_modelled(anchor, list(candidates)) for anchor in anchors]
        kept = _few(table, list(candidates), KERNELS)
        kept = [c for c in kept if _is_for_odd_sizes(c, axis, anchors, table, device)]
        if self.measure is not None:
            more = _with_other_ways(kept, candidates, table)
            more = [c for c in more if _is_for_odd_sizes(c, axis, anchors, table, device)]
            more = _with_other_warps(more, anchors)
            table = [_modelled(anchor, more) for anchor in anchors]
            pairs = zip(anchors, table, strict=True)
            timed = [_measured(anchor, times, self.measure) for anchor, times in pairs]
            kept = [c for c in more if _is_right([found for found, _ in timed], c)]
            table = [times for _, times in timed]
            kept = _few([{c: times[c] for c in kept} for times in table], kept, KERNELS)
        if not kept:
            return None
        return _tree([a.sizes for a in anchors], [{c: times[c] for c in kept} for times in table])

    def _anchors(self, axis: int | None, odd: bool) -> list[Anchor]:
        found, count = [], len(sizes_of(self.graph))
        for sizes in _anchored(count) if self.length is None else _along(self.length, count):
            beside = _beside(sizes[axis]) if odd and axis is not None else (None,)
            for size in beside:
                moved = [n if size is None or a != axis else size for a, n in enumerate(sizes)]
                anchor = _anchor(self.graph, moved, self.device, odd)
                found += [] if anchor is None else [anchor]
        return found


def _with_other_ways(
    configs: Sequence[Config],
    candidates: Iterable[Config],
    table: Sequence[Mapping[Config, float]],
) -> list[Config]:
    """The configs, and for each anchor the best candidate that walks its rows in another way (holds
    them, or loops) than the best of these, if the model thinks it close: of lanes beyond the end
    of a row it knows less surely what they cost."""
    others: dict[Config, float] = {}
    for times in table:
        best = min(configs, key=times.__getitem__, default=None)
        if best is not None:
            unlike = (c for c in candidates if c.layout.holds != best.layout.holds)
            other = min(unlike, key=times.__getitem__, default=best)
            if times[other] <= _CLOSE * times[best]:
                others[other] = min(times[other], others.get(other, math.inf))
    nearest = sorted((c for c in others if c not in configs), key=others.__getitem__)
    return [*configs, *nearest[:_OTHER_WAYS]]


def _with_other_warps(configs: Sequence[Config], anchors: Sequence[Anchor]) -> list[Config]:
    """The configs, and the same with twice or half the warps that the model thinks close to the
    best of some anchor."""
    found = list(configs)
    least = {a.sizes: min((a.modelled(c) for c in configs), default=math.inf) for a in anchors}
    for config in configs:
        for warps in (2 * config.num_warps, config.num_warps // 2):
            other = replace(config, num_warps=max(1, warps))
            close = (
                a.modelled(other) <= _CLOSE * least[a.sizes] for a in anchors if _fits(other, a)
            )
            if other not in found and len(found) < _MEASURED and any(close):
                found.append(other)
    return found


def _each(count: int) -> list[tuple[int, ...]]:
    """The anchors of each of so many sizes; of more than three there are none."""
    each = SIZES if count == 1 else FEW if count == 2 else _PAIR
    return [each] * count if count <= 3 else []


def _anchored(count: int) -> Iterator[Sizes]:
    each = _each(count)
    return itertools.product(*each) if each else iter(())


def _along(length: int, count: int) -> Iterator[Sizes]:
    """Anchors where the size with this number is the length of rows."""
    for size, others in itertools.product(LENGTHS, _AROUND):
        yield tuple(size if axis == length else others for axis in range(count))


def _length(graph: Graph, device: DeviceProfile) -> int | None:
    """The only size on which axes depend that some layout holds or loops over; None where there is
    none, or there are several, and unless two or three sizes vary."""
    middle = [_PAIR[0]] * len(sizes_of(graph))
    if not 1 < len(middle) <= 3:
        return None
    before = _walked(graph, middle, device)
    moved = (
        _walked(graph, [n * (1 + (a == axis)) for a, n in enumerate(middle)], device)
        for axis in range(len(middle))
    )
    found = [axis for axis, after in enumerate(moved) if after != before]
    return found[0] if len(found) == 1 else None


def _walked(graph: Graph, sizes: Sequence[int], device: DeviceProfile) -> list[int]:
    """Extents of axes that do not lie on the grid, of all layouts."""
    anchor = _anchor(graph, sizes, device)
    schedules = () if anchor is None else anchor.space.schedules.values()
    return [
        int(axis.extent)
        for schedule in schedules
        for kernel in schedule.kernels
        for axis in kernel.nest.axes
        if axis.role is not Role.GRID
    ]


def _anchor(
    graph: Graph, sizes: Sequence[int], device: DeviceProfile, odd: bool = False
) -> Anchor | None:
    moved = at_sizes(graph, sizes)
    if moved is None:
        return None
    space = space_of(moved, device)
    return None if isinstance(space, Refusal) else Anchor(tuple(sizes), moved, space, odd)


def _reaching(config: Config, anchor: Anchor) -> Config:
    """The config with a tile for each varying axis that it holds, as large as the axis is here."""
    schedule = anchor.space.schedules.get(config.layout)
    if schedule is None:
        return config
    before = ALIGNED - 1 if anchor.odd else 0
    held = {
        axis.name: power_of_two(axis.extent + before)
        for kernel in schedule.kernels
        for axis in kernel.nest.axes
        if axis.role is Role.HELD and varies(axis.extent)
    }
    return replace(config, blocks=tuple(sorted({**dict(config.blocks), **held}.items())))


def _fits(config: Config, anchor: Anchor) -> bool:
    """Whether the kernel of the config is the same at these sizes as where it was chosen."""
    return _reaching(config, anchor).blocks == config.blocks or all(
        size <= dict(config.blocks).get(name, 0)
        for name, size in _reaching(replace(config, blocks=()), anchor).blocks
    )


def _modelled(anchor: Anchor, candidates: Sequence[Config]) -> dict[Config, float]:
    """Each config's time at an anchor as a multiple of the best, by the model."""
    own = {c: anchor.modelled(c) for c in candidates if _fits(c, anchor)}
    best = min(own.values(), default=math.inf)
    if math.isinf(best):
        return dict.fromkeys(candidates, 1.0)  # nothing is known of it
    return {c: min(_NEVER, own.get(c, math.inf) / best) for c in candidates}


def _is_for_odd_sizes(
    config: Config,
    axis: int | None,
    anchors: Sequence[Anchor],
    table: Sequence[Mapping[Config, float]],
    device: DeviceProfile,
) -> bool:
    """Whether the group can run by a config at sizes that no power of two divides, too: a reduction
    cannot be cut into equal parts there. axis: a size of which that is known."""
    best = min(range(len(anchors)), key=lambda place: table[place][config])
    sizes = [n - (a != axis) for a, n in enumerate(anchors[best].sizes)]
    odd = _anchor(anchors[best].graph, sizes, device)
    return odd is not None and odd.modelled(config) < math.inf


def _measured(
    anchor: Anchor, times: Mapping[Config, float], measure: Measure
) -> tuple[Mapping[Config, float], dict[Config, float]]:
    """What was measured there, and the times with it."""
    close = _CLOSE * min(times.values(), default=0.0)
    found = measure(anchor, [c for c in times if times[c] <= close])
    right = {c: seconds for c, seconds in found.items() if seconds < math.inf}
    if not right:
        return found, dict(times)
    least = min(right.values())
    behind = max(right.values()) / least
    # What was not measured is by the model no better than what was.
    others = {c: t if t >= _NEVER else max(behind, t) for c, t in times.items()}
    failed = {c: _NEVER for c in found if c not in right}
    return found, others | failed | {c: seconds / least for c, seconds in right.items()}


def _is_right(found: Sequence[Mapping[Config, float]], config: Config) -> bool:
    """Whether a config was measured at some anchor and failed at none."""
    own = [seconds[config] for seconds in found if config in seconds]
    return bool(own) and all(seconds < math.inf for seconds in own)


def _loss(times: Mapping[Config, float], among: Sequence[Config]) -> float:
    return math.log(min(times[c] for c in among))


def _few(
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


def _tree(sizes: Sequence[Sizes], table: Sequence[Mapping[Config, float]]) -> SizeTree:
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
