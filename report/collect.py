"""Gathering what a report shows: a graph, its plan, the model's figures and the store's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from ..db import Store
from ..planner.costs.device import DeviceProfile
from ..planner.costs.least import least_of_whole
from ..planner.explain_plan import explain_plan
from ..planner.explanation import Measured
from ..planner.graph.graph import Graph
from ..planner.plan import Plan
from ..planner.runtime.dispatch.whole_way import whole_way
from .apart import apart
from .data import GraphReport, Report, Roof, SearchReport, StepReport, TrafficReport
from .gain import gain
from .steps import Flow, steps
from .trials import runs, search


@dataclass(frozen=True, slots=True)
class Subject:
    """A graph with its plan. name: of the model, with the graph's number where it has several.
    times: how often it runs in a call. key: of the stored plan, None for the model's. note: where
    the plan comes from. measured: what trials told of its groups, by kernel key. sources: lines of
    the user's code by node."""

    name: str
    graph: Graph
    plan: Plan
    note: str
    key: str | None = None
    stage: str = ""
    inputs: str = ""
    times: int = 1
    measured: Mapping[str, Measured] | None = None
    sources: Mapping[int, str] | None = None


def collect(
    title: str,
    subjects: list[Subject],
    device: DeviceProfile,
    store: Store | None,
    notes: tuple[str, ...] = (),
) -> Report:
    """The report of a model's graphs. device: whose rates the cost model counts with. store: with
    the trials and the history; None where there is none. Raises PlanError where a plan does not fit
    its graph."""
    made = datetime.now(UTC).isoformat(timespec="seconds")
    rate = device.clock_hz * device.sm_count * device.fma_rate
    roof = Roof(device.bandwidth, rate, device.tensor_flops)
    graphs = tuple(_graph(subject, device, store) for subject in subjects)
    return Report(title, device.name, made, roof, gain(graphs), graphs, notes)


def _graph(subject: Subject, device: DeviceProfile, store: Store | None) -> GraphReport:
    graph, plan = subject.graph, subject.plan
    explanation = explain_plan(
        graph, plan, device, measured=subject.measured, sources=subject.sources, texts=True
    )
    flow = Flow.of(graph, plan, explanation, device)
    searches = _searches(graph, plan, device, store)
    made = tuple(_searched(step, plan, searches) for step in steps(flow, explanation))
    whole, way = least_of_whole(graph, device), whole_way(plan, graph)
    apart_bytes, apart_s = apart(graph, device)
    plan_bytes = sum(step.hbm_bytes for step in made)
    return GraphReport(
        name=subject.name,
        stage=subject.stage,
        times=subject.times,
        plan_key=subject.key,
        note=subject.note,
        inputs=subject.inputs,
        versions=plan.versions,
        cudagraph=plan.cudagraph,
        runs_as=None if way is None else way.options or way.lowering.said,
        contest=plan.contest,
        baselines=plan.baselines,
        explanation=explanation,
        steps=made,
        stored=flow.stored,
        least=whole,
        traffic=TrafficReport(apart_bytes, plan_bytes, whole.nbytes),
        apart_s=apart_s,
        predicted_s=sum(step.predicted_s or 0.0 for step in made),
        searches=tuple(searches.values()),
        runs=() if store is None else runs(store, subject.name, plan),
        has_sources=bool(subject.sources),
        has_store=store is not None,
    )


def _searches(
    graph: Graph, plan: Plan, device: DeviceProfile, store: Store | None
) -> dict[str, SearchReport]:
    """By kernel key: the layers of a model are equal, and are searched once."""
    found: dict[str, SearchReport] = {}
    for group in plan.groups:
        if group.kernel_key not in found and not group.bodies:
            found[group.kernel_key] = search(graph, plan, group, device, store)
    return found


def _searched(step: StepReport, plan: Plan, searches: Mapping[str, SearchReport]) -> StepReport:
    key = None if step.group is None else plan.groups[step.group].kernel_key
    return replace(step, search=key) if key in searches else step
