"""Plans out of a store, as the commands show them."""

from __future__ import annotations

from ..db import PlanNotFound, PlanRecord, Store, StoreCorrupt
from ..planner.graph import graph as graphs
from ..planner.graph.graph import Graph
from ..planner.plan import Plan
from .render import ShownPlan


def find(store: Store, wanted: str | None) -> ShownPlan:
    """The plan of that name or key prefix; None is the one saved last. Raises PlanNotFound, or
    StoreCorrupt for a record that is no plan."""
    if wanted is not None:
        return shown(store, store.find_plan(wanted))
    newest = next(iter(store.plans()), None)
    if newest is None:
        raise PlanNotFound(f"There is no plan in {store.location}: tune something first.")
    return shown(store, newest)


def shown(store: Store, record: PlanRecord) -> ShownPlan:
    """A record with its graph and the name of its device."""
    try:
        plan = Plan.from_json(record.payload)
    except ValueError as error:
        raise StoreCorrupt(
            f"Plan {record.key} in {store.location} cannot be read ({error}): tune it again."
        ) from error
    device = store.device(record.device_key)
    name = device.name if device is not None else record.device_key
    return ShownPlan(record.key, record.name, plan, name, graph_of(store, record.graph_key))


def graph_of(store: Store, key: str) -> Graph | None:
    """The graph, where the store has it in a form that can be read."""
    record = store.graph(key)
    if record is None:
        return None
    try:
        return graphs.from_json(record.payload)
    except (KeyError, TypeError, ValueError, IndexError):
        return None
