"""The order of execution of a plan, and the tensors that go through memory between its steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..planner.costs.device import DeviceProfile
from ..planner.costs.least import least
from ..planner.explanation import Boundary, Explanation, GroupExplanation, Side
from ..planner.graph.graph import INPUT, Graph, short_names
from ..planner.graph.ops import is_compute, is_free, is_input
from ..planner.groups.group import Subgraph, is_copied, subgraph, with_free_nodes
from ..planner.groups.needs import inputs_read_whole
from ..planner.lowerings.registry import ATEN
from ..planner.plan import Plan
from ..planner.runtime.execution.schedule import in_order
from ..planner.runtime.execution.units import ScheduledUnit
from .apart import ends_bytes
from .data import Border, StepReport, Stored, ValueReport


@dataclass(frozen=True, slots=True)
class Piece:
    """A unit of execution as a graph of its own. node: of one operation that no group has."""

    unit: ScheduledUnit
    part: Subgraph
    node: int | None


@dataclass(frozen=True, slots=True)
class Flow:
    """The pieces of a plan in the order of execution, and what they hand on through memory."""

    graph: Graph
    device: DeviceProfile
    pieces: tuple[Piece, ...]
    stored: tuple[Stored, ...]

    @staticmethod
    def of(graph: Graph, plan: Plan, explanation: Explanation, device: DeviceProfile) -> Flow:
        """Raises PlanError when groups of the plan wait for each other."""
        pieces = _ordered(graph, _pieces(graph, plan, explanation))
        return Flow(graph, device, tuple(pieces), tuple(_stored(graph, pieces, device)))


def _pieces(graph: Graph, plan: Plan, explanation: Explanation) -> list[Piece]:
    made = []
    for number, group in enumerate(plan.groups):
        part = subgraph(graph, group.nodes, group.copies)
        outputs = part.outputs or group.nodes[-1:]
        made.append(Piece(ScheduledUnit(number, part.inputs, outputs), part, None))
    for alone in explanation.alone:
        node = alone.operation.node
        part = subgraph(graph, with_free_nodes(graph, [node]))
        made.append(Piece(ScheduledUnit(None, part.inputs, part.outputs or (node,)), part, node))
    return made


def _ordered(graph: Graph, pieces: Sequence[Piece]) -> list[Piece]:
    writer = _writers(pieces)
    before: list[set[int]] = [set() for _ in pieces]
    for place, piece in enumerate(pieces):
        sources = (writer.get(node) for node in _sources(graph, piece, writer))
        before[place] = {source for source in sources if source not in (None, place)}
    return [pieces[place] for place in in_order([piece.unit for piece in pieces], before)]


def _writers(pieces: Sequence[Piece]) -> dict[int, int]:
    """The place of the piece that stores a node. Of two the first does."""
    return {n: place for place in reversed(range(len(pieces))) for n in pieces[place].unit.outputs}


def _sources(graph: Graph, piece: Piece, writer: Mapping[int, int]) -> tuple[int, ...]:
    """The stored nodes that a piece reads, perhaps through views that nobody stores."""
    found: dict[int, None] = {}
    pending = list(piece.unit.inputs)
    while pending:
        node = pending.pop()
        if node in writer or graph.nodes[node].op == INPUT:
            found[node] = None
        else:
            pending += graph.nodes[node].inputs
    return tuple(sorted(found))


def _stored(graph: Graph, pieces: Sequence[Piece], device: DeviceProfile) -> list[Stored]:
    writer = _writers(pieces)
    readers: dict[int, list[int]] = {}
    for place, piece in enumerate(pieces):
        for node in _sources(graph, piece, writer):
            readers.setdefault(node, []).append(place)
    returned = _returned(graph, writer)
    found = []
    for node, place in sorted(writer.items(), key=lambda item: (item[1], item[0])):
        of = graph.nodes[node]
        by = tuple(reader for reader in readers.get(node, ()) if reader != place)
        if of.type is None or not (by or node in returned):
            continue
        seconds = of.type.nbytes * (1 + len(by)) / device.bandwidth
        about = of.name, str(of.type), of.type.nbytes, seconds
        found.append(Stored(*about, place, by, node in returned))
    return found


def _returned(graph: Graph, writer: Mapping[int, int]) -> set[int]:
    """The stored nodes that the graph's caller gets, perhaps through views."""
    found, pending = set(), [o for o in graph.outputs if o is not None]
    while pending:
        node = pending.pop()
        if node in writer:
            found.add(node)
        else:
            pending += graph.nodes[node].inputs
    return found


# --- the steps of a report ---


def steps(flow: Flow, explanation: Explanation) -> tuple[StepReport, ...]:
    """Every piece with what is known of it, in the order of execution."""
    borders = _borders(flow, explanation)
    groups = {group.number: group for group in explanation.groups}
    alone = {each.operation.node: each for each in explanation.alone}
    made = []
    for place, piece in enumerate(flow.pieces):
        group = None if piece.unit.group is None else groups[piece.unit.group]
        predicted = None if piece.node is None else alone[piece.node].otherwise.aten_s
        if group is not None:
            known = group.predicted
            predicted = known.seconds if group.predicted_s is None and known else group.predicted_s
        cost = None if group is None else group.predicted
        operations = [alone[piece.node].operation] if piece.node is not None else []
        operations += group.operations if group is not None else ()
        worked = [o.node for o in operations if not is_free(flow.graph.nodes[o.node])]
        made.append(
            StepReport(
                place=place,
                group=piece.unit.group,
                node=piece.node,
                name=operations[0].name if group is None else "",
                operations=short_names(flow.graph, worked),
                lowering=ATEN.name if group is None else group.lowering,
                predicted_s=predicted,
                measured_s=None if group is None else group.measured.seconds,
                hbm_bytes=ends_bytes(piece.part.graph) if cost is None else cost.hbm_bytes,
                least=least(piece.part.graph, flow.device),
                reads=_values(flow.graph, _given(flow.graph, piece)),
                gone=() if group is None else _gone(flow.graph, group, piece),
                borders=tuple(borders.get(place, ())),
                search=None,
                source=tuple(dict.fromkeys(o.source for o in operations if o.source)),
                kernels=1 if group is None else group.launches,
            )
        )
    return tuple(made)


def _values(graph: Graph, nodes: Sequence[int]) -> tuple[ValueReport, ...]:
    found = [(graph.nodes[n].name, graph.nodes[n].type) for n in nodes]
    return tuple(ValueReport(name, str(of), of.nbytes) for name, of in found if of is not None)


def _given(graph: Graph, piece: Piece) -> list[int]:
    """The inputs of the graph that a piece reads: weights, and what the caller gives."""
    return [n for n in piece.unit.inputs if is_input(graph.nodes[n])]


def _gone(graph: Graph, group: GroupExplanation, piece: Piece) -> tuple[ValueReport, ...]:
    """Largest first."""
    inner = [
        node
        for node in group.nodes
        if is_compute(graph.nodes[node])
        and node not in piece.unit.outputs
        and not is_copied(graph, node)
    ]
    return tuple(sorted(_values(graph, inner), key=lambda value: -value.nbytes))


# --- borders ---


def _borders(flow: Flow, explanation: Explanation) -> dict[int, list[Border]]:
    """By the place of a step, why each neighbour is another kernel, the dearest first."""
    places = {piece.unit.group: i for i, piece in enumerate(flow.pieces) if piece.node is None}
    nodes = {piece.node: i for i, piece in enumerate(flow.pieces) if piece.node is not None}
    found: dict[int, list[Border]] = {}
    for boundary in explanation.boundaries:
        ends = [_place(side, places, nodes) for side in (boundary.left, boundary.right)]
        if None in ends or ends[0] == ends[1]:
            continue
        for own, other in (ends, ends[::-1]):
            assert own is not None
            assert other is not None
            found.setdefault(own, []).append(_border(flow, boundary, own, other))
    for borders in found.values():
        borders.sort(key=lambda border: -border.spared_s)
    return found


def _place(side: Side, places: Mapping[int | None, int], nodes: Mapping[int, int]) -> int | None:
    if side.group is not None:
        return places.get(side.group)
    return next((nodes[node] for node in side.nodes if node in nodes), None)


def _border(flow: Flow, boundary: Boundary, own: int, other: int) -> Border:
    handed = [t for t in flow.stored if t.writer in (own, other) and {own, other} & {*t.readers}]
    spared = sum(t.nbytes * (1 + (len(t.readers) == 1 and not t.result)) for t in handed)
    names = [t.name for t in handed]
    both = [set(_whole(flow.graph, flow.pieces[place])) for place in (own, other)]
    for node in sorted(both[0] & both[1]):
        of = flow.graph.nodes[node]
        spared += of.type.nbytes if of.type else 0
        names.append(of.name)
    return Border(
        other,
        tuple(names),
        boundary.refusal,
        boundary.together_s,
        boundary.apart_s,
        spared,
        spared / flow.device.bandwidth + flow.device.launch_s,
    )


def _whole(graph: Graph, piece: Piece) -> list[int]:
    """Nodes of the whole graph that the piece reads every element of."""
    part = piece.part.graph
    read = {part.nodes[n].name for n in inputs_read_whole(part)}
    return [node for node in piece.unit.inputs if graph.nodes[node].name in read]
