"""The results of a search, and the plan of it that is kept where no contest follows."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...planner.plan import Plan
from ..decision.finalists import Finalists
from ..search.tuned_groups import Identity

INTERRUPTED = "interrupted"
"""Why a plan was not compared, where Ctrl-C or the end of all time is the reason."""


@dataclass(frozen=True, slots=True)
class Searched:
    """The results of the search: the plans that go into the contest, and all that it liked."""

    identity: Identity
    finalists: Finalists
    plans: tuple[Plan, ...]

    @property
    def is_empty(self) -> bool:
        """Whether there is no plan at all."""
        return self.finalists.best is None and not self.plans

    def uncompared(self) -> Plan:
        """The best plan, by the search alone. There has to be one."""
        if self.finalists.best is not None:
            return replace(self.finalists.best.plan, evidence="searched")
        return unverified(self.plans[0])


def unverified(plan: Plan) -> Plan:
    """A plan as the search left it: its seconds are the sum of its groups'."""
    known = [group.measured for group in plan.groups if group.measured is not None]
    complete = len(known) == len(plan.groups)
    total = sum(known) if complete and known else None
    return replace(plan, evidence="searched", measured=total)
