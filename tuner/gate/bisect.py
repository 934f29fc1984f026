"""Bisection of a plan's numbers: each group runs alone on the inputs that eager's own run gives it,
beside the same operations by eager and in float64.

So no group inherits the errors of those before it, and the first one that breaks the accuracy rule
(`check.py`) is the one to look at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from ...planner.capture.capture import Captured
from ...planner.errors import FusionplanError, PlanError
from ...planner.graph.graph import Graph, key
from ...planner.graph.ops import is_compute, is_input
from ...planner.groups.group import Subgraph, subgraph
from ...planner.lowerings.registry import lowering_of
from ...planner.plan import GroupPlan, Plan
from ...planner.runtime.execution.executor import Executor
from ...planner.runtime.execution.modules import captured_of
from .check import compare, greatest
from .reference import expected


@dataclass(frozen=True, slots=True)
class GroupError:
    """number: the group's place in the plan. ours, eager, limit: the greatest error of an element
    of its outputs against float64, relative to that element's size and the output's root mean
    square, and what the accuracy rule allows; of the output that comes nearest to its limit.
    fault: why an output breaks the rule, "" where none does. left_out: why the group was not
    run."""

    number: int
    operations: tuple[str, ...]
    lowering: str
    ours: float = 0.0
    eager: float = 0.0
    limit: float = 0.0
    fault: str = ""
    left_out: str = ""


def bisect(captured: Captured, plan: Plan, inputs: Sequence[Any]) -> Iterator[GroupError]:
    """The groups of a plan of the graph, in the order in which they run."""
    groups = sorted(enumerate(plan.groups), key=lambda item: max(item[1].nodes))
    parts = {n: subgraph(captured.graph, g.nodes, g.copies) for n, g in groups}
    wanted = frozenset(i for part in parts.values() for i in part.inputs)
    values = _Eager(captured, wanted)
    with torch.no_grad():
        torch.manual_seed(0)
        values.run(*inputs)
        for number, group in groups:
            yield _judged(number, group, plan, parts[number], values.kept, captured.device)


class _Eager(fx.Interpreter):
    """Runs a graph operation by operation, and keeps the values of some nodes."""

    def __init__(self, captured: Captured, wanted: frozenset[int]) -> None:
        super().__init__(captured.gm)
        self._wanted = {captured.fx_nodes[i]: i for i in wanted}
        self.kept: dict[int, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if n in self._wanted:
            self.kept[self._wanted[n]] = value
        return value


def _judged(
    number: int,
    group: GroupPlan,
    plan: Plan,
    part: Subgraph,
    values: dict[int, Any],
    device: torch.device,
) -> GroupError:
    found = GroupError(number, _operations(part.graph), group.lowering)
    inputs = [values[i] for i in part.inputs]
    if lowering_of(group).one_by_one or not all(isinstance(x, torch.Tensor) for x in inputs):
        return replace(found, left_out="runs as eager does")
    try:
        known = expected(part.graph, inputs, device)
        results = _executor(part.graph, group, plan, device)(*inputs)
    except (FusionplanError, IndexError) as error:
        return replace(found, left_out=str(error))
    share = -1.0
    for wanted, mine in zip(known, results, strict=True):
        fault = compare(wanted, mine)
        ours, eager = greatest(wanted, mine), greatest(wanted, wanted.eager)
        nearness = ours / wanted.largest if wanted.largest else float(ours > 0)
        if (fault and not found.fault) or (nearness > share and not found.fault):
            share = nearness
            found = replace(
                found, ours=ours, eager=eager, limit=wanted.largest, fault=fault or found.fault
            )
    return found


def _executor(graph: Graph, group: GroupPlan, plan: Plan, device: torch.device) -> Executor:
    """What runs the group, as a plan of its own."""
    nodes = tuple(n.id for n in graph.nodes if not is_input(n))
    if not nodes:
        raise PlanError("the group computes nothing")
    alone = replace(plan, graph_key=key(graph), groups=(replace(group, nodes=nodes, copies=()),))
    # Eager's values may have strides that the captured graph has not.
    return Executor(captured_of(graph, device), alone, device, guard=True)


def _operations(graph: Graph) -> tuple[str, ...]:
    return tuple(n.op.split(".")[1] for n in graph.nodes if is_compute(n))
