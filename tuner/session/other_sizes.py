"""Learning how the groups of a plan run at other sizes than those of the tune, where sizes vary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ...planner.config import Config, SizeTree
from ...planner.costs.device import DeviceProfile
from ...planner.graph.graph import Graph, kernel_key, key
from ...planner.graph.varying import is_varying, sizes_of
from ...planner.groups.group import subgraph
from ...planner.plan import GroupPlan, Plan
from ..gate.bucket_edges import at_sizes
from ..records.findings import Findings
from ..search.group_trials import Budget
from ..search.runoff import SharedSearch
from ..search.size_search import SizeTrials, learned
from ..search.tuned_groups import Partition, Tasks
from ..workers.lab import Group


def moved_sizes(graph: Graph) -> Graph | None:
    """The graph at half of its sizes, or at twice, where that is possible."""
    for numerator, denominator in ((1, 2), (2, 1)):
        sizes = [max(2, n * numerator // denominator) for n in sizes_of(graph)]
        moved = at_sizes(graph, sizes)
        if moved is not None and key(moved) != key(graph):
            return moved
    return None


@dataclass(slots=True)
class OtherSizes:
    """Trees of groups, by the keys of these; None of one of which other sizes are not known."""

    trees: dict[str, SizeTree | None] = field(default_factory=dict)

    def learn(
        self,
        best: Sequence[Partition],
        tasks: Tasks,
        findings: Findings,
        measures: SharedSearch | None,
        budget: Budget,
        least_s: float = 0.0,
    ) -> None:
        """Learn of the groups of these partitions. measures: None where the model decides alone.
        least_s: what measuring has at least, for all groups together."""
        configs: dict[str, tuple[Group, Config]] = {}
        for task in (task for partition in best for task in tasks.all(partition.groups)):
            found = findings.best(task.group.key)
            config = None if found is None else found.candidate.config
            if config is not None and task.group.key not in self.trees:
                configs[task.group.key] = task.group, config
        own_s = least_s / max(1, len(configs))
        for group, config in configs.values():
            measure = None
            if measures is not None:
                measure = SizeTrials(group.name, measures, budget, own_s)
            self.trees[group.key] = learned(group.graph, config, tasks.profile, measure)

    def added(self, plan: Plan, graph: Graph, device: DeviceProfile) -> Plan:
        """The plan with a tree for each group of which one is known; for a modelled plan the model
        makes them."""
        if not is_varying(graph):
            return plan
        by_model = plan.evidence == "modelled"
        groups = tuple(self._with_tree(each, graph, device, by_model) for each in plan.groups)
        return replace(plan, groups=groups, at=sizes_of(graph))

    def _with_tree(
        self, group: GroupPlan, graph: Graph, device: DeviceProfile, by_model: bool
    ) -> GroupPlan:
        if group.config is None:
            return group
        part = subgraph(graph, group.nodes, group.copies).graph
        kernel = kernel_key(part)  # The plan may be an earlier one, of the static graph.
        if kernel not in self.trees and by_model:
            self.trees[kernel] = learned(part, group.config, device)
        return replace(group, sizes=self.trees.get(kernel, group.sizes))
