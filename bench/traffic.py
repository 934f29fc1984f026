"""Bytes of one call: what the cost model expects of a loaded plan, and a call for ncu to watch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from ..api import executors, load, plans
from ..planner.costs.device import DeviceProfile, profile_of
from ..planner.errors import Refusal
from ..planner.graph.graph import INPUT, Graph, Node
from ..planner.graph.ops import is_free
from ..planner.groups.group import subgraph
from ..planner.plan import GroupPlan, Plan
from ..planner.runtime.dispatch.leaving import NoPlan
from ..planner.runtime.dispatch.plan_runners import OnMiss
from ..planner.space.space import space_of
from .result import Missing, Predicted
from .workloads import Workload, make

WARM_UP = 3
"""Calls before the one that is watched: a call may capture itself as a graph in the second."""


def watched(
    workload: Workload,
    device: torch.device,
    store: str | None,
    *,
    on_miss: OnMiss = "error",
    **scale: int,
) -> Predicted | Missing:
    """One call of the workload by its stored plan, with the profiler on for nothing else."""
    model, arguments = make(workload, str(device), **scale)
    fast = load(model, store=store, on_miss=on_miss)
    with torch.no_grad():
        try:
            for _ in range(WARM_UP):
                arguments.run(fast)
        except NoPlan as error:
            return Missing(str(error))
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
            arguments.run(fast)
            torch.cuda.synchronize(device)
            torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]
    return predicted(fast, profile_of(device))


def predicted(fast: Any, device: DeviceProfile) -> Predicted:
    """Bytes of a call of what `load` gave, over all its graphs."""
    runners = executors(fast)
    if not runners or len(runners) < len(plans(fast)):
        return Predicted(None, False)
    each = [of_plan(runner.captured.graph, runner.plan, device) for runner in runners]
    known = [one.hbm_bytes for one in each if one.hbm_bytes is not None]
    whole = all(one.whole for one in each)
    return Predicted(sum(known) if len(known) == len(each) else None, whole)


def of_plan(graph: Graph, plan: Plan, device: DeviceProfile) -> Predicted:
    """Of one graph. None for its bytes where the model no longer knows a config of the plan."""
    total, whole = 0, True
    inside = {node for group in plan.groups for node in group.nodes}
    for group in plan.groups:
        generated = _generated(graph, group, device)
        if isinstance(generated, Refusal):
            return Predicted(None, False)
        if generated is None:
            whole = False
            generated = _ends(subgraph(graph, group.nodes, group.copies).graph)
        total += generated
    for node in graph.nodes:
        if node.id not in inside and node.op != INPUT and not is_free(node):
            whole = False
            total += _nbytes([node, *(graph.nodes[i] for i in node.inputs)])
    return Predicted(total, whole)


def _generated(graph: Graph, group: GroupPlan, device: DeviceProfile) -> int | Refusal | None:
    """Bytes of a group's own kernels; None where it has none."""
    if group.config is None:
        return None
    space = space_of(subgraph(graph, group.nodes, group.copies).graph, device)
    if isinstance(space, Refusal):
        return space
    # A plan that was measured is judged, however slow the model thinks it.
    cost = replace(space, hopeless_s=math.inf).judge(group.config)
    return cost if isinstance(cost, Refusal) else cost.hbm_bytes


def _ends(group: Graph) -> int:
    """Bytes of the inputs and outputs of a group, each once."""
    ends = dict.fromkeys([*group.inputs, *(o for o in group.outputs if o is not None)])
    return _nbytes([group.nodes[node] for node in ends])


def _nbytes(nodes: Sequence[Node]) -> int:
    return sum(node.type.nbytes for node in nodes if node.type is not None)
