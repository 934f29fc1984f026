"""The search space of one group, as data: dimensions, and the model's judgement of each point."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..config import NATURAL, Config, Layout
from ..costs.cost import Cost, estimate, floor_s, total
from ..costs.device import DeviceProfile
from ..costs.meeting import meets_in_turns
from ..costs.tile_cache import placed
from ..costs.work import spill_bytes
from ..errors import Refusal, Refused
from ..graph.dtypes import itemsize
from ..graph.graph import Graph
from ..memo import by_identity
from ..nests.group_nests import Schedule
from ..nests.linear_forms import TileAxis
from ..nests.nest import Nest
from ..tiles.blocks import power_of_two
from ..tiles.passes.assign_programs import tiles_in_all
from ..values.values import Fold
from .dimensions import (
    DOT_STAGES,
    EVICTIONS,
    GROUPS,
    RESIDENT,
    STAGES,
    STREAM_STAGES,
    WIDENED,
    Dimension,
    ParameterValue,
    dimensions_of,
)
from .layouts import has_many_folds, schedules_of
from .limits import beyond, too_large
from .neighbours import beside, in_step, traded
from .points import (
    dot_sides,
    loose,
    points,
    streamed_axes,
    walking_points,
)

_Judged = tuple[Config, Cost]

MOST_SPILLED = 512  # Bytes a thread, from which a kernel is hopeless.
_ENUMERATED = 3000
_LOOKED_AT = 48  # Configs from the best of which one is looked for without measuring,
_PRODUCTS_LOOKED_AT = 800  # and of products, among which it is chosen.
_CLEARLY = 0.99  # A neighbour's share of the seconds from which it is taken.
_STARTS = 3  # Layouts whose best config is a start.
_QUICK = 6  # Configs of a layout that stand for it where groups are compared.
_FEW = 8 * _QUICK  # Configs of a layout among which these are found.
_STREAM_WARPS = (4, 8, 16)  # Of those where rows are multiplied without an mma.
_TRIED = 32  # Points of a later kernel of a split that the model compares,
_VARIED = 3  # the best of them that are tried with the first kernel's
_FIRST = 40  # first points.
_HOPELESS = 2.0  # Times the seconds of a usual config: the model errs by less.
_CATCHES_UP = 0.8  # Of the seconds, what a step leaves of a layout that is so far behind.
_NEAR = 1.7  # Times the seconds of the best: classes of configs beyond are not seeds.
_AHEAD = 16 * 1024  # Bytes of a tile from which it is worth loading while the last is worked on.
_NOISE_S = 10e-6  # What the model does not tell apart in kernels that take no time.


@dataclass(frozen=True, slots=True)
class Space:
    """`schedules` holds the kernels of every layout the group has; `refusals` why it lacks the
    others. Configs that the model puts above `hopeless_s` seconds never reach the compiler. usual:
    what `quick` gives, where it is known."""

    device: DeviceProfile
    schedules: Mapping[Layout, Schedule]
    refusals: Mapping[Layout, Refusal]
    dimensions: tuple[Dimension, ...]
    group: Graph
    hopeless_s: float = math.inf
    usual: _Judged | None = None
    _estimates: dict[object, Cost] = field(default_factory=dict, repr=False, compare=False)
    """Of kernels, by what of a config is theirs: those of a split share all but its blocks."""

    @property
    def has_descriptors(self) -> bool:
        return any(d.name == "access" for d in self.dimensions)

    def floor_s(self) -> float:
        """Seconds that no config can beat: compulsory traffic at full bandwidth."""
        return floor_s(self.group, self.device)

    def config(self, choice: Mapping[str, Any]) -> Config:
        """The config of a choice by dimension name; dimensions its layout lacks are ignored."""
        layout = next(layout for layout in self.schedules if layout.name == choice["layout"])
        blocks = [(axis.name, int(choice[axis.name])) for axis in _tiled(self.schedules[layout])]
        return Config(
            tuple(sorted(blocks)),
            num_warps=int(choice["num_warps"]),
            num_stages=self._stages(layout, choice),
            tiling=layout.tiling,
            reduction=layout.reduction,
            split=layout.split,
            eviction=choice["eviction"],
            group=int(choice.get("group", 1)),
            # Triton runs two nested loops as one, not three.
            programs=0 if layout.is_nested else int(choice.get("programs", 0)),
            flatten=bool(choice.get("flatten", False)) and layout.is_nested,
            access=choice.get("access", "pointer"),
            subtiles=int(choice.get("subtiles", 1)),
            widen=int(choice.get("widen", 1)) if layout.loops_once else 1,
        )

    def _stages(self, layout: Layout, choice: Mapping[str, Any]) -> int:
        """Of a loop; what is held has none unless its programs walk over several tiles."""
        if not layout.holds:
            return int(choice["num_stages"])
        return STAGES[-1] if choice.get("programs", 0) and self._has_tiles_ahead else 1

    @property
    def _has_tiles_ahead(self) -> bool:
        return not any(d.name == "group" for d in self.dimensions)

    def choice(self, config: Config) -> dict[str, ParameterValue]:
        """The choice that gives a config; inverse of `config`."""
        return {
            "layout": config.layout.name,
            **dict(config.blocks),
            "num_warps": config.num_warps,
            "num_stages": config.num_stages,
            "eviction": config.eviction,
            "group": config.group,
            "programs": config.programs,
            "flatten": config.flatten,
            "access": config.access,
            "subtiles": config.subtiles,
            "widen": config.widen,
        }

    def judge(self, config: Config) -> Cost | Refusal:
        """The predicted cost, or why the config never reaches the compiler."""
        layout = config.layout
        if layout not in self.schedules:
            known = self.refusals.get(layout)
            return known or Refusal("layout", f"the group has no layout {layout.name}")
        nests = [kernel.nest for kernel in self.schedules[layout].kernels]
        try:
            refusal = beyond(nests, config, self.device)
            if refusal is not None:
                return refusal
            # Known before the rest of a cost, which takes longer to work out.
            spilled = max(spill_bytes(nest, config) for nest in nests)
            if spilled > MOST_SPILLED:
                return Refusal("spills", f"about {spilled} bytes a thread would spill")
            cost = total([self._estimated(nest, config) for nest in nests])
        except Refused as refused:
            return refused.refusal
        if cost.seconds > self.hopeless_s:
            return Refusal("slow", f"the cost model expects {cost.seconds * 1e6:.0f} us")
        return cost

    def _estimated(self, nest: Nest, config: Config) -> Cost:
        """The cost of one kernel of a layout. Raises Refused when the config does not fit it."""
        names = {axis.name for axis in nest.axes}
        own = tuple(block for block in config.blocks if block[0] in names)
        part = config if len(own) == len(config.blocks) else replace(config, blocks=own)
        key = (id(nest), part)
        if key not in self._estimates:
            self._estimates[key] = estimate(nest, config, self.device)
        return self._estimates[key]

    def quick(self) -> Cost | None:
        """The model's cost of the best of a few usual configs: enough to compare groups."""
        best = self._best_usual()
        return best[1] if best else None

    def _best_usual(self) -> _Judged | None:
        if self.usual is not None:
            return self.usual
        return min(self._quick(self.schedules, {}).values(), key=_by_seconds, default=None)

    def _quick(
        self, layouts: Iterable[Layout], known: dict[Config, Cost | Refusal]
    ) -> dict[Layout, _Judged]:
        """The best of a few usual configs of each of these layouts that has one."""
        usual = {layout: list(self._usual(layout, known)) for layout in layouts}
        best = {layout: min(some, key=_by_seconds) for layout, some in usual.items() if some}
        least_s = min((cost.seconds for _, cost in best.values()), default=0.0)
        return {layout: self._in_step(one, least_s) for layout, one in best.items()}

    def _in_step(self, found: _Judged, least_s: float) -> _Judged:
        """A loop over rows by larger blocks with as many more warps, or by smaller ones, as long as
        that is clearly better. Of larger blocks fewer rows are under way, so that L2 still has what
        a later sweep reads again; of smaller ones more hide what a program waits for. least_s: of
        the best layout so far; of one that is far behind, a step has to gain more."""
        config = found[0]
        if not config.layout.loops_once or not self._is_open(config):
            return found
        limits = self._limits(config.layout)
        for factor in (2, 0.5):
            while others := _sorted(self, in_step(found[0], limits, factor)):
                before_s, after_s = found[1].seconds, others[0][1].seconds
                if after_s > _CLEARLY * before_s:
                    break
                found = others[0]
                if after_s > _HOPELESS * least_s and after_s > _CATCHES_UP * before_s:
                    break
        return found

    def _usual(self, layout: Layout, known: dict[Config, Cost | Refusal]) -> Iterator[_Judged]:
        """The first few blocks and warps of a layout, each run in the first way in which it can be,
        with their costs; of a kernel of many folds half as many. known: what a space without a
        limit has judged."""
        seen: dict[tuple[object, int], None] = {}
        part = 2 if has_many_folds(self.schedules[layout].kernels[0].nest) else 1
        for config in itertools.islice(self._of_layout(layout, few=True), _FEW // part):
            point = (config.blocks, config.num_warps)
            if point not in seen:
                if len(seen) == _QUICK // part:
                    return
                cost = self._judged(config, known)
                if isinstance(cost, Cost) and not self._is_hopeless(cost):
                    seen[point] = None
                    yield config, cost

    def _is_hopeless(self, cost: Cost | Refusal) -> bool:
        """Whether a config that a space without a limit has judged is above this one's."""
        return isinstance(cost, Cost) and cost.seconds > self.hopeless_s

    def _walked(self, config: Config) -> Iterator[_Judged]:
        """A product by programs that walk over several of its tiles, run else like a usual
        config, with its costs."""
        usual = walking_points(self.schedules[config.layout].kernels[0].nest)
        for (warps, blocks), way in zip(usual, self._walks(config.access), strict=False):
            both = tuple(sorted((dict(config.blocks) | blocks).items()))
            walking = replace(config, blocks=both, num_warps=warps, **way)
            cost = self.judge(walking)
            if isinstance(cost, Cost):
                yield walking, cost

    def ranked(self, limit: int) -> list[tuple[Config, Cost]]:
        """The model's best configs, best first."""
        return _ranked(self)[:limit]

    def top(self) -> _Judged | None:
        """The model's best config. Without products: from the best of the first configs of the best
        layouts on downhill, for of many axes the first ones are few of all."""
        known: dict[Config, Cost | Refusal] = {}
        best = self._quick(self.schedules, known)
        is_open = any(map(self._is_open, (config for config, _ in best.values())))
        for config in self.enumerate(_LOOKED_AT if is_open else _PRODUCTS_LOOKED_AT):
            cost = self._judged(config, known)
            if isinstance(cost, Cost):
                layout = config.layout
                best[layout] = min(
                    best.get(layout, (config, cost)), (config, cost), key=_by_seconds
                )
        starts = sorted(best.values(), key=_by_seconds)[:_STARTS]
        judged = (self._downhill(one, known) if self._is_open(one[0]) else one for one in starts)
        found = min(judged, key=_by_seconds, default=None)
        # Of a product with a long epilogue few tiles fit, which may stand behind those.
        usual = self._best_usual()
        if usual is not None and (found is None or found[1].seconds > usual[1].seconds):
            found = usual
        return found and self._best_hint(found)

    def _best_hint(self, found: _Judged) -> _Judged:
        """The same, or with a hint to the cache that makes it clearly faster. Of matrix products no
        such hint was timed by itself."""
        if not self._is_open(found[0]):
            return found
        hinted = (replace(found[0], eviction=each) for each in ("first", "last"))
        best = next(iter(_sorted(self, hinted)), found)
        return best if best[1].seconds < _CLEARLY * found[1].seconds else found

    def _is_open(self, config: Config) -> bool:
        """Whether any config may be looked at: not of products and of pixels apart, of which those
        are enumerated that were timed."""
        nests = [kernel.nest for kernel in self.schedules[config.layout].kernels]
        parts = any(output.part is not None for nest in nests for output in nest.outputs)
        return not parts and not any(nest.contractions for nest in nests)

    def _downhill(self, found: _Judged, known: dict[Config, Cost | Refusal]) -> _Judged:
        """The best config next to another, or of its tile in another shape, as long as it is
        clearly better."""
        limits = self._limits(found[0].layout)
        while True:
            for step in (beside, traded):
                best = self._best_of(step(found[0], limits), known)
                if best is not None and best[1].seconds <= _CLEARLY * found[1].seconds:
                    break
            else:
                return found
            found = best

    def _best_of(
        self, configs: Iterable[Config], known: dict[Config, Cost | Refusal]
    ) -> _Judged | None:
        judged = ((config, self._judged(config, known)) for config in configs)
        costs = ((config, cost) for config, cost in judged if isinstance(cost, Cost))
        return min(costs, key=_by_seconds, default=None)

    def _judged(self, config: Config, known: dict[Config, Cost | Refusal]) -> Cost | Refusal:
        if config not in known:
            known[config] = self.judge(config)
        return known[config]

    def _limits(self, layout: Layout) -> dict[str, int]:
        """The largest block of each axis."""
        return {a.name: power_of_two(a.extent) for a in _tiled(self.schedules[layout])}

    def seeds(self, limit: int) -> list[tuple[Config, Cost]]:
        """The model's best configs of every class, in turns: it ranks like configs well, but the
        classes against each other less surely. A class is a layout and a number of warps, or with
        matrix products their tiles as well."""
        classes: dict[object, list[tuple[Config, Cost]]] = {}
        for config, cost in self.ranked(_ENUMERATED):
            tiles = config.blocks if cost.flops else ()
            classes.setdefault((config.layout, config.num_warps, tiles), []).append((config, cost))
        best = min((cost.seconds for _, cost in itertools.chain(*classes.values())), default=0.0)
        near = [c for c in classes.values() if c[0][1].seconds <= _NEAR * best]
        turns = itertools.zip_longest(*near)
        found = [item for turn in turns for item in turn if item is not None]
        if not any(cost.flops for _, cost in found[:1]):
            hinted = [more for config, _ in found[:4] for more in self._hinted(config)]
            found[6:6] = hinted
        return found[:limit]

    def _hinted(self, config: Config) -> Iterator[_Judged]:
        """The same with other hints to the cache, and a loop with its loads begun ahead."""
        changed = [replace(config, eviction=e) for e in EVICTIONS if e != config.eviction]
        if not config.layout.holds:
            changed.append(replace(config, num_stages=STAGES[-1]))
        if config.layout.loops_once:
            changed += [replace(config, widen=n) for n in WIDENED if n != config.widen]
        for one in changed:
            cost = self.judge(one)
            if isinstance(cost, Cost):
                yield one, cost

    def near(self, share: float) -> tuple[Layout, ...]:
        """The layouts whose best usual config takes at most so many times what the best of all
        takes."""
        usual = self._quick(self.schedules, {})
        seconds = {layout: cost.seconds for layout, (_, cost) in usual.items()}
        least = min(seconds.values(), default=0.0)
        return tuple(layout for layout, taken in seconds.items() if taken <= share * least)

    def enumerate(
        self, most: int = _ENUMERATED, layouts: Sequence[Layout] | None = None
    ) -> Iterator[Config]:
        """Configs of these layouts, or of every one, plain cache hints, the usual first; bounded
        for groups of many axes."""
        chosen = tuple(self.schedules) if layouts is None else layouts
        for layout in chosen:
            each = most // len(chosen)
            yield from itertools.islice(self._of_layout(layout), each)

    def _of_layout(self, layout: Layout, few: bool = False) -> Iterator[Config]:
        first, *later = self.schedules[layout].kernels
        by_dots = bool(dot_sides(first.nest))
        streamed = streamed_axes(first.nest, dot_sides(first.nest)) is not None
        # Streams of a matrix: their blocks differ more than their warps do.
        streams = few and bool(first.nest.contractions) and not by_dots
        known: dict[int, list[dict[str, ParameterValue]]] = {}
        for number, (warps, chosen) in enumerate(points(first.nest)):
            if streams and warps not in _STREAM_WARPS:
                continue
            rest: dict[str, ParameterValue] = {
                "num_warps": warps,
                "num_stages": 1,
                "eviction": "none",
            }
            if warps not in known:
                known[warps] = self._following([k.nest for k in later], warps, 1 if few else _TRIED)
            for following in known[warps][: _VARIED if number < _FIRST else 1]:
                one = {"layout": layout.name, **chosen, **following, **rest}
                if by_dots:
                    ways = self._streams(few) if streamed else self._variants(layout, few)
                    yield from (self.config(one | way) for way in ways)
                    continue
                yield self.config(one)
                if not few and layout.holds:
                    yield from self._ahead(first.nest, one)
                elif meets_in_turns(placed(first.nest, self.config(one))):
                    yield self.config(one | {"num_stages": STAGES[-1]})

    def _ahead(self, nest: Nest, one: dict[str, ParameterValue]) -> Iterator[Config]:
        """The same by few programs that load their next tiles while they work on one, where a fold
        makes them wait and tiles are so large that an SM has room for few."""
        if not self._has_tiles_ahead or not any(isinstance(v.kind, Fold) for v in nest.values):
            return
        program = placed(nest, self.config(one))
        sizes = [
            program.blocks.elements(access.axes) * itemsize(access.type.dtype)
            for access in nest.loads.values()
        ]
        if max(sizes, default=0) >= _AHEAD:
            count = tiles_in_all(program)
            for programs in (each * self.device.sm_count for each in RESIDENT):
                if count > 2 * programs:
                    yield self.config(one | {"programs": programs})

    def _following(
        self, nests: list[Nest], warps: int, tried: int
    ) -> list[dict[str, ParameterValue]]:
        """Blocks of the later kernels of a split, the best by the model first: those of each that
        are best, then their next best together. tried: points of each that the model judges."""
        best: list[list[dict[str, ParameterValue]]] = []
        for nest in nests:
            usual = itertools.islice((b for w, b in points(nest) if w == warps), tried)
            found: list[tuple[float, dict[str, ParameterValue]]] = []
            for blocks in usual:
                config = Config(tuple(blocks.items()), num_warps=warps, num_stages=1)
                refused = tried > 1 and too_large(nest, config, self.device)
                if not refused:
                    seconds = estimate(nest, config, self.device).seconds if tried > 1 else 0.0
                    found.append((seconds, dict(blocks)))
            found.sort(key=lambda item: item[0])
            alone: dict[str, ParameterValue] = {a.name: 1 for a in loose(nest)}
            best.append([blocks for _, blocks in found[:_VARIED]] or [alone])
        count = max((len(each) for each in best), default=1)
        return [
            {k: v for each in best for k, v in each[min(place, len(each) - 1)].items()}
            for place in range(count)
        ]

    def _streams(self, few: bool) -> Iterator[dict[str, ParameterValue]]:
        """How a kernel with products of a few rows is run. Copies to shared memory by pointers read
        rows of any length; what a program has under way is a matter of stages."""
        for stages in STREAM_STAGES[: 2 if few else None]:
            yield {"num_stages": stages, "group": 8, "access": "pointer"}

    def _variants(self, layout: Layout, few: bool) -> Iterator[dict[str, ParameterValue]]:
        """How a kernel with matrix products of some tiles is run, the usual ways first; or only
        those."""
        held, nested = layout.holds, layout.is_nested
        kinds = ("descriptor", "pointer") if self.has_descriptors else ("pointer",)
        for access, stages in itertools.product(
            kinds, (1,) if held else DOT_STAGES[: 1 if few else None]
        ):
            one: dict[str, ParameterValue] = {"num_stages": stages, "group": 8, "access": access}
            yield one | {"flatten": nested}
            if few or held or nested or stages != DOT_STAGES[0]:
                continue
            yield one | {"subtiles": 2}
            yield from (one | way for way in self._walks(access))

    def _walks(self, access: ParameterValue) -> Iterator[dict[str, Any]]:
        """How programs that walk over several tiles of a product are run."""
        if access == "pointer":
            yield {"programs": self.device.sm_count}
            return
        # The store of a part needs little room beside the loads of the next tile.
        for resident, group in zip(RESIDENT, GROUPS, strict=False):
            yield {"programs": resident * self.device.sm_count, "subtiles": 2, "group": group}


@by_identity(16)
def _ranked(space: Space) -> list[_Judged]:
    return _sorted(space, space.enumerate())


def _sorted(space: Space, configs: Iterable[Config]) -> list[_Judged]:
    """Those that are not refused, best first."""
    judged = ((config, space.judge(config)) for config in configs)
    return sorted(((c, cost) for c, cost in judged if isinstance(cost, Cost)), key=_by_seconds)


def _by_seconds(judged: _Judged) -> tuple[float, str]:
    return judged[1].seconds, str(judged[0])


def space_of(group: Graph, device: DeviceProfile) -> Space | Refusal:
    """The space of a group, or why it cannot be one kernel."""
    schedules, refusals = schedules_of(group, device)
    if not schedules:
        return refusals[NATURAL]
    space = Space(device, schedules, refusals, dimensions_of(schedules, device), group)
    known: dict[Config, Cost | Refusal] = {}
    usual = space._quick(schedules, known)
    if not usual:
        return space
    least = min(cost.seconds for _, cost in usual.values())
    limited = replace(space, hopeless_s=_HOPELESS * least + _NOISE_S)
    # Of those below the limit a few more; a layout that has none of them is far behind.
    near = {layout: best for layout, best in usual.items() if best[1].seconds <= limited.hopeless_s}
    over = {config.layout for config, cost in known.items() if limited._is_hopeless(cost)}
    near |= limited._quick([layout for layout in near if layout in over], known)
    walked = itertools.chain.from_iterable(limited._walked(config) for config, _ in near.values())
    return replace(limited, usual=min([*near.values(), *walked], key=_by_seconds))


def _tiled(schedule: Schedule) -> list[TileAxis]:
    return [a for kernel in schedule.kernels for a in loose(kernel.nest)]
