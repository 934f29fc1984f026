"""The plan by which a graph would run: of the store, or else of the cost model; and the trials of
its configs.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...db.records import PlanRecord
from ...db.store import Store
from ...planner.costs.device import DeviceProfile
from ...planner.covers.cover import modelled_plan
from ...planner.explanation import Measured
from ...planner.graph.graph import Graph, key
from ...planner.plan import GroupPlan, Plan
from ..trial.outcome import Candidate
from .plan_record import plan_in
from .stored_plans import plans_that_fit, versions_beside


@dataclass(frozen=True, slots=True)
class FoundPlan:
    """The plan of a graph. record: of the store; None where the plan is the cost model's."""

    plan: Plan
    record: PlanRecord | None
    measured: dict[str, Measured]
    """The measurements of the chosen configs, by kernel key."""

    @property
    def key(self) -> str | None:
        return None if self.record is None else self.record.key

    @property
    def is_of_other_versions(self) -> bool:
        stored = None if self.record is None else self.record.versions
        return stored is not None and stored != versions_beside(stored)


def found_plan(graph: Graph, profile: DeviceProfile, store: Store | None) -> FoundPlan:
    """The stored plan that would run, else the newest of the graph that other versions made, else
    the cost model's. Raises StoreError."""
    record = None if store is None else _record(store, graph, profile.key)
    if store is None or record is None:
        return FoundPlan(modelled_plan(graph, profile), None, {})
    plan = plan_in(store, record)
    return FoundPlan(plan, record, measured_in(store, plan))


def _record(store: Store, graph: Graph, device_key: str) -> PlanRecord | None:
    fitting = plans_that_fit(store, graph, device_key)
    return next(iter(fitting or store.plans(graph_key=key(graph), device_key=device_key)), None)


def measured_in(store: Store, plan: Plan) -> dict[str, Measured]:
    """The measurements of the chosen configs, by kernel key."""
    found = {group.kernel_key: _trial(store, plan, group) for group in plan.groups}
    return {name: measured for name, measured in found.items() if measured is not None}


def _trial(store: Store, plan: Plan, group: GroupPlan) -> Measured | None:
    wanted = Candidate(group.lowering, group.config, group.options).to_json()
    trials = store.trials(
        subject=group.kernel_key,
        device_key=plan.device,
        versions=dict(plan.versions),
        outcome="timed",
        newest_first=True,
    )
    trial = next((t for t in trials if t.config == wanted), None)
    if trial is None:
        return None
    return Measured(trial.measured_s, trial.registers, trial.spill_bytes, trial.shared_bytes)
