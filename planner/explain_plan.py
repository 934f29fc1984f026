"""The explanation of a plan: for each group its nests, what was derived and what was refused,
its cost beside what was measured; for each pair of neighbours, why they are two kernels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from .bitsets import bits, bitset
from .config import LOOP, Config, branches
from .costs.cost import estimate, total
from .costs.device import DeviceProfile
from .costs.least import least, least_of_whole
from .covers.growing import cut_edges
from .covers.pricing import called_s
from .errors import PlanError, Refusal, Refused
from .explanation import (
    Axis,
    Boundary,
    Denied,
    Explanation,
    GroupExplanation,
    Kernel,
    MaskedAxis,
    Measured,
    Operation,
    Otherwise,
    Side,
    Tensor,
    UngroupedNode,
)
from .graph.graph import Graph, kernel_key, key
from .graph.ops import Contraction, is_compute, is_free, is_input, row
from .graph.varying import bucket_name, is_varying, sizes_of
from .groups.group import GroupContent, is_copied, subgraph, with_free_nodes
from .groups.legality import Dependences, may_join
from .lower import lower, schedule_of
from .lowerings.aten import aten_s
from .lowerings.registry import lowering_of
from .nests.group_nests import Schedule, schedule_group
from .nests.linear_forms import Affine, TileAxis
from .nests.mask_bounds import Limit
from .nests.nest import Derivation
from .plan import GroupPlan, Plan
from .space.space import Space, space_of
from .tiles.blocks import Blocks


def explain_plan(
    graph: Graph,
    plan: Plan,
    device: DeviceProfile,
    *,
    measured: Mapping[str, Measured] | None = None,
    sources: Mapping[int, str] | None = None,
    only: Collection[int] | None = None,
    texts: bool = False,
) -> Explanation:
    """The explanation of a plan of this graph, its costs counted for the device.

    measured: what is known of groups beyond the plan, by kernel key. sources: lines of the user's
    code by node. only: numbers of the groups to explain, with their boundaries; None is all.
    texts: the generated kernels too. Raises PlanError when the plan is of another graph.
    """
    if plan.graph_key != key(graph):
        raise PlanError(f"the plan is for graph {plan.graph_key[:12]}, not for this one")
    work = _Work(graph, plan, device, measured or {}, sources or {}, texts)
    wanted = [n for n in range(len(plan.groups)) if only is None or n in only]
    grouped = {node for group in plan.groups for node in group.nodes}
    return Explanation(
        plan.graph_key,
        device.name,
        plan.evidence,
        plan.predicted,
        plan.measured,
        tuple(work.group(number) for number in wanted),
        work.alone(grouped) if only is None else (),
        work.boundaries(only),
        plan.chosen,
        _sizes(graph, plan),
        least_of_whole(graph, device),
    )


def _sizes(graph: Graph, plan: Plan) -> str:
    if not is_varying(graph):
        return ""
    return "all sizes" if plan.is_for_all_sizes else bucket_name(graph)


@dataclass(frozen=True, slots=True)
class _Work:
    graph: Graph
    plan: Plan
    device: DeviceProfile
    measured: Mapping[str, Measured]
    sources: Mapping[int, str]
    texts: bool
    spaces: dict[str, Space | Refusal] = field(default_factory=dict)
    judged: dict[str, Refusal | float] = field(default_factory=dict)

    def operation(self, node: int, copied: bool = False) -> Operation:
        found = self.graph.nodes[node]
        kind = None if found.type is None else str(found.type)
        source = self.sources.get(node, "")
        copied = copied or is_copied(self.graph, node)
        return Operation(node, found.name, found.op, kind, source, copied)

    def group(self, number: int) -> GroupExplanation:
        group = self.plan.groups[number]
        part = subgraph(self.graph, group.nodes, group.copies).graph
        bodies = self._bodies(part, group)
        made: tuple[Kernel, ...] | Refusal = ()
        schedule: Schedule | Refusal | None = None
        if group.config is not None:
            config = group.config
            schedule = schedule_of(part, config)
            made = self._kernels(part, config, schedule)
        kernels = () if isinstance(made, Refusal) else made
        derivation = _derivation(part, schedule)
        temporaries = schedule.temporaries if isinstance(schedule, Schedule) else ()
        known = self.measured.get(group.kernel_key, Measured())
        return GroupExplanation(
            number=number,
            nodes=group.nodes,
            operations=tuple(
                self.operation(n, n in group.copies)
                for n in group.nodes
                if not _is_idle(self.graph, n)
            ),
            lowering=group.lowering,
            config=group.config,
            options=group.options,
            inputs=_tensors(part, part.inputs),
            outputs=_tensors(part, [o for o in part.outputs if o is not None]),
            kernels=kernels,
            derived=derivation.proofs,
            denied=tuple(_denied(who, r) for who, r in derivation.refusals.items()),
            never_stored=_never_stored(part) if kernels else (),
            temporaries=tuple(Tensor.of(f"tmp{i}", t) for i, t in enumerate(temporaries)),
            layouts=() if bodies else _layouts(self._space(part)),
            predicted=total([k.predicted for k in kernels]) if kernels else None,
            predicted_s=group.predicted,
            # The plan's own seconds were measured last.
            measured=known if group.measured is None else replace(known, seconds=group.measured),
            otherwise=None if kernels or bodies else self._otherwise(part, made),
            bodies=bodies,
            least=least(part, self.device),
            sizes=() if group.sizes is None else tuple(branches(group.sizes)),
            varying=() if group.sizes is None else sizes_of(part),
        )

    def _bodies(self, part: Graph, group: GroupPlan) -> tuple[tuple[int, Explanation], ...]:
        found = lowering_of(group).walk(part, group.options)
        if found is None:
            return ()
        if isinstance(found, Refusal):
            raise PlanError(f"the plan's group of nodes {group.nodes} is refused: {found}")
        times = Counter(chunk.body for chunk in found.chunks())
        known, texts = self.measured, self.texts
        return tuple(
            (times[i], explain_plan(body, plan, self.device, measured=known, texts=texts))
            for i, (body, plan) in enumerate(zip(found.bodies, group.bodies, strict=True))
        )

    def _kernels(
        self, part: Graph, config: Config, schedule: Schedule | Refusal
    ) -> tuple[Kernel, ...] | Refusal:
        """The kernels of a config, or why the code of today has none for it."""
        program = lower(part, config)
        if isinstance(program, Refusal):
            return program
        assert isinstance(schedule, Schedule)
        made = []
        copying = {i + 1: k for i, k in enumerate(program.kernels) if k.copies}
        sources = [(k, copying.get(i)) for i, k in enumerate(program.kernels) if not k.copies]
        for (source, copy), kernel in zip(sources, schedule.kernels, strict=True):
            nest, blocks = kernel.nest, Blocks.of(kernel.nest, config.blocks)
            try:
                cost = estimate(nest, config, self.device)
            except Refused as refused:
                return refused.refusal
            texts = [k.text for k in (copy, source) if k and self.texts]
            shape = (str(nest), _axes(blocks), _bounds(blocks))
            text, copied_by = "\n\n".join(texts), copy.name if copy else ""
            made.append(Kernel(source.name, *shape, source.grid, cost, text, copied_by))
        return tuple(made)

    # --- what is not generated ---

    def alone(self, grouped: Collection[int]) -> tuple[UngroupedNode, ...]:
        """Nodes that no group has; of those that each reader has a copy of, none is left."""
        found = []
        for node in self.graph.nodes:
            idle = _is_idle(self.graph, node.id) or is_copied(self.graph, node.id)
            if node.id not in grouped and not idle:
                part = self._part([node.id])
                about = self._otherwise(part, ()), least(part, self.device)
                found.append(UngroupedNode(self.operation(node.id), *about))
        return tuple(found)

    def _otherwise(self, part: Graph, made: object) -> Otherwise:
        judged = made if isinstance(made, Refusal) else self._judge(part)
        known = all(is_compute(n) or _is_idle(part, n.id) for n in part.nodes)
        usual_s = aten_s(part, self.device) if known else None
        if isinstance(judged, Refusal):
            return Otherwise(_denied("kernel", judged), None, usual_s)
        return Otherwise(None, judged, usual_s)

    def _space(self, part: Graph) -> Space | Refusal:
        # The layers of a model are equal groups: each is looked at once.
        name = key(part)
        if name not in self.spaces:
            self.spaces[name] = space_of(part, self.device)
        return self.spaces[name]

    def _judge(self, part: Graph) -> Refusal | float:
        """The model's seconds of the best of a group's usual configs, or why it has no kernel."""
        name = key(part)
        if name not in self.judged:
            self.judged[name] = _usual(self._space(part))
        return self.judged[name]

    # --- boundaries ---

    def boundaries(self, only: Collection[int] | None) -> tuple[Boundary, ...]:
        """Why neighbours are not one kernel; with `only`, of these groups alone."""
        homes, numbers = self._homes()
        home = {node: groups[0] for node, groups in homes.items()}
        pairs: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for first, second in cut_edges(self.graph):
            if not set(homes[first]) & set(homes[second]):
                left, right = home[first], home[second]
                # Siblings may stand between each other's nodes: they are neighbours once.
                pair = (right, left) if (right, left) in pairs else (left, right)
                pairs.setdefault(pair, []).append((first, second))
        dependences = Dependences(self.graph)
        found = []
        for (left, right), edges in pairs.items():
            sides = [Side(numbers.get(s), tuple(bits(s))) for s in (left, right)]
            if only is not None and all(side.group not in only for side in sides):
                continue
            refusal = may_join(self.graph, dependences, home, left, right)
            found.append(self._boundary(sides, tuple(edges), refusal))
        return tuple(found)

    def _boundary(
        self, sides: list[Side], edges: tuple[tuple[int, int], ...], refusal: Refusal | None
    ) -> Boundary:
        left, right = sides
        if refusal is None:
            joined = self._judge(self._part((*left.nodes, *right.nodes)))
            if not isinstance(joined, Refusal):
                return Boundary(left, right, edges, None, joined, self._apart_s(sides))
            refusal = joined
        return Boundary(left, right, edges, _denied("one kernel", refusal))

    def _apart_s(self, sides: list[Side]) -> float | None:
        found = 0.0
        for side in sides:
            copies = () if side.group is None else self.plan.groups[side.group].copies
            part = self._part(side.nodes, copies)
            seconds = self._judge(part)
            if isinstance(seconds, Refusal):
                return None
            called = GroupContent(kernel_key(part), part)
            vendors = called.contracts or called.convolves
            found += min(seconds, called_s(called, self.device)) if vendors else seconds
        return found

    def _part(self, nodes: Collection[int], copies: tuple[int, ...] = ()) -> Graph:
        return subgraph(self.graph, with_free_nodes(self.graph, nodes), copies).graph

    def _homes(self) -> tuple[dict[int, list[int]], dict[int, int]]:
        """The groups of each compute node as bitsets, itself where it has none; and the number of
        each group."""
        graph = self.graph
        compute = [n.id for n in graph.nodes if is_compute(n) and not is_copied(graph, n.id)]
        homes: dict[int, list[int]] = {node: [] for node in compute}
        numbers = {}
        for number, group in enumerate(self.plan.groups):
            members = bitset(node for node in group.nodes if node in homes)
            numbers[members] = number
            for node in bits(members):
                homes[node].append(members)
        return {node: groups or [1 << node] for node, groups in homes.items()}, numbers


# --- parts of an explanation ---


def _is_idle(graph: Graph, node: int) -> bool:
    found = graph.nodes[node]
    return is_input(found) or is_free(found)


def _denied(subject: str, refusal: Refusal) -> Denied:
    return Denied(subject, refusal.rule, refusal.reason)


def _tensors(part: Graph, nodes: Collection[int]) -> tuple[Tensor, ...]:
    found = [part.nodes[n] for n in nodes]
    return tuple(Tensor.of(n.name, n.type) for n in found if n.type is not None)


def _never_stored(part: Graph) -> tuple[Tensor, ...]:
    """See `GroupExplanation`; of equal sizes the first counts."""
    inner = [
        node
        for node in part.nodes
        if node.type is not None and node.id not in part.outputs and not _is_idle(part, node.id)
    ]
    products = [node for node in inner if isinstance(row(node), Contraction)]
    largest = [
        max(found, key=lambda node: node.type.nbytes if node.type else 0)
        for found in (inner, products)
        if found
    ]
    return _tensors(part, dict.fromkeys(node.id for node in largest))


def _usual(space: Space | Refusal) -> Refusal | float:
    if isinstance(space, Refusal):
        return space
    best = space.quick()
    return best.seconds if best else _first_refusal(space)


def _first_refusal(space: Space) -> Refusal:
    """Of a space whose usual configs are all refused."""
    judged = map(space.judge, space.enumerate())
    return next((r for r in judged if isinstance(r, Refusal)), Refusal("layout", "no config"))


def _layouts(space: Space | Refusal) -> tuple[Denied, ...]:
    """The layouts that a group does not have."""
    if isinstance(space, Refusal):
        return (_denied("natural", space),)
    return tuple(_denied(layout.name, refusal) for layout, refusal in space.refusals.items())


def _derivation(part: Graph, schedule: Schedule | Refusal | None) -> Derivation:
    """What was derived for the nests of a schedule. A split folds its parts by the same rules as
    the one loop that it divides, whose derivation it is."""
    if not isinstance(schedule, Schedule):
        return Derivation()
    if len(schedule.kernels) > 1:
        whole = schedule_group(part, LOOP)
        return Derivation() if isinstance(whole, Refusal) else whole.kernels[0].nest.derived
    return schedule.kernels[0].nest.derived


def _axes(blocks: Blocks) -> tuple[Axis, ...]:
    pairs = zip(blocks.nest.axes, blocks.sizes, strict=True)
    return tuple(Axis(axis.name, axis.extent, axis.role.value, block) for axis, block in pairs)


def _bounds(blocks: Blocks) -> tuple[MaskedAxis, ...]:
    nest = blocks.nest
    return tuple(
        MaskedAxis(
            nest.axes[axis].name,
            tuple(condition(nest.axes, axis, limit) for limit in found),
            blocks.turns(axis),
            blocks.count(axis),
        )
        for axis, found in nest.limits.items()
        if found
    )


def condition(axes: Sequence[TileAxis], axis: int, limit: Limit) -> str:
    """A limit of `axis` with its index on a side of its own: "r0 <= x1 - 128"."""
    sign = -1 if limit.scale > 0 else 1
    given = "".join(f" {'+' if c * sign > 0 else '-'} v{v}" for v, c in limit.values)
    relation = "<=" if limit.scale > 0 else ">="
    return f"{axes[axis].name} {relation} {_form(axes, limit.rest, sign)}{given}"


def _form(axes: Sequence[TileAxis], form: Affine, sign: int) -> str:
    parts = []
    for term in form.terms:
        name, scale = axes[term.axis].name, sign * term.scale
        parts.append({1: name, -1: f"-{name}"}.get(scale, f"{scale} * {name}"))
    parts += [str(sign * form.base)] if form.base or not parts else []
    return " + ".join(parts).replace("+ -", "- ")
