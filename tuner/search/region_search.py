"""Regions of a graph in other ways: the graphs that stand for them are searched like any other."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ...planner.covers.cover import cover_s, groups_inside, replaced
from ...planner.graph.graph import key as graph_key
from ...planner.groups.group import GroupContent, subgraph
from ...planner.lowerings.base import Modelled
from ...planner.lowerings.regional import walk_s
from ...planner.lowerings.registry import REGIONAL, lowering_of
from ...planner.plan import GroupPlan, Plan
from ...planner.regions.chunks import Walk
from ...planner.regions.regions import regions
from .group_trials import Budget
from .partition_search import PartitionSearch
from .runoff import SharedSearch
from .tuned_groups import Identity, Tasks, completed, plan_of

WITHIN = 2.0
"""Times the model's seconds of the best way of a region that another may take, to be searched; and
times the seconds of the region's groups that a way may take that spares memory."""


@dataclass(frozen=True, slots=True)
class _Trial:
    """A region with one way to run it, of these bodies. key: of the region alone."""

    nodes: tuple[int, ...]
    key: str
    way: Modelled
    walk: Walk


class RegionSearch:
    """The regions of a graph, around the large values of the partition that the model prefers.
    `run`, then `plans`; after an interruption with what is known."""

    def __init__(self, tasks: Tasks, shared: SharedSearch, identity: Identity) -> None:
        self.tasks, self.shared, self.identity = tasks, shared, identity
        self.preferred = tasks.first
        found = regions(tasks.graph, self.preferred)
        self.trials = [t for nodes in found for t in self._ways(nodes)]
        self.found: dict[tuple[int, ...], list[GroupPlan]] = {}

    @property
    def weight(self) -> float:
        """The part of the preferred partition's time, by the model, that is the regions'."""
        inside = {node for trial in self.trials for node in trial.nodes}
        tasks = zip(self.preferred, self.tasks.all(self.preferred), strict=True)
        seconds = [(nodes, t.modelled.seconds if t.modelled else t.floor_s) for nodes, t in tasks]
        total = sum(s for _, s in seconds)
        own = sum(s for nodes, s in seconds if inside.issuperset(nodes))
        return own / total if total else 1.0

    def run(self, budget: Budget) -> None:
        """Search the bodies of every way of every region, those of equal regions once."""
        equal: dict[tuple[str, str, str], list[_Trial]] = {}
        for trial in self.trials:
            way = trial.way
            equal.setdefault((trial.key, way.lowering, way.options), []).append(trial)
        for number, same in enumerate(equal.values()):
            if budget.is_spent:
                return
            now = budget.clock()
            until = now + (budget.until - now) / (len(equal) - number)
            trials = max(1, budget.trials // len(equal))
            bodies = list(self._bodies(same[0].walk, Budget(trials, until, budget.clock)))
            for trial in same:
                self.found.setdefault(trial.nodes, []).append(self._group(trial, bodies))

    def plans(self, bases: Sequence[Plan]) -> list[Plan]:
        """The first plan in which the groups make up the regions, with those in the best way, then
        in the others, where they are not slower, or spare memory and are not much slower."""
        if not self.found:
            return []
        findings = self.shared.findings
        preferred = plan_of(self.preferred, self.tasks, findings, self.identity)
        for base in (*bases, preferred):
            ways = (choices[0] for choices in self.found.values())
            if any(replaced(base.groups, way) != [*base.groups] for way in ways):
                made = (self._plan(base, place) for place in range(len(REGIONAL)))
                return [plan for plan in dict.fromkeys(made) if plan.groups != base.groups]
        return []

    def _ways(self, nodes: tuple[int, ...]) -> list[_Trial]:
        """Of each kind the way that the model thinks best, but one that spares memory and takes
        much longer than the groups."""
        part = GroupContent.of(self.tasks.graph, nodes)
        name = graph_key(subgraph(self.tasks.graph, nodes).graph)
        found = (each.modelled(part, self.tasks.profile, cover_s) for each in REGIONAL)
        most = WITHIN * self._apart_s(nodes)
        given = (w for w in found if w and not (lowering_of(w).spares and w.seconds > most))
        ordered = sorted(given, key=lambda way: way.seconds)
        return [
            _Trial(nodes, name, way, way.walk)
            for way in ordered
            if way.walk is not None and way.seconds <= ordered[0].seconds * WITHIN
        ]

    def _apart_s(self, nodes: tuple[int, ...]) -> float:
        """Seconds of the groups of a region by the model; infinity where it does not know one."""
        pairs = zip(self.preferred, self.tasks.all(self.preferred), strict=True)
        inside = [task.modelled for group, task in pairs if set(group) <= set(nodes)]
        known = [modelled.seconds for modelled in inside if modelled]
        return sum(known) if len(known) == len(inside) else math.inf

    def _plan(self, base: Plan, place: int) -> Plan:
        groups: list[GroupPlan] = list(base.groups)
        for choices in self.found.values():
            ordered = sorted(choices, key=lambda g: g.measured or float("inf"))
            way = ordered[min(place, len(ordered) - 1)]
            if not _is_slower(way, groups_inside(groups, way)):
                groups = replaced(groups, way)
        known = [g.predicted for g in groups if g.predicted is not None]
        total = sum(known) if len(known) == len(groups) else None
        return replace(base, groups=tuple(groups), predicted=total)

    def _bodies(self, found: Walk, budget: Budget) -> Iterator[Plan]:
        """The best plan of each body; the first, of which there are most chunks, is searched
        longest."""
        for number, body in enumerate(found.bodies):
            tasks = Tasks(body, self.tasks.profile, self.tasks.cover)
            now = budget.clock()
            share = 0.7 if number + 1 < len(found.bodies) else 1.0
            until = now + (budget.until - now) * share
            trials = max(1, int(budget.trials * share) >> number)
            search = PartitionSearch(tasks, self.shared, Budget(trials, until, budget.clock))
            search.run()
            identity = replace(self.identity, graph_key=graph_key(body))
            best = search.best(1)
            asked = best[0].groups if best else (), tasks, self.shared.findings, identity
            yield completed(*asked) or plan_of(*asked)

    def _group(self, trial: _Trial, bodies: Sequence[Plan]) -> GroupPlan:
        walk, profile = trial.walk, self.tasks.profile
        seconds = [_seconds(body.groups) for body in bodies]
        known = [body.predicted for body in bodies if body.predicted is not None]
        return replace(
            trial.way.plan(trial.nodes, trial.key),
            predicted=walk_s(walk, known, profile) if len(known) == len(bodies) else None,
            measured=walk_s(walk, seconds, profile),
            bodies=tuple(bodies),
        )


def _seconds(groups: Sequence[GroupPlan]) -> float:
    """Of groups one after the other: what was measured, or else what the model says."""
    found = (g.predicted if g.measured is None else g.measured for g in groups)
    return sum(seconds or 0.0 for seconds in found)


def _is_slower(region: GroupPlan, groups: Sequence[GroupPlan]) -> bool:
    """Whether a region takes longer than its groups, of all of which the seconds are known: much
    longer, where it spares memory."""
    if any(g.measured is None and g.predicted is None for g in groups):
        return False
    return _seconds([region]) > _seconds(groups) * (WITHIN if lowering_of(region).spares else 1.0)
