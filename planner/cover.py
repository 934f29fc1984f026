"""Partitions of a graph into groups: which are possible, which the model thinks best."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from . import matrix
from .chunks import Walk
from .config import Config
from .cost import Cost
from .device import DeviceProfile
from .errors import Refusal
from .graph import Graph, key
from .group import is_copied, subgraph, with_free_nodes
from .legality import Dependences, bits, may_join
from .ops import Contraction, is_compute, row
from .plan import GroupPlan, Plan
from .regions import regions
from .space import Space, space_of
from .versions import versions
from .ways import Way, ways

SPARED = 1.1
"""Times the seconds of two kernels that one with a product of matrices may take where it spares a
large intermediate."""

Edge = tuple[int, int]
Groups = tuple[tuple[int, ...], ...]


def cut_edges(graph: Graph) -> tuple[Edge, ...]:
    """The edges between compute nodes along which groups can grow; each can be cut."""
    return Dependences(graph).edges


def partition(graph: Graph, cuts: frozenset[Edge]) -> Groups:
    """Groups (node ids, free nodes included) that grow along every edge not cut, as far as they
    stay legal. Every compute node is in exactly one group."""
    return _grow(graph, lambda edge, left, right: edge not in cuts)


def best_cuts(graph: Graph, device: DeviceProfile) -> frozenset[Edge]:
    """The edges where the model says that two kernels are faster than one."""
    grown = _grow(graph, lambda edge, left, right: _is_cheaper_joined(graph, left, right, device))
    home = {node: number for number, group in enumerate(grown) for node in group}
    return frozenset((a, b) for a, b in cut_edges(graph) if home[a] != home[b])


def modelled_plan(graph: Graph, device: DeviceProfile) -> Plan:
    """The model's plan of a graph: its best cover, each group with its best config; regions of
    several groups in another way where that spares a large value and costs little."""
    groups = _apart(graph, device)
    found = tuple(group.nodes for group in groups)
    for region in regions(graph, found):
        instead = region_group(graph, region, found, device)
        if instead is not None:
            groups = replaced(groups, instead)
    return _plan(graph, groups, device)


def _plan(graph: Graph, groups: Sequence[GroupPlan], device: DeviceProfile) -> Plan:
    made = tuple(g for g in groups if g.lowering != "aten")
    predicted = sum(g.predicted or 0.0 for g in made)
    return Plan(key(graph), device.key, tuple(versions().items()), "modelled", made, predicted)


def _apart(graph: Graph, device: DeviceProfile) -> list[GroupPlan]:
    found = partition(graph, best_cuts(graph, device))
    return [_group_plan(graph, nodes, device) for nodes in found]


def replaced(groups: Sequence[GroupPlan], region: GroupPlan) -> list[GroupPlan]:
    """The groups with those of a region replaced by it, where they make it up."""
    inside = [g for g in groups if set(g.nodes) <= set(region.nodes)]
    if {n for g in inside for n in g.nodes} != set(region.nodes):
        return list(groups)
    return [*(g for g in groups if g not in inside), region]


def _group_plan(graph: Graph, nodes: tuple[int, ...], device: DeviceProfile) -> GroupPlan:
    """A group by the model: as one kernel, or left to ATen and the vendor's products."""
    part = _Part.of(graph, nodes)
    best = _best(part, device)
    if best is not None and not _is_vendors(part, best[1].seconds, device):
        config, cost = best
        return GroupPlan(nodes, "triton", part.key, config, cost.seconds, kernels=cost.launches)
    return GroupPlan(nodes, "aten", part.key, predicted=aten_s(part.group, device))


def region_group(
    graph: Graph, region: tuple[int, ...], groups: Groups, device: DeviceProfile
) -> GroupPlan | None:
    """A region of these groups in the way that the model thinks best, its bodies by the model's
    plans; None where there is none, or the groups one after another are much faster."""
    part = _Part.of(graph, region)
    found = [(way, way_s(way, device)) for way in ways(part.group)]
    if not found:
        return None
    best, predicted = min(found, key=lambda each: each[1])
    inside = [_Part.of(graph, nodes) for nodes in groups if set(nodes) <= set(region)]
    if predicted > SPARED * sum(_seconds(each, device) for each in inside):
        return None
    bodies = tuple(_plan(b, _apart(b, device), device) for b in best.walk.bodies)
    return GroupPlan(
        region, best.lowering, part.key, None, predicted, options=best.options, bodies=bodies
    )


def way_s(way: Way, device: DeviceProfile) -> float:
    """Seconds of a way to run a region, by a quick look at the bodies' best covers."""
    return walked_s(way.walk, [_cover_s(body, device) for body in way.walk.bodies], device)


def _cover_s(graph: Graph, device: DeviceProfile) -> float:
    groups = partition(graph, best_cuts(graph, device))
    return sum(_seconds(_Part.of(graph, nodes), device) for nodes in groups)


def _seconds(part: _Part, device: DeviceProfile) -> float:
    """Seconds of a group; where it has no kernel, as ATen runs it."""
    found = _modelled_s(part, device)
    return aten_s(part.group, device) if found is None else found


def walked_s(found: Walk, bodies: Sequence[float], device: DeviceProfile) -> float:
    """Seconds of all chunks, each body given its own; a part of a result is moved once more to its
    place."""
    total = sum(bodies[chunk.body] for chunk in found.chunks())
    for result in found.results:
        if result.cuts:
            total += found.count * device.stream_s(2 * result.type.nbytes / found.count)
    return total


def _grow(graph: Graph, wanted: Callable[[Edge, int, int], bool]) -> Groups:
    dependences = Dependences(graph)
    home = {n.id: 1 << n.id for n in graph.nodes if is_compute(n) and not is_copied(graph, n.id)}
    grows = True
    while grows:  # What was refused may become legal when its neighbours have joined.
        grows = False
        for first, second in dependences.edges:
            left, right = home[first], home[second]
            if left == right or not wanted((first, second), left, right):
                continue
            if may_join(graph, dependences, home, left, right) is None:
                grows = True
                for node in bits(left | right):
                    home[node] = left | right
    groups = sorted(set(home.values()), key=lambda group: group & -group)
    return tuple(with_free_nodes(graph, bits(group)) for group in groups)


def _is_cheaper_joined(graph: Graph, left: int, right: int, device: DeviceProfile) -> bool:
    joined = _quick_s(_part(graph, left | right), device)
    apart = [_modelled_s(_part(graph, part), device) for part in (left, right)]
    if joined is None or None in apart:
        return joined is not None
    rest = sum(seconds for seconds in apart if seconds is not None)
    return joined <= rest * (SPARED if _spares(graph, left, right) else 1.0)


def _spares(graph: Graph, left: int, right: int) -> bool:
    """Whether what passes between two groups is larger than all that they read and write as one."""
    whole = _part(graph, left | right).group
    parts = [_part(graph, each).group for each in (left, right)]

    def ends(group: Graph) -> int:
        found = [group.nodes[n].type for n in (*group.inputs, *(o or 0 for o in group.outputs))]
        return sum(t.nbytes for t in found if t)

    return _has_contraction(whole) and sum(map(ends, parts)) > 3 * ends(whole)


def _modelled_s(part: _Part, device: DeviceProfile) -> float | None:
    """Seconds of a group by the model's best config, or as the vendor's products; None where it
    has no kernel."""
    found = _quick_s(part, device)
    if found is None or not _has_contraction(part.group):
        return found
    return min(found, aten_s(part.group, device))


def _part(graph: Graph, group: int) -> _Part:
    return _Part.of(graph, with_free_nodes(graph, bits(group)))


@dataclass(frozen=True, slots=True)
class _Part:
    """A group by its content: the layers of a model are equal but for the names of their nodes."""

    key: str
    group: Graph = field(compare=False)

    @staticmethod
    def of(graph: Graph, nodes: tuple[int, ...]) -> _Part:
        group = subgraph(graph, nodes).graph
        return _Part(key(group), group)


@lru_cache(maxsize=4096)
def _quick_s(part: _Part, device: DeviceProfile) -> float | None:
    space: Space | Refusal = space_of(part.group, device)
    if isinstance(space, Refusal):
        return None
    best = space.quick()
    return best.seconds if best else None


def aten_s(group: Graph, device: DeviceProfile) -> float:
    """Seconds of a group as ATen runs it, one operation after the other: the vendor's products,
    and every other operation at the speed of memory."""
    total = 0.0
    for node in group.nodes:
        if isinstance(row(node), Contraction):
            total += matrix.vendor_s(group, node.id, device)
        elif is_compute(node):
            ends = [group.nodes[i].type for i in node.inputs] + [node.type]
            total += device.stream_s(sum(t.nbytes for t in ends if t))
    return total


def _is_vendors(part: _Part, seconds: float, device: DeviceProfile) -> bool:
    """Whether the group is better left to the vendor's products; a product by itself always is."""
    if not _has_contraction(part.group):
        return False
    alone = sum(map(is_compute, part.group.nodes)) == 1
    return alone or aten_s(part.group, device) <= seconds


def _has_contraction(group: Graph) -> bool:
    return any(isinstance(row(node), Contraction) for node in group.nodes)


@lru_cache(maxsize=1024)
def _best(part: _Part, device: DeviceProfile) -> tuple[Config, Cost] | None:
    space: Space | Refusal = space_of(part.group, device)
    return None if isinstance(space, Refusal) else next(iter(space.ranked(1)), None)
