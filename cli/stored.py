"""Plans out of a store, as the commands show them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from ..db import PlanNotFound, PlanRecord, Store
from ..planner.graph import graph as graphs
from ..planner.graph.graph import Graph
from ..planner.origin import Origin
from ..tuner.records.plan_record import plan_in
from .render import ShownPlan


def find(store: Store, wanted: str | None) -> ShownPlan:
    """The plan of that name or key prefix, or of the file that was tuned; None is the one saved
    last. Raises PlanNotFound, or StoreCorrupt for a record that is no plan."""
    if wanted is not None:
        return shown(store, _record(store, wanted))
    newest = next(iter(store.plans(limit=1)), None)
    if newest is None:
        raise PlanNotFound(f"There is no plan in {store.location}: tune something first.")
    return shown(store, newest)


def _record(store: Store, wanted: str) -> PlanRecord:
    """By name or key as it is given, else by the name that a tune of this file gives."""
    try:
        return store.find_plan(wanted)
    except PlanNotFound:
        named = title(wanted)
        if named != wanted and store.plans(name=named, limit=1):
            return store.find_plan(named)
        raise


def title(model: str) -> str:
    """What a tune calls `folder/file.py:object`: `file:object`."""
    path, colon, name = model.partition(":")
    return PurePath(path).name.removesuffix(".py") + colon + name


def shown(store: Store, record: PlanRecord) -> ShownPlan:
    """A record with its graph and the name of its device."""
    plan = plan_in(store, record)
    device = store.device(record.device_key)
    name = device.name if device is not None else record.device_key
    graph = graph_of(store, record.graph_key)
    stage, inputs = about(record, graph)
    sources = Origin.of(record.payload).sources
    return ShownPlan(record.key, record.name, plan, name, graph, stage, inputs, sources)


def about(record: PlanRecord, graph: Graph | None) -> tuple[str, str]:
    """The stage of a plan, and types and shapes of the call that was tuned; where the plan is older
    than that record, those of the graph's first inputs."""
    told = Origin.of(record.payload)
    inputs = told.inputs
    if not inputs and graph is not None:
        types = [str(graph.nodes[i].type) for i in graph.inputs]
        inputs = ", ".join(types[:_INPUTS]) + ", ..." * (len(types) > _INPUTS)
    return told.stage, inputs


_INPUTS = 3


def graph_of(store: Store, key: str) -> Graph | None:
    """The graph, where the store has it in a form that can be read."""
    record = store.graph(key)
    return None if record is None else _graph(record.payload)


def graph_of_kernel(store: Store, key: str) -> Graph | None:
    """The graph of a group by its kernel's key, where the store has it."""
    record = store.kernel(key)
    payload = None if record is None else record.payload.get("graph")
    return _graph(payload) if isinstance(payload, dict) else None


def _graph(payload: Mapping[str, Any]) -> Graph | None:
    try:
        return graphs.from_json(payload)
    except (KeyError, TypeError, ValueError, IndexError):
        return None
