"""Without a GPU: the model's plan, compiled for the target and checked in Triton's interpreter."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ...planner.config import Config
from ...planner.costs.cost import Cost
from ...planner.covers.cover import region_group, replaced
from ...planner.errors import Refusal
from ...planner.graph.graph import key as graph_key
from ...planner.groups.group import Groups, copies_in, subgraph
from ...planner.lowerings.registry import ATEN, TRITON, lowering_of
from ...planner.plan import GroupPlan, Plan
from ...planner.regions.chunks import Walk
from ...planner.regions.regions import regions
from ..progress.progress import Progress
from ..search.tuned_groups import Identity, Task, Tasks
from ..trial.outcome import Candidate, ProgramResources
from ..workers.lab import WorkerLab
from ..workers.pool import COMPILE_LIMIT_S

TRIED = 6
"""Configs of a group that are tried, best first, until one compiles and is right."""

SLOWER = 3
"""Factor on the time limit of a compilation in a search: the interpreter shares its cores."""

CHECK_LIMIT_S = 120.0
"""Seconds that the interpreter may take to check a config."""


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
    with WorkerLab(
        "cpu",
        tasks.profile.capability,
        compilers=compilers or 1,
        interpret=True,
        seed=seed,
        compile_limit_s=SLOWER * COMPILE_LIMIT_S,
        measure_limit_s=CHECK_LIMIT_S,
    ) as lab:
        progress.phase("verify", "compiling for the target and checking in the interpreter")
        return _Offline(lab, progress, identity).plan(tasks)


@dataclass(slots=True)
class _Offline:
    """Plans graphs, and the graphs of their chunks. chosen: by key of the group."""

    lab: WorkerLab
    progress: Progress
    identity: Identity
    chosen: dict[str, _Chosen | None] = field(default_factory=dict)

    def plan(self, tasks: Tasks) -> Plan:
        (best,) = tasks.cover.best(tasks.graph, tasks.profile, 1)
        partition = best.groups
        own = zip(partition, copies_in(tasks.graph, partition), strict=True)
        groups = [self._group(nodes, copies, tasks) for nodes, copies in own]
        for region in regions(tasks.graph, partition):
            instead = self._region(region, partition, tasks)
            if instead is not None:
                groups = replaced(groups, instead)
        predicted = [g.predicted for g in groups if g.predicted is not None]
        total = sum(predicted) if len(predicted) == len(groups) else None
        made = self.identity.plan(groups, "modelled", total)
        return replace(made, graph_key=graph_key(tasks.graph), chosen=best.chosen)

    def _group(self, nodes: tuple[int, ...], copies: tuple[int, ...], tasks: Tasks) -> GroupPlan:
        task = tasks.of(nodes, copies)
        key = task.group.key
        if key not in self.chosen:
            self.chosen[key] = _choose(task, self.lab, self.progress)
        made = self.chosen[key]
        if made is None:
            return GroupPlan(nodes, ATEN.name, key, copies=copies)
        return GroupPlan(nodes, TRITON.name, key, made.config, made.cost.seconds, copies=copies)

    def _region(self, region: tuple[int, ...], groups: Groups, tasks: Tasks) -> GroupPlan | None:
        """A region in the way that the model's own plan has it."""
        modelled = region_group(tasks.graph, region, groups, tasks.profile)
        if modelled is None:
            return None
        part = subgraph(tasks.graph, region).graph
        found = lowering_of(modelled).walk(part, modelled.options)
        if not isinstance(found, Walk):
            return None
        bodies = (self.plan(Tasks(body, tasks.profile, tasks.cover)) for body in found.bodies)
        return replace(modelled, bodies=tuple(bodies))


@dataclass(frozen=True, slots=True)
class _Chosen:
    config: Config
    cost: Cost
    resources: ProgramResources


def _choose(task: Task, lab: WorkerLab, progress: Progress) -> _Chosen | None:
    name = task.group.name
    if isinstance(task.space, Refusal):
        progress.note(f"{name}: no kernel: {task.space}")
        return None
    ranked = task.space.ranked(TRIED)
    for config, cost in ranked:
        resources = lab.compile(task.group, config).result()
        if not isinstance(resources, ProgramResources):
            progress.note(f"{name} ({config}): {resources.reason}")
            continue
        checked = lab.check(task.group, Candidate.generated(config))
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
