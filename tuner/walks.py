"""Regions in chunks: the graph of a chunk is searched like a graph of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..planner.chunks import Walk, walk
from ..planner.cover import in_chunks, walked_s
from ..planner.graph import key as graph_key
from ..planner.group import subgraph
from ..planner.plan import GroupPlan, Plan
from ..planner.regions import BUDGETS, regions
from .config_search import Bench, Budget
from .groups import Identity, Tasks, plan_of
from .partition_search import PartitionSearch


class Walks:
    """The regions of a graph around the large values of the partition that the model prefers.
    `run`, then `plans`; after an interruption with what is known."""

    def __init__(self, tasks: Tasks, bench: Bench, identity: Identity) -> None:
        self.tasks, self.bench, self.identity = tasks, bench, identity
        cover, graph = tasks.cover, tasks.graph
        self.preferred = cover.partition(graph, cover.best(graph, tasks.profile))
        self.regions = regions(graph, self.preferred)
        self.found: dict[tuple[int, ...], list[GroupPlan]] = {}

    def run(self, budget: Budget) -> None:
        """Search the graphs of the chunks, for every region and size of chunks."""
        walks = [
            (nodes, size, found)
            for nodes in self.regions
            for size in BUDGETS
            if isinstance(found := walk(subgraph(self.tasks.graph, nodes).graph, size), Walk)
        ]
        for number, (nodes, size, found) in enumerate(walks):
            if budget.is_spent:
                return
            now = budget.clock()
            until = now + (budget.until - now) / (len(walks) - number)
            trials = max(1, budget.trials // len(walks))
            bodies = list(self._bodies(found, Budget(trials, until, budget.clock)))
            self.found.setdefault(nodes, []).append(self._group(nodes, size, found, bodies))

    def plans(self, bases: Sequence[Plan]) -> list[Plan]:
        """The first plan in which the groups make up the regions, with those in chunks of the best
        size, then of the others."""
        if not self.found:
            return []
        findings = self.bench.findings
        preferred = plan_of(self.preferred, self.tasks, findings, self.identity)
        for base in (*bases, preferred):
            made = [self._plan(base, place) for place in range(len(BUDGETS))]
            if made[0].groups != base.groups:
                return list(dict.fromkeys(made))
        return []

    def _plan(self, base: Plan, place: int) -> Plan:
        groups: list[GroupPlan] = list(base.groups)
        for choices in self.found.values():
            ordered = sorted(choices, key=lambda g: g.measured or float("inf"))
            groups = in_chunks(groups, ordered[min(place, len(ordered) - 1)])
        known = [g.predicted for g in groups if g.predicted is not None]
        total = sum(known) if len(known) == len(groups) else None
        return replace(base, groups=tuple(groups), predicted=total)

    def _bodies(self, found: Walk, budget: Budget) -> Iterator[Plan]:
        """The best plan of each body; the first, of which there are most chunks, is searched
        longest."""
        for number, body in enumerate(found.bodies):
            tasks = Tasks(body, self.tasks.profile, self.tasks.cover)
            now = budget.clock()
            share = 1.0 if len(found.bodies) == 1 else (0.7, 1.0)[number]
            until = now + (budget.until - now) * share
            trials = max(1, int(budget.trials * share) >> number)
            search = PartitionSearch(tasks, self.bench, Budget(trials, until, budget.clock))
            search.run()
            identity = replace(self.identity, graph_key=graph_key(body))
            best = search.best(1)
            yield plan_of(best[0].groups if best else (), tasks, self.bench.findings, identity)

    def _group(
        self, nodes: tuple[int, ...], size: int, found: Walk, bodies: Sequence[Plan]
    ) -> GroupPlan:
        seconds = [sum(g.measured or 0.0 for g in body.groups) for body in bodies]
        predicted = [body.predicted for body in bodies]
        known = [p for p in predicted if p is not None]
        profile = self.tasks.profile
        return GroupPlan(
            nodes,
            "chunked",
            graph_key(subgraph(self.tasks.graph, nodes).graph),
            predicted=walked_s(found, known, profile) if len(known) == len(predicted) else None,
            measured=walked_s(found, seconds, profile),
            options=str(size),
            bodies=tuple(bodies),
        )
