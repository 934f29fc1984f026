"""Covers of a graph: which groups are possible, and which of them the cost model thinks best."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import chain
from typing import NamedTuple

from ..bitsets import bits, bitset
from ..collector import paused
from ..config import Config
from ..costs.cost import Cost
from ..costs.device import DeviceProfile
from ..graph.graph import Graph, key
from ..graph.ops import is_compute
from ..groups.group import GroupContent, Groups, copies_in, with_free_nodes
from ..lowerings.registry import CALLS, REGIONAL, TRITON, lowering_of
from ..plan import Chosen, GroupPlan, Plan
from ..regions.regions import regions
from ..versions import versions
from . import pricing
from .between_products import cut_between_products, with_epilogues
from .budget import CoverBudget
from .by_rule import groups_by_rule
from .candidates import CandidateGroup, Ground
from .chained import chained, sum_of
from .cheapest import CheapestCover, CoverEffort, Search
from .growing import Edge, Grown, cut_edges, grow
from .later_reductions import with_readers
from .pieces import pieces, waiting
from .pricing import SPARED
from .written_places import with_writes

_ROUNDING = 1 + 1e-6
"""Sums of the same seconds in another order differ by less."""


def partition(graph: Graph, cuts: frozenset[Edge]) -> Groups:
    """Groups (node ids, free nodes included) that grow along every edge that is not in cuts, as
    far as they stay legal. Every compute node is in exactly one group."""
    return grow(graph, lambda edge: edge not in cuts, lambda left, right: True).groups


def best_cuts(graph: Graph, device: DeviceProfile) -> frozenset[Edge]:
    """The edges between groups of which the model says, pair by pair, that two kernels are faster
    than one. The search for covers starts with these cuts."""
    grown = _greedy(graph, device)
    home = {node: number for number, group in enumerate(grown) for node in group}
    return frozenset((a, b) for a, b in cut_edges(graph) if home[a] != home[b])


def best_cover(graph: Graph, device: DeviceProfile) -> Groups:
    """The groups of the cheapest cover by the model. A node may be in several groups: if its value
    is stored, the first of them stores it (see `group.copies_in`)."""
    return covers(graph, device, 1)[0].groups


class Cover(NamedTuple):
    """Groups, and how they were found."""

    groups: Groups
    chosen: Chosen


def covers(
    graph: Graph, device: DeviceProfile, count: int, effort: CoverEffort | None = None
) -> tuple[Cover, ...]:
    """The best few covers by the model, the best first."""
    found = _searched(GraphContent(key(graph), graph), device, effort or CoverEffort(), ())
    return (found.best, *found.others(count - 1))


def learned(graph: Graph, device: DeviceProfile, known: Mapping[str, float]) -> Groups:
    """The groups of the cheapest cover, with known seconds for some groups, by key, and the
    model's seconds for the others."""
    whole = GraphContent(key(graph), graph)
    return _searched(whole, device, CoverEffort(), tuple(sorted(known.items()))).best.groups


def cuts_of(graph: Graph, groups: Groups) -> frozenset[Edge]:
    """The edges of which no group holds both ends."""
    homes: dict[int, set[int]] = {}
    for number, nodes in enumerate(groups):
        for node in nodes:
            homes.setdefault(node, set()).add(number)
    return frozenset((a, b) for a, b in cut_edges(graph) if not homes[a] & homes[b])


@dataclass(frozen=True, slots=True)
class GraphContent:
    """A graph that is equal to others with the same content, whatever their names are."""

    key: str
    graph: Graph = field(compare=False)


@lru_cache(maxsize=64)
@paused()
def _searched(
    whole: GraphContent,
    device: DeviceProfile,
    effort: CoverEffort,
    known: tuple[tuple[str, float], ...],
) -> _Searched:
    graph = whole.graph
    ground = Ground(graph, device)
    prices = _Prices(ground, dict(known))
    start = _begun(ground, prices, _greedy(graph, device))
    grown_s = sum_of(start, prices.of)
    by_rule = _begun(ground, prices, groups_by_rule(graph))
    if grown_s is not None and sum_of(by_rule, prices.of, grown_s) is not None:
        start = by_rule
    parts, cuts = pieces(ground, [each.nodes for each in start])
    cuts += _grown(whole, device).stops
    settled = 0
    found: list[tuple[Search, CheapestCover]] = []
    for piece in parts:
        own = [each for each in start if each.nodes & piece]
        settled |= piece
        later = [each for each in start if not each.nodes & settled]
        others = (*later, *chain.from_iterable(result.groups for _, result in found))
        prices.budget = budget = CoverBudget(piece.bit_count())
        search = Search(ground, piece, prices.of, partial(waiting, ground, others), effort, budget)
        found.append((search, search.run(own)))
    return _Searched(ground, prices, start, found, cuts)


def _begun(ground: Ground, prices: _Prices, groups: Groups) -> list[CandidateGroup]:
    """A cover from which a search sets out: these groups, and those that are tried separately."""
    start = [ground.candidate(bitset(nodes) & ground.compute) for nodes in groups]
    start = cut_between_products(ground, start, prices.of)
    start = with_epilogues(ground, start, prices.of)
    start = chained(ground, start, prices.of)
    start = with_readers(ground, start, prices.of)
    return with_writes(ground, start, prices.of)


def _order(group: int) -> tuple[int, ...]:
    return tuple(bits(group))


@dataclass(slots=True)
class _Prices:
    """The seconds of candidates: known ones by a group's key, else the model's."""

    ground: Ground
    known: Mapping[str, float]
    budget: CoverBudget | None = None

    def of(self, candidate: CandidateGroup) -> float | None:
        graph = self.ground.graph
        nodes = with_free_nodes(graph, bits(candidate.nodes))
        part = GroupContent.of(graph, nodes, tuple(bits(candidate.copies)))
        single = candidate.nodes.bit_count() == 1
        if self.budget is not None:
            self.budget.look(part)
        if self.known and (seconds := self.known.get(part.key)) is not None:
            return seconds / SPARED if not single and pricing.spares(part) else seconds
        return pricing.price_s(part, self.ground.device, single=single)


class _Searched:
    """Joins the covers of the pieces to covers of the graph. start: a legal cover of the graph."""

    def __init__(
        self,
        ground: Ground,
        prices: _Prices,
        start: Sequence[CandidateGroup],
        found: Sequence[tuple[Search, CheapestCover]],
        cuts: int,
    ) -> None:
        self.ground, self.prices, self.start, self.found = ground, prices, start, found
        results = [result for _, result in found]
        self.chosen = Chosen(
            seconds=sum(each.seconds for each in results),
            greedy_s=sum(each.start_s for each in results),
            least_s=sum(each.least_s for each in results),
            proven=all(each.proven for each in results),
            priced=sum(len(search.known) for search, _ in found),
            pieces=len(found),
            cuts=cuts,
        )
        if cuts:  # Groups across a cut were not looked at: all of it as one kernel is the bound.
            whole_s = ground.candidate(ground.compute).floor_s / SPARED
            least_s = min(self.chosen.seconds, whole_s)
            self.chosen = replace(self.chosen, least_s=least_s, proven=False)
        self.best = self._cover([each.groups for each in results], self.chosen)

    def others(self, count: int) -> list[Cover]:
        """The next best covers: each has another cover of one piece."""
        best = [result for _, result in self.found]
        changes = [
            (other.seconds - result.seconds, number, other)
            for number, (search, result) in enumerate(self.found)
            for other in (search.others(result, count) if count > 0 else ())
        ]
        made: list[Cover] = []
        for more_s, number, other in sorted(changes, key=lambda change: change[:2]):
            if len(made) >= count:
                break
            parts = [(other if i == number else each).groups for i, each in enumerate(best)]
            chosen = replace(self.chosen, seconds=self.chosen.seconds + more_s, proven=False)
            cover = self._cover(parts, chosen)
            if cover.groups != self.best.groups:
                made.append(cover)
        return made

    def _cover(self, pieces: Sequence[Sequence[CandidateGroup]], chosen: Chosen) -> Cover:
        """The groups in the order of the graph; last those that compute again what others store.
        If the parts cannot run together, or would store more than their prices include, this is
        the start."""
        groups = sorted(chain(*pieces), key=lambda c: (c.copies != 0, _order(c.nodes)))
        found = self._nodes(groups)
        seconds = 0.0
        for nodes, copies in zip(found, copies_in(self.ground.graph, found), strict=True):
            group = bitset(nodes) & self.ground.compute
            seconds += self.prices.of(self.ground.candidate(group, bitset(copies))) or math.inf
        if seconds > chosen.seconds * _ROUNDING or waiting(self.ground, (), groups):
            again = replace(chosen, seconds=chosen.greedy_s, proven=False)
            return Cover(self._nodes(self.start), again)
        return Cover(found, chosen)

    def _nodes(self, groups: Sequence[CandidateGroup]) -> Groups:
        return tuple(with_free_nodes(self.ground.graph, bits(group.nodes)) for group in groups)


@paused()
def modelled_plan(graph: Graph, device: DeviceProfile) -> Plan:
    """The model's plan of a graph: its best cover, each group with its best config. A region of
    several groups is run by another lowering if that avoids a large value and costs little."""
    groups = _apart(graph, device)
    found = tuple(group.nodes for group in groups)
    for region in regions(graph, found):
        instead = region_group(graph, region, found, device)
        if instead is not None:
            groups = replaced(groups, instead)
    return _plan(graph, groups, device)


def _plan(graph: Graph, groups: Sequence[GroupPlan], device: DeviceProfile) -> Plan:
    made = tuple(g for g in groups if not lowering_of(g).one_by_one)
    predicted = sum(g.predicted or 0.0 for g in made)
    chosen = covers(graph, device, 1)[0].chosen
    version = tuple(versions().items())
    return Plan(key(graph), device.key, version, "modelled", made, predicted, chosen=chosen)


def _apart(graph: Graph, device: DeviceProfile) -> list[GroupPlan]:
    found = best_cover(graph, device)
    both = zip(found, copies_in(graph, found), strict=True)
    return [group_plan(graph, nodes, copies, device) for nodes, copies in both]


def replaced(groups: Sequence[GroupPlan], region: GroupPlan) -> list[GroupPlan]:
    """The groups, with those of a region replaced by the region, if the region is made of whole
    groups and of nodes that are in no group."""
    own = groups_inside(groups, region)
    outside = [g for g in groups if g not in own]
    left = set(region.nodes).difference(*(g.nodes for g in own))
    if not own or any(left & set(g.nodes) for g in outside):
        return list(groups)
    return [*outside, region]


def groups_inside(groups: Sequence[GroupPlan], region: GroupPlan) -> list[GroupPlan]:
    """The groups that a region holds."""
    return [g for g in groups if set(g.nodes) <= set(region.nodes)]


def group_plan(
    graph: Graph,
    nodes: tuple[int, ...],
    copies: tuple[int, ...],
    device: DeviceProfile,
    known: tuple[Config, Cost] | None = None,
) -> GroupPlan:
    """The model's plan of a group: one kernel, a vendor's call, or ATen with the vendor's matrix
    products. known: the best config, if it was searched for before."""
    part = GroupContent.of(graph, nodes, copies)
    best = None
    if not pricing.is_left(part):
        best = TRITON.by(*known) if known else TRITON.modelled(part, device, cover_s)
    if best is None or pricing.is_vendors(part, best.seconds, device):
        calls = (each.modelled(part, device, cover_s) for each in CALLS)
        best = min((c for c in calls if c is not None), key=lambda call: call.seconds)
    return best.plan(nodes, part.key, copies)


def region_group(
    graph: Graph, region: tuple[int, ...], groups: Groups, device: DeviceProfile
) -> GroupPlan | None:
    """The plan of a region by the lowering that the model thinks best, its bodies by the model's
    plans. None if no lowering is possible, or if the groups one after another are much faster."""
    part = GroupContent.of(graph, region)
    inside = [GroupContent.of(graph, nodes) for nodes in groups if set(nodes) <= set(region)]
    apart_s = sum(pricing.seconds(each, device) for each in inside)
    ways = ((each, each.modelled(part, device, cover_s)) for each in REGIONAL)
    most = {True: SPARED * apart_s, False: apart_s}
    found = [
        way for each, way in ways if way and not way.is_judged and way.seconds <= most[each.spares]
    ]
    best = min(found, key=lambda way: way.seconds, default=None)
    if best is None or best.walk is None:
        return None
    bodies = tuple(_plan(b, _apart(b, device), device) for b in best.walk.bodies)
    return replace(best.plan(region, part.key), bodies=bodies)


def cover_s(graph: Graph, device: DeviceProfile) -> float:
    """Seconds of a graph by the model, from a quick look at its best cover."""
    groups = _greedy(graph, device)
    return sum(pricing.seconds(GroupContent.of(graph, nodes), device) for nodes in groups)


def _greedy(graph: Graph, device: DeviceProfile) -> Groups:
    """Groups that grow edge by edge, while the model says that one kernel is faster than two."""
    return _grown(GraphContent(key(graph), graph), device).groups


@lru_cache(maxsize=64)
def _grown(whole: GraphContent, device: DeviceProfile) -> Grown:
    graph = whole.graph
    budget = CoverBudget(sum(map(is_compute, graph.nodes)))
    parts: dict[int, GroupContent] = {}

    def part(group: int) -> GroupContent:
        if group not in parts:
            parts[group] = GroupContent.of(graph, with_free_nodes(graph, bits(group)))
        return parts[group]

    return grow(
        graph,
        lambda edge: True,
        lambda left, right: _is_cheaper_joined(part, left, right, device),
        budget,
    )


def _is_cheaper_joined(
    part: Callable[[int], GroupContent], left: int, right: int, device: DeviceProfile
) -> bool:
    joined = pricing.quick_s(part(left | right), device)
    apart = [pricing.modelled_s(part(each), device) for each in (left, right)]
    if joined is None or None in apart:
        return joined is not None
    rest = sum(seconds for seconds in apart if seconds is not None)
    spared = _spares(part(left | right), [part(left), part(right)])
    return joined <= rest * (SPARED if spared else 1.0)


def _spares(whole: GroupContent, parts: Sequence[GroupContent]) -> bool:
    """Whether what passes between two groups is larger than all that they read and write as one."""

    def ends(group: Graph) -> int:
        found = [group.nodes[n].type for n in (*group.inputs, *(o or 0 for o in group.outputs))]
        return sum(t.nbytes for t in found if t)

    return whole.contracts and sum(ends(each.group) for each in parts) > 3 * ends(whole.group)
