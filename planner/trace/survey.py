"""The dimensions of a graph's nodes over one set of factors, for what walks along them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import Refused
from ..graph.graph import Graph, Node
from ..graph.ops import IndexedWrite, Lookup, row
from ..values.values import Dims, Windows
from .indexed_loads import survey
from .trace import Tracer
from .views import TraceSteps


@dataclass(frozen=True, slots=True)
class NodeDims:
    """dims: for every node that the outputs need, its dimensions over the factors, once for each
    way it is read as a whole. extents: of the factors."""

    dims: Mapping[int, tuple[Dims, ...]]
    extents: Mapping[int, int]


def dims_of_nodes(group: Graph) -> NodeDims:
    """The dimensions of a graph's nodes, views too. Raises Refused where one does not factor."""
    tracer = _Surveyor(group)
    if any(isinstance(row(node), IndexedWrite) for node in group.nodes):
        raise Refused("indexed", "a part of what a group writes by index is no tensor")
    for node in group.outputs:
        if node is None:
            raise Refused("output", "a group's output is no tensor")
        tracer.read(node, (None,) * len(tracer.shape(node)))
    return tracer.survey()


class _Surveyor(Tracer):
    """Remembers the dimensions at which every node is read."""

    in_order = True

    def __init__(self, group: Graph) -> None:
        super().__init__(group, shared=True)
        self.found: dict[int, list[Dims]] = {}

    def _reading(self, node_id: int, windows: Windows) -> TraceSteps:
        value, dims = yield from super()._reading(node_id, windows)
        self.found.setdefault(node_id, []).append(dims)
        return value, dims

    def _lookup(self, node: Node, row: Lookup, windows: Windows) -> TraceSteps:
        return survey(self, node, row, windows)

    def survey(self) -> NodeDims:
        resolve = self.space.resolve
        dims = {
            node: tuple(dict.fromkeys(tuple(map(resolve, each)) for each in found))
            for node, found in sorted(self.found.items())
        }
        factors = {f for found in dims.values() for each in found for dim in each for f in dim}
        return NodeDims(dims, {f: self.space.extent(f) for f in sorted(factors)})
