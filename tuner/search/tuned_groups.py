"""The groups of a partition as things to tune, and a partition as a plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from ...planner.costs.cost import Cost
from ...planner.costs.device import DeviceProfile
from ...planner.covers import cover
from ...planner.covers.cover import Cover
from ...planner.covers.growing import cut_edges
from ...planner.covers.pricing import called_s, is_lone_product, quick_s
from ...planner.errors import Refusal
from ...planner.graph.graph import Graph
from ...planner.groups.group import GroupContent, Groups, copies_in
from ...planner.lower import kernel_name
from ...planner.lowerings.aten import aten_s
from ...planner.lowerings.registry import calls
from ...planner.lowerings.triton import space_for
from ...planner.plan import Evidence, GroupPlan, Plan
from ..records.findings import Finding, Findings
from ..records.ledger import compute_count
from ..trial.outcome import ATEN
from ..workers.covering import Covering
from ..workers.lab import Group, Lab
from ..workers.ranking import RankedSpace, SpaceLike
from .config_search import SURE

FEW = 2
COVERS = 5
"""The model's best covers, looked at before any other partition."""
LARGE = 100
"""Operations of a graph from which its covers are looked for in workers: that takes seconds, in
which this process has other work, such as to compile the baselines."""
LOOK_S = 0.02
"""Seconds that another look for covers takes for each operation, in this process."""

Cuts = frozenset[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class CoverFunctions:
    """The planner's functions over partitions; a test brings its own. best: the model's best few;
    learned: the best with seconds that are known; grown: the cuts that growing groups leaves.
    group: a group as the model alone would run it."""

    edges: Callable[[Graph], tuple[tuple[int, int], ...]] = cut_edges
    partition: Callable[[Graph, Cuts], Groups] = cover.partition
    best: Callable[[Graph, DeviceProfile, int], tuple[cover.Cover, ...]] = cover.covers
    learned: Callable[[Graph, DeviceProfile, Mapping[str, float]], Groups] = cover.learned
    grown: Callable[[Graph, DeviceProfile], Cuts] = cover.best_cuts
    space: Callable[[GroupContent, DeviceProfile], SpaceLike | Refusal] = space_for
    group: Callable[..., GroupPlan] = cover.group_plan


@dataclass(frozen=True, slots=True)
class Task:
    """A distinct group. Isomorphic groups of the graph share one task. vendors: whether a vendor's
    call computes all of it, of whose time the model knows nothing. framework_s: seconds that the
    framework takes at least, where the model is sure that a kernel takes far less; else 0.
    vendor_s: the vendor's seconds by the model of a product alone that it leaves to the vendor, on
    padded operands where that is faster; else 0."""

    group: Group
    space: SpaceLike | Refusal
    modelled: Cost | None
    floor_s: float
    vendors: bool = False
    framework_s: float = 0.0
    vendor_s: float = 0.0


def begin_plan(graph: Graph, profile: DeviceProfile, lab: Lab) -> None:
    """Have the covers that `Tasks.plan` will ask for looked for from now on."""
    if compute_count(graph) >= LARGE:
        lab.plan(graph, profile, COVERS)


@dataclass(slots=True)
class Tasks:
    """The tasks of a graph's groups, each made once. By nodes, and by the group's key."""

    graph: Graph
    profile: DeviceProfile
    cover: CoverFunctions = field(default_factory=CoverFunctions)
    _by_nodes: dict[tuple[tuple[int, ...], tuple[int, ...]], Task] = field(default_factory=dict)
    _by_key: dict[str, Task] = field(default_factory=dict)
    _spaces: dict[str, RankedSpace | Refusal] = field(default_factory=dict)
    _all: dict[Groups, list[Task]] = field(default_factory=dict)
    planned: Covering | None = None
    """What was found elsewhere (see `plan`)."""

    def of(self, nodes: tuple[int, ...], copies: tuple[int, ...] = ()) -> Task:
        found = self._by_nodes.get((nodes, copies))
        if found is None:
            found = self._by_nodes[nodes, copies] = self._make(nodes, copies)
        return found

    def all(self, groups: Groups) -> list[Task]:
        """The tasks of a partition, one for each group."""
        if groups not in self._all:
            both = zip(groups, copies_in(self.graph, groups), strict=True)
            self._all[groups] = [self.of(nodes, copies) for nodes, copies in both]
        return self._all[groups]

    def begin(self, groups: Groups, lab: Lab) -> None:
        """Have the configs of all these groups ranked at the same time, in the lab's workers. A
        few are ranked here before a worker has started."""
        both = zip(groups, copies_in(self.graph, groups), strict=True)
        parts = {part.key: part for part in (GroupContent.of(self.graph, *each) for each in both)}
        if len(parts) <= FEW:
            return
        for part in parts.values():
            space = self._space(part)
            if isinstance(space, RankedSpace):
                space.begin(partial(lab.rank, _group(part), self.profile))

    @property
    def different(self) -> int:
        """The number of different groups in the cover that the model prefers."""
        return len({task.group.key for task in self.all(self.first)})

    def plan(
        self, lab: Lab, is_over: Callable[[], bool], is_enough: Callable[[], bool] = lambda: False
    ) -> bool:
        """Look for the model's best covers of a large graph in the lab's workers; those of others
        are found where they are asked for. False: `is_over` said so before anything came.
        is_enough: whether what has come of sections will do."""
        if not self.is_large:
            return True
        planning = lab.plan(self.graph, self.profile, COVERS)
        found = planning.result(is_over, is_enough) if planning is not None else None
        if found is None:
            return planning is None or not is_over()
        self.take(found)
        return True

    def take(self, found: Covering) -> None:
        """Set out from covers that were found elsewhere, and their prices."""
        self.planned = found
        quick_s.tell(self.profile, found.prices)

    def best(self, count: int) -> tuple[Cover, ...]:
        """The best few covers by the model."""
        if self.planned is not None and count <= COVERS:
            return self.planned.covers[:count]
        return self.cover.best(self.graph, self.profile, count)

    @property
    def first(self) -> Groups:
        """The cover that the model prefers."""
        return self.best(1)[0].groups

    @property
    def is_large(self) -> bool:
        """Whether its covers are looked for elsewhere."""
        return compute_count(self.graph) >= LARGE

    @property
    def look_s(self) -> float:
        """Seconds that another look for covers of this graph may take."""
        return LOOK_S * compute_count(self.graph)

    def _space(self, part: GroupContent) -> RankedSpace | Refusal:
        if part.key not in self._spaces:
            space = self.cover.space(part, self.profile)
            own = space if isinstance(space, Refusal) else RankedSpace(space)
            self._spaces[part.key] = own
        return self._spaces[part.key]

    def _make(self, nodes: tuple[int, ...], copies: tuple[int, ...]) -> Task:
        part = GroupContent.of(self.graph, nodes, copies)
        known = self._by_key.get(part.key)
        if known is not None:
            return known
        group = _group(part)
        space = self._space(part)
        modelled, floor_s = None, 0.0
        if not isinstance(space, Refusal):
            # Of a few hundred configs; of thousands where workers have ranked them (see `begin`).
            best = space.top()
            modelled = best[1] if best else None
            floor_s = space.floor_s()
        vendors = any(not each.one_by_one for each, _ in calls(part.group))
        made = Task(group, space, modelled, floor_s, vendors)
        if modelled and not vendors:
            # One operation after the other: products by the vendor, all else at memory's speed.
            framework_s = aten_s(part.group, self.profile)
            if framework_s > SURE * modelled.seconds:
                made = replace(made, framework_s=framework_s)
        if modelled and is_lone_product(part):
            vendor_s = called_s(part, self.profile)
            made = replace(made, vendor_s=vendor_s if vendor_s <= modelled.seconds else 0.0)
        self._by_key[group.key] = made
        return made

    def modelled_s(self, groups: Groups) -> float:
        """The model's seconds of a partition; a group it cannot make counts as its operations,
        one launch each."""
        return sum(map(self._group_s, self.all(groups)))

    def floor_s(self, groups: Groups) -> float:
        """Seconds that no config of any of the groups can beat."""
        return sum(task.floor_s for task in self.all(groups))

    def _group_s(self, task: Task) -> float:
        if task.modelled is not None:
            return task.modelled.seconds
        sizes = (n.type.nbytes * 3 for n in task.group.graph.nodes if n.type and n.inputs)
        return sum(self.profile.stream_s(size) for size in sizes)


def _group(part: GroupContent) -> Group:
    return Group.of(part.group, kernel_name(part.group))


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition with what is known of its time. measured_s: the sum over its groups, None while
    one of them has not been measured."""

    groups: Groups
    modelled_s: float
    measured_s: float | None = None


def measured_s(groups: Groups, tasks: Tasks, findings: Findings) -> float | None:
    """The sum of the best times of all groups; None while one has none that is not left to the
    vendor."""
    total = 0.0
    for task in tasks.all(groups):
        best = findings.best(task.group.key)
        if best is None and not task.vendor_s:
            return None
        total += task.vendor_s if best is None else best.seconds
    return total


@dataclass(frozen=True, slots=True)
class Identity:
    """The graph, device and versions that a plan is for."""

    graph_key: str
    device: str
    versions: Mapping[str, str]

    def plan(
        self, groups: Sequence[GroupPlan], evidence: Evidence, predicted: float | None = None
    ) -> Plan:
        return Plan(
            self.graph_key,
            self.device,
            tuple(self.versions.items()),
            evidence,
            tuple(groups),
            predicted,
        )


def plan_of(groups: Groups, tasks: Tasks, findings: Findings, identity: Identity) -> Plan:
    """The partition with the best that was found for each group. A group without any finding
    runs as the framework runs it."""
    return _planned(
        groups, tasks, identity, lambda nodes, copies, task: _best(nodes, copies, task, findings)
    )


def completed(groups: Groups, tasks: Tasks, findings: Findings, identity: Identity) -> Plan | None:
    """The same, but a group of which no kernel was tried runs as the cost model would have it. None
    where there is no such group, or the model would have it no other way."""

    def made(nodes: tuple[int, ...], copies: tuple[int, ...], task: Task) -> GroupPlan:
        return _untried(nodes, copies, task, tasks, findings) or _best(
            nodes, copies, task, findings
        )

    found = _planned(groups, tasks, identity, made)
    return None if found == plan_of(groups, tasks, findings, identity) else found


def _planned(
    groups: Groups,
    tasks: Tasks,
    identity: Identity,
    make: Callable[[tuple[int, ...], tuple[int, ...], Task], GroupPlan],
) -> Plan:
    own = zip(groups, copies_in(tasks.graph, groups), tasks.all(groups), strict=True)
    made = [make(nodes, copies, task) for nodes, copies, task in own]
    predicted = [g.predicted for g in made]
    known = [p for p in predicted if p is not None]
    total = sum(known) if len(known) == len(predicted) else None
    return identity.plan(made, "searched", total)


def _untried(
    nodes: tuple[int, ...],
    copies: tuple[int, ...],
    task: Task,
    tasks: Tasks,
    findings: Findings,
) -> GroupPlan | None:
    """A group of which no kernel was tried, as the model would run it. None where one was tried, or
    where what was measured is faster than the cost model expects, or the framework has it anyway.
    Of a product alone that may be a call on padded operands: where rows start unaligned the
    framework's own call takes several times as long."""
    if isinstance(task.space, Refusal) or findings.of(task.group.key).is_tried:
        return None
    best = findings.best(task.group.key)
    made = tasks.cover.group(tasks.graph, nodes, copies, tasks.profile, task.space.top())
    if task.vendor_s and made.lowering == ATEN.lowering:
        return None
    if best is not None and (made.predicted is None or best.seconds <= made.predicted):
        return None
    return made


def _best(
    nodes: tuple[int, ...], copies: tuple[int, ...], task: Task, findings: Findings
) -> GroupPlan:
    best = findings.best(task.group.key)
    count = compute_count(task.group.graph)
    made = GroupPlan(nodes, ATEN.lowering, task.group.key, kernels=count, copies=copies)
    if best is None:
        return made
    made = replace(made, measured=best.seconds)
    if best.candidate == ATEN:
        return made
    return replace(
        made,
        lowering=best.candidate.lowering,
        config=best.candidate.config,
        options=best.candidate.options,
        predicted=_predicted(best, task),
        kernels=best.cost.launches if best.cost else 1,
    )


def runners_up(
    plan: Plan, tasks: Tasks, findings: Findings, count: int, within: float
) -> list[Plan]:
    """The plan with the next best configs of its slowest group: they were close in the search,
    and the last measurement tells them apart better."""
    slowest = max(plan.groups, key=lambda group: group.measured or 0.0, default=None)
    if slowest is None or slowest.config is None:
        return []
    others = findings.of(slowest.kernel_key).finalists(count + 1, within)
    plans = []
    for finding in others:
        config = finding.candidate.config
        if config is not None and config != slowest.config:
            changed = replace(
                slowest,
                config=config,
                measured=finding.seconds,
                predicted=finding.cost.seconds if finding.cost else None,
                kernels=finding.cost.launches if finding.cost else 1,
            )
            groups = [changed if group is slowest else group for group in plan.groups]
            plans.append(replace(plan, groups=tuple(groups)))
    return plans[:count]


def _predicted(best: Finding, task: Task) -> float | None:
    if best.candidate.config is None or isinstance(task.space, Refusal):
        return None
    cost = best.cost or task.space.judge(best.candidate.config)
    return None if isinstance(cost, Refusal) else cost.seconds
