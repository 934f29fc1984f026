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

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TypeAlias

from ...planner.config import Config, SizeTree
from ...planner.costs.device import DeviceProfile
from ...planner.errors import Refusal
from ...planner.graph.graph import Graph
from ...planner.graph.sizes import ALIGNED, varies
from ...planner.graph.varying import sizes_of
from ...planner.nests.linear_forms import Role
from ...planner.space.space import space_of
from ...planner.tiles.blocks import power_of_two
from ..gate.bucket_edges import at_sizes
from ..trial.outcome import Candidate, Timed, is_transient
from ..workers.lab import Group
from .group_trials import Budget, GroupTrials
from .runoff import SharedSearch
from .size_anchors import NEAR, UNSURE, Anchor, rows_of
from .size_trees import KERNELS, AnchorTimes, Sizes, few

SIZES = (16, 64, 128, 256, 512, 1024, 1536, 2048, 2560, 4096, 5632, 8192)
"""Anchors of one size; those of a group are all combinations, as long as there are few."""

FEW = (32, 512, 8192)
"""Anchors of each size where two vary, (64, 4096) where more do."""

_PAIR = (64, 4096)

LENGTHS, _AROUND = (16, 64, 256, 1024, 2048, 4096, 8192), (32, 2048)
"""Anchors where two or three sizes vary and one of them alone is that of rows which a kernel holds
or loops over: of that size, and of all others together. A tile for rows of 4096 takes 60 times as
long as it has to for rows of 70."""

_UNLIKE = 1.005
"""Times the model's seconds of a multiple of 16, from which other sizes have a tree of their own:
where rows begin anywhere, they are read as well by other configs."""

_OTHER_WAYS = 3
"""Configs that are measured though the model prefers to walk rows in another way."""

_MEASURED = 24
"""Configs that are measured at the anchors."""

_CLOSE = 1.3
"""Times the model's seconds of the best at an anchor, up to which a config is measured there. The
same with other warps is, too: the model ranks numbers of warps less surely than blocks."""

LARGEST = 4 << 30
"""Bytes of all values of a group beyond which it is not measured: its inputs are made several
times."""

_TAKEN = 3
"""Of these, how many are candidates."""

_NEVER = 1e3
"""Times the best, of a config that an anchor cannot have."""


Measure: TypeAlias = Callable[[Anchor, Sequence[Config]], Mapping[Config, float]]
"""Seconds of configs at an anchor, infinite of those that fail; those without time are left out."""


@dataclass(slots=True)
class SizeTrials:
    """Measures configs of a group at other sizes, as trials like all others. When the time is over,
    it tells what is known by then. least_s: seconds from the first question on that there are in
    any case: to choose what is asked takes the host seconds, too."""

    name: str
    shared: SharedSearch
    budget: Budget
    least_s: float = 0.0
    _asked: bool = False

    def __call__(self, anchor: Anchor, configs: Sequence[Config]) -> Mapping[Config, float]:
        if not self._asked:
            self._asked = True
            least = self.budget.clock() + self.least_s
            self.budget = replace(self.budget, until=max(self.budget.until, least))
        kinds = [node.type for node in anchor.graph.nodes if node.type is not None]
        if sum(kind.nbytes for kind in kinds) > LARGEST:
            return {}
        group = Group.of(anchor.graph, f"{self.name} {anchor.sizes}")
        own = self.shared.findings.of(group.key)
        trials = GroupTrials(group, self.shared, own, self.budget, waits=False)
        trials.resume(self.shared.ledger.open(group))
        candidates = {Candidate.generated(config): config for config in configs}
        begun = [
            (candidate, self.shared.lab.compile(group, config))
            for candidate, config in candidates.items()
            if candidate not in own.outcomes
            and not self.budget.is_spent
            and trials.is_ours(candidate)
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
        found = learn.known(Anchor(own, graph, here), None)
        return None if found is None else found.tree(KERNELS // 2)
    known = learn.known(Anchor(own, graph, here, bool(own[axis] % ALIGNED)), axis)
    return None if known is None else known.by_multiples(axis, ALIGNED)


def _deciding(graph: Graph, device: DeviceProfile, count: int) -> int | None:
    """The size that makes the group slowest where 16 does not divide it, among those for which its
    rows then begin anywhere, or which make it slower; None: none does so."""
    middle = [next(iter(sorted(each)[len(each) // 2 :])) for each in _each(count)]
    seconds: dict[int, float] = {}
    anywhere: set[int] = set()
    for axis in (-1, *range(count)):
        sizes = [_beside(n)[0] if a == axis else n for a, n in enumerate(middle)]
        anchor = _anchor(graph, sizes, device)
        usual = None if anchor is None else anchor.space.quick()
        if anchor is not None and usual is not None:
            seconds[axis] = usual.seconds
            anywhere |= {axis} if anchor.has_rows_anywhere else set()
    plain = seconds.pop(-1, math.inf)
    others = {
        axis: taken
        for axis, taken in seconds.items()
        if taken >= _UNLIKE * plain or (axis in anywhere and -1 not in anywhere)
    }
    return max(others, key=others.__getitem__, default=None)


def _beside(size: int) -> tuple[int, ...]:
    """Sizes near a power of two that 16 does not divide: so much less that a tile which holds the
    power of two has room for what lies before the row. Of the largest one less, too: all sizes up
    to it are to run by some kernel."""
    less = max(size - (ALIGNED - 1), ALIGNED // 2 + 1)
    return (less, size - 1) if size == SIZES[-1] else (less,)


@dataclass(frozen=True, slots=True)
class _Times:
    """At an anchor, times as multiples of the best. seconds: as they were measured there, infinite
    of what failed."""

    times: Mapping[Config, float]
    seconds: Mapping[Config, float]


@dataclass(frozen=True, slots=True)
class _Learned:
    """What trees of a group are learned from. length: see `_length`."""

    graph: Graph
    config: Config
    device: DeviceProfile
    measure: Measure | None
    length: int | None

    def known(self, own: Anchor, axis: int | None) -> AnchorTimes | None:
        """Of the anchors, and of the sizes of the tune where they belong to them. axis: the size
        that decides where rows begin; at some anchors it is a multiple of 16, at others not."""
        anchors = self._anchors(axis)
        # Of the sizes of the tune something is known in any case.
        anchors = [*(a for a in anchors if a.sizes != own.sizes), own]
        odd = [a for a in anchors if a.odd]
        others = [a for a in anchors if not a.odd]
        known = self._at(odd, own, axis, ()) if odd else [_Times({}, {})]
        # The best kernels for all lengths are looked at where kernels know more, too.
        right = [c for c in known[0].times if _is_right([each.seconds for each in known], c)]
        wide = few([each.times for each in known], right, KERNELS - 1)
        known = [*known[: len(odd)], *(self._at(others, own, axis, wide) if others else ())]
        looked_at = dict.fromkeys(c for each in known for c in each.times)
        kept = [c for c in looked_at if _is_right([each.seconds for each in known], c)]
        if not kept:
            return None
        full = [{c: each.times.get(c, _NEVER) for c in kept} for each in known]
        return AnchorTimes([a.sizes for a in (*odd, *others)], full)

    def _at(
        self, anchors: Sequence[Anchor], own: Anchor, axis: int | None, wide: Sequence[Config]
    ) -> list[_Times]:
        """Of what is looked at there: the model's best and what is near, and these others."""
        candidates = {_candidate(self.config, own): None} if own in anchors else {}
        together: list[Config] = []
        for anchor in anchors:
            candidates |= {_candidate(each, anchor): None for each in anchor.best(_TAKEN)}
            together += [_candidate(each, anchor) for each in anchor.together()]
        candidates |= dict.fromkeys([*together, *wide])
        table = [_modelled(anchor, list(candidates)) for anchor in anchors]

        @cache
        def odd(place: int) -> Anchor | None:
            return _beside_powers(anchors[place], axis, self.device)

        def fitting(some: Iterable[Config]) -> list[Config]:
            return [c for c in some if _is_for_odd_sizes(c, table, odd)]

        kept = fitting(few(table, list(candidates), KERNELS))
        if self.measure is None:
            own_times = [{c: times[c] for c in kept} for times in table]
            return [_Times(times, times) for times in own_times]
        more = list(dict.fromkeys([*_with_own_best(kept, table), *together, *wide]))
        more = fitting(_with_other_ways(more, candidates, table))
        more = _with_other_warps(more, anchors)
        measured = {
            anchor.sizes: _measured(anchor, _modelled(anchor, more), self.measure)
            for anchor in _coarse_first(anchors)
        }
        return [measured[anchor.sizes] for anchor in anchors]

    def _anchors(self, axis: int | None) -> list[Anchor]:
        found, count = list[Anchor](), len(sizes_of(self.graph))
        for odd in (False,) if axis is None else (True, False):
            for sizes in _anchored(count) if self.length is None else _along(self.length, count):
                for size in _beside(sizes[axis]) if odd and axis is not None else (None,):
                    moved = [n if size is None or a != axis else size for a, n in enumerate(sizes)]
                    anchor = _anchor(self.graph, moved, self.device, odd)
                    found += [] if anchor is None else [anchor]
        return found


def _coarse_first(anchors: Sequence[Anchor]) -> Iterator[Anchor]:
    """The largest, the smallest, then those in the middle of what was had before: if the time ends,
    each size has one near that was measured; and what is right at the largest is right at all."""
    ordered = sorted(anchors, key=lambda anchor: -math.prod(anchor.sizes))
    yield from ordered[:1]
    yield from ordered[1:][-1:]
    spans = [(0, len(ordered) - 1)]
    for low, high in spans:
        middle = (low + high) // 2
        if low < middle:
            yield ordered[middle]
            spans += [(low, middle), (middle, high)]


def _candidate(config: Config, anchor: Anchor) -> Config:
    """The config as it is looked at where it was chosen; where rows begin anywhere, for all
    lengths."""
    return replace(_reaching(config, anchor), anywhere=anchor.odd)


def _with_own_best(
    configs: Sequence[Config], table: Sequence[Mapping[Config, float]]
) -> list[Config]:
    """The configs, and the model's best of each anchor: how much more others take there, only a
    measurement can tell."""
    return list(dict.fromkeys([*configs, *(min(times, key=times.__getitem__) for times in table)]))


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
    """The configs, and the same with twice, half or four times the warps, where the model thinks
    that close to the best of some anchor."""
    found = list(configs)
    least = {a.sizes: min((a.modelled(c) for c in configs), default=math.inf) for a in anchors}
    for config in configs:
        for warps in (2 * config.num_warps, config.num_warps // 2, 4 * config.num_warps):
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
    known = (c for c in candidates if c.anywhere or not anchor.odd)
    own = {c: anchor.modelled(c) for c in known if _fits(c, anchor)}
    best = min(own.values(), default=math.inf)
    if math.isinf(best):
        return dict.fromkeys(candidates, 1.0)  # nothing is known of it
    return {c: min(_NEVER, own.get(c, math.inf) / best) for c in candidates}


def _beside_powers(anchor: Anchor, axis: int | None, device: DeviceProfile) -> Anchor | None:
    """The anchor at sizes that no power of two divides; axis: a size that is none as it is."""
    sizes = [n - (a != axis) for a, n in enumerate(anchor.sizes)]
    return _anchor(anchor.graph, sizes, device, anchor.odd)


def _is_for_odd_sizes(
    config: Config,
    table: Sequence[Mapping[Config, float]],
    odd: Callable[[int], Anchor | None],
) -> bool:
    """Whether the group can run by a config at sizes that no power of two divides, too: a reduction
    cannot be cut into equal parts there. odd: of an anchor by its place the one beside it."""
    beside = odd(min(range(len(table)), key=lambda place: table[place][config]))
    return beside is not None and beside.modelled(config) < math.inf


def _close(config: Config, anchor: Anchor) -> float:
    """Times the best there, by the model, up to which a config is measured."""
    if not config.anywhere:
        return _CLOSE
    return UNSURE if anchor.odd and rows_of(config) > 1 else _CLOSE if anchor.odd else NEAR


def _measured(anchor: Anchor, times: Mapping[Config, float], measure: Measure) -> _Times:
    """The times with what is measured there."""
    least = min(times.values(), default=0.0)
    found = measure(anchor, [c for c in times if times[c] <= _close(c, anchor) * least])
    right = {c: seconds for c, seconds in found.items() if seconds < math.inf}
    if not right:
        return _Times(times, found)
    least = min(right.values())
    behind = max(right.values()) / least
    # What was not measured is by the model no better than what was.
    others = {c: t if t >= _NEVER else max(behind, t) for c, t in times.items()}
    failed = {c: _NEVER for c in found if c not in right}
    known = others | failed | {c: seconds / least for c, seconds in right.items()}
    return _Times(known, found)


def _is_right(found: Sequence[Mapping[Config, float]], config: Config) -> bool:
    """Whether a config was measured at some anchor and failed at none."""
    own = [seconds[config] for seconds in found if config in seconds]
    return bool(own) and all(seconds < math.inf for seconds in own)
