"""The search of one graph: its regions in other ways, then which nodes share a kernel."""

from __future__ import annotations

from dataclasses import replace

from .group_trials import Budget
from .partition_search import PartitionSearch
from .region_search import RegionSearch
from .runoff import SharedSearch
from .tuned_groups import Identity, Tasks

REGIONAL, REGIONAL_LEAST = 0.6, 0.25
"""Of the search, for the other ways of the graph's regions where they take all of its time; at
least that part of it for regions that take little."""


class GraphSearch:
    """`run`, then what `partitions` and `regional` have; after an interruption with what is
    known."""

    def __init__(
        self, tasks: Tasks, shared: SharedSearch, identity: Identity, budget: Budget
    ) -> None:
        self.budget = budget
        self.regional = RegionSearch(tasks, shared, identity)
        self.partitions = PartitionSearch(tasks, shared, budget)

    def end_at(self, until: float) -> None:
        """The search is over by then, on the clock of its budget."""
        self.budget = self.partitions.budget = replace(self.budget, until=until)

    def run(self) -> None:
        """Search until the budget is spent, or there is nothing left that is worth it."""
        regional, budget = self.regional, self.budget
        if regional.trials:
            now = budget.clock()
            part = REGIONAL * max(REGIONAL_LEAST, regional.weight)
            trials = max(1, int(budget.trials * (1 - part)))
            self.partitions.budget = Budget(trials, budget.until, budget.clock)
            until = now + (budget.until - now) * part
            regional.run(Budget(budget.trials - trials, until, budget.clock))
        self.partitions.run()
