"""Comparisons of floats among the outputs of a graph: the elements that may fall on either side.

The mask of a relu, which a training step saves, is such an output. Where what it compares is as
near as both may err, rounding decides. To find out takes several evaluations of the graph, so the
floats of all comparisons are evaluated together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...planner.errors import PlanError
from ...planner.graph.graph import Graph, Ref
from ...planner.graph.op import Op
from ...planner.graph.ops import bound, op_of
from .noisy_outputs import kept_bytes
from .slices import SliceLimits, place, slices

_COMPARISONS = (Op.LT, Op.LE, Op.GT, Op.GE, Op.EQ, Op.NE)


@dataclass(frozen=True, slots=True)
class _Compared:
    """Two nodes, or one and a number."""

    nodes: tuple[int, ...]
    number: float = 0.0


class Comparisons:
    """expected: see `reference.expected`."""

    def __init__(
        self,
        graph: Graph,
        inputs: Sequence[torch.Tensor],
        device: torch.device,
        expected: Callable[..., Sequence[Any]],
    ) -> None:
        self.graph, self.inputs, self.device = graph, inputs, device
        self._expected = expected
        self._near: dict[int, torch.Tensor] | None = None

    def near(self, output: int) -> torch.Tensor | None:
        """Where the floats that an output compares are as near to each other as both may err; None
        where it compares none, or there is no memory to find out."""
        if self._near is None:
            self._near = {}
            outputs = dict.fromkeys(o for o in self.graph.outputs if o is not None)
            each = ((o, _compared(self.graph, o)) for o in outputs)
            for few in self._in_batches({o: found for o, found in each if found is not None}):
                try:
                    self._near |= self._evaluated(few)
                except (torch.OutOfMemoryError, PlanError):
                    break
        return self._near.get(output)

    def _in_batches(self, given: Mapping[int, _Compared]) -> Iterator[dict[int, _Compared]]:
        """As many at a time as fit into memory in float64."""
        room, few, size = kept_bytes(self.device), dict[int, _Compared](), 0
        for output, compared in given.items():
            types = (self.graph.nodes[node].type for node in compared.nodes)
            own = sum(8 * each.numel for each in types if each is not None)
            if few and size + own > room:
                yield few
                few, size = {}, 0
            few[output], size = compared, size + own
        if few:
            yield few

    def _evaluated(self, few: Mapping[int, _Compared]) -> dict[int, torch.Tensor]:
        nodes = tuple(dict.fromkeys(node for each in few.values() for node in each.nodes))
        only = Graph(self.graph.nodes, nodes)
        floats = dict(zip(nodes, self._expected(only, self.inputs, self.device), strict=True))
        found = {}
        for output, compared in few.items():
            sides = [floats[node] for node in compared.nodes]
            if any(each.limits is None for each in sides):
                continue
            values = [each.value.double() for each in sides]
            apart = values[0] - (values[1] if len(values) > 1 else compared.number)
            both = (margin(each.limits, own) for each, own in zip(sides, values, strict=True))
            found[output] = apart.abs() <= sum(both, torch.zeros_like(apart))
        return found


def margin(of: SliceLimits, value: torch.Tensor) -> torch.Tensor:
    """What each element may err."""
    found = torch.empty_like(value).flatten()
    for first, (piece,) in slices(of.width, value):
        rows = slice(first, first + len(piece))
        begin = place(of.width, value.numel(), first, 0)
        span = of.largest[rows] * (piece.abs() + of.scale[rows])
        found[begin : begin + piece.numel()] = span.flatten()
    return found.view(value.shape)


def _compared(graph: Graph, output: int) -> _Compared | None:
    """The floats that an output compares; None where it is something else. Of a relu beside 0 its
    input counts: half of a relu is exactly 0."""
    node = graph.nodes[output]
    named = bound(node) if op_of(node) in _COMPARISONS else {}
    found = [named[side] for side in ("self", "other") if side in named]
    nodes = tuple(each.node for each in found if isinstance(each, Ref))
    types = (graph.nodes[each].type for each in nodes)
    if not nodes or not all(t is not None and "float" in t.dtype for t in types):
        return None
    if len(nodes) == 2:
        return _Compared(nodes)
    number, left = found[1], graph.nodes[nodes[0]]
    if not isinstance(found[0], Ref) or not isinstance(number, (int, float)):
        return None
    if number == 0 and op_of(left) is Op.RELU:
        nodes = (left.inputs[0],)
    return _Compared(nodes, float(number))
