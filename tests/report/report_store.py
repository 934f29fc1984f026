"""A small graph with a plan, and a store as a tune on a GPU leaves it behind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fusionplan.db import PlanRecord, Store
from fusionplan.planner.costs.device import H200
from fusionplan.planner.covers.cover import modelled_plan
from fusionplan.planner.covers.pricing import space_for
from fusionplan.planner.errors import Refusal
from fusionplan.planner.graph.graph import INPUT, Graph, Node, Ref, TensorType
from fusionplan.planner.groups.group import GroupContent, subgraph
from fusionplan.planner.plan import Contest, Contestant, Plan
from fusionplan.planner.versions import versions
from fusionplan.tuner.records.ledger import Ledger, device_record, graph_record
from fusionplan.tuner.trial.outcome import (
    ATEN,
    Candidate,
    Miscompiled,
    ProgramResources,
    Timed,
    Wrong,
)
from fusionplan.tuner.workers.lab import Group

NAME = "block"
ROWS, COLUMNS = 4096, 1024


def dense(*shape: int, dtype: str = "bfloat16") -> TensorType:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return TensorType(shape, tuple(strides), dtype)


def block(**names: str) -> Graph:
    """softmax(relu(x + b) @ w), times 2 and summed up, its softmax in parts. names: of nodes, in
    place of their own."""
    wide, tall = dense(ROWS, COLUMNS), dense(ROWS, 1)
    rows = (
        ("x", INPUT, (), wide),
        ("b", INPUT, (), dense(COLUMNS)),
        ("w", INPUT, (), dense(COLUMNS, COLUMNS)),
        ("add", "aten.add.Tensor", (Ref(0), Ref(1)), wide),
        ("relu", "aten.relu.default", (Ref(3),), wide),
        ("mm", "aten.mm.default", (Ref(4), Ref(2)), wide),
        ("amax", "aten.amax.default", (Ref(5), (-1,), True), tall),
        ("sub", "aten.sub.Tensor", (Ref(5), Ref(6)), wide),
        ("exp", "aten.exp.default", (Ref(7),), wide),
        ("sum_1", "aten.sum.dim_IntList", (Ref(8), (-1,), True), tall),
        ("div", "aten.div.Tensor", (Ref(8), Ref(9)), wide),
        ("digamma", "aten.digamma.default", (Ref(10),), wide),
        ("mul", "aten.mul.Tensor", (Ref(10), 2), wide),
    )
    nodes = (Node(i, names.get(n, n), op, args, (), t) for i, (n, op, args, t) in enumerate(rows))
    return Graph(tuple(nodes), (12, 11))


def contest(plan_s: float) -> Contest:
    ways = (("eager", 4.0), ("plan", 1.0), ("default", 1.9), ("max-autotune", 1.31))
    return Contest(
        tuple(
            Contestant(
                name, plan_s * times, plan_s * times * 1.1, times, times - 0.01, times + 0.01, 40
            )
            for name, times in ways
        ),
        "plan",
        inputs=4,
        left_out=(("reduce-overhead", "it does not run"),),
        conditions=(("sm clock", 1980), ("temperature", 41)),
    )


def measured(graph: Graph) -> Plan:
    """The model's plan as if it had been measured, a little slower than the model says."""
    plan = modelled_plan(graph, H200)
    groups = tuple(replace(g, measured=(g.predicted or 1e-5) * 1.08) for g in plan.groups)
    plan_s = 1.2 * sum(g.measured or 0.0 for g in groups)
    timed = tuple((c.name, c.cold_s) for c in contest(plan_s).contestants if c.name != "plan")
    found = replace(plan, groups=groups, measured=plan_s, baselines=timed, contest=contest(plan_s))
    return replace(found, evidence="measured")


def fill(path: Path, graph: Graph, name: str = NAME, reason: str = "a NaN at 3") -> Plan:
    """A store at the path with the measured plan of the graph, its trials and two runs."""
    plan = measured(graph)
    with Store.open(path) as store:
        store.put_device(device_record(H200))
        store.put_graph(graph_record(graph, plan.graph_key, name))
        ledger = Ledger(store, H200.key, versions(), plan.graph_key)
        for group in plan.groups:
            _try(ledger, graph, group, reason)
        assert plan.measured is not None
        ledger.add_plan(replace(plan, measured=plan.measured * 1.2, groups=plan.groups[:1]), name)
        ledger.add_plan(plan, name)
        store.save_plan(record(plan, name))
    return plan


def record(plan: Plan, name: str, key_: str = "") -> PlanRecord:
    return PlanRecord(
        key=key_ or key_of(plan),
        graph_key=plan.graph_key,
        device_key=plan.device,
        versions=versions(),
        name=name,
        evidence=plan.evidence,
        payload=plan.to_json(),
        speedup=plan.speedup,
    )


def key_of(plan: Plan) -> str:
    return plan.graph_key[:24]


def _try(ledger: Ledger, graph: Graph, group: object, reason: str) -> None:
    part = GroupContent.of(graph, group.nodes, group.copies)
    space = space_for(part, H200)
    assert not isinstance(space, Refusal)
    own = subgraph(graph, group.nodes, group.copies).graph
    about = Group.of(own, "fused")
    ledger.open(about)
    for number, (config, cost) in enumerate(reversed(space.ranked(24))):
        candidate = Candidate("triton", config)
        if candidate.config == group.config:
            continue
        seconds = cost.seconds * (1.15 + 0.3 * ((number * 7) % 5) / 5)
        outcome = Timed(seconds, seconds / 50, 30)
        if number % 6 == 3:
            outcome = Wrong(reason) if number % 12 == 3 else Miscompiled("too many registers")
        resources = ProgramResources(cost.registers + 3, 0, cost.shared_bytes, 0.2)
        ledger.add(about, candidate, outcome, cost, resources)
    ledger.add(about, ATEN, Timed(6 * (group.measured or 0.0), 0.0, 30))
    chosen = Candidate(group.lowering, group.config, group.options)
    ledger.add(
        about, chosen, Timed(group.measured, 0.0, 30), None, ProgramResources(40, 0, 1024, 0.2)
    )
