"""Without a GPU: the model's plan, compiled for the target and checked in Triton's interpreter."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..planner.config import Config
from ..planner.cost import Cost
from ..planner.errors import Refusal
from ..planner.plan import GroupPlan, Plan
from .groups import Identity, Task, Tasks
from .lab import WorkerLab
from .outcome import Candidate, Resources
from .progress import Progress

TRIED = 6
"""Configs of a group that are tried, best first, until one compiles and is right."""

COMPILE_LIMIT_S = 60.0
CHECK_LIMIT_S = 120.0


def plan_offline(
    tasks: Tasks,
    identity: Identity,
    progress: Progress,
    compilers: int | None = None,
    seed: int = 0,
) -> Plan:
    """The model's cover; each group by its first config that compiles and is right, or as the
    framework runs it when none is. What was checked, and what not, goes to `progress`."""
    progress.phase("model", f"planning for {tasks.profile.name} by the cost model")
    cuts = tasks.cover.best(tasks.graph, tasks.profile)
    partition = tasks.cover.partition(tasks.graph, cuts)
    chosen: dict[str, _Chosen | None] = {}
    with WorkerLab(
        "cpu",
        tasks.profile.capability,
        compilers=compilers or 1,
        interpret=True,
        seed=seed,
        compile_limit_s=COMPILE_LIMIT_S,
        measure_limit_s=CHECK_LIMIT_S,
    ) as lab:
        progress.phase("verify", "compiling for the target and checking in the interpreter")
        for nodes in partition:
            task = tasks.of(nodes)
            if task.group.key not in chosen:
                chosen[task.group.key] = _choose(task, lab, progress)
    groups = []
    for nodes in partition:
        key = tasks.of(nodes).group.key
        made = chosen[key]
        plan = GroupPlan(nodes, "aten", key)
        if made is not None:
            plan = replace(plan, lowering="triton", config=made.config, predicted=made.cost.seconds)
        groups.append(plan)
    predicted = [g.predicted for g in groups if g.predicted is not None]
    total = sum(predicted) if len(predicted) == len(groups) else None
    return identity.plan(groups, "modelled", total)


@dataclass(frozen=True, slots=True)
class _Chosen:
    config: Config
    cost: Cost
    resources: Resources


def _choose(task: Task, lab: WorkerLab, progress: Progress) -> _Chosen | None:
    name = task.group.name
    if isinstance(task.space, Refusal):
        progress.note(f"{name}: no kernel: {task.space}")
        return None
    ranked = task.space.ranked(TRIED)
    for config, cost in ranked:
        resources = lab.compile(task.group, config).result()
        if not isinstance(resources, Resources):
            progress.note(f"{name} ({config}): {resources.reason}")
            continue
        checked = lab.check(task.group, Candidate("triton", config))
        if not isinstance(checked, str):
            progress.note(f"{name} ({config}): {checked.reason}")
            continue
        progress.note(
            f"{name}: {resources.registers} registers, {resources.spill_bytes} B spilled, "
            f"{resources.shared_bytes} B shared; interpreter: {checked}"
        )
        return _Chosen(config, cost, resources)
    progress.note(f"{name}: none of {len(ranked)} configs compiles and is right; left to ATen")
    return None
