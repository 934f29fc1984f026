"""A reduction cut over the grid: the group as several kernels, one for each level of reductions.

Each large reduction becomes two: `parts` partial results, written to a temporary, and their
combination, which every later kernel repeats for itself because it is small. The combination
runs in a fixed order, so results repeat exactly.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from .errors import Refusal
from .graph import INPUT, Arg, Graph, Node, Ref, Symbol, TensorType, map_refs
from .ops import Reduction, bound, row
from .values import register_dtype

SMALLEST = 4096
"""Elements below which a reduction is not worth cutting."""

_BY_MONOID = {
    "sum": "aten.sum.dim_IntList",
    "max": "aten.amax.default",
    "min": "aten.amin.default",
    "any": "aten.any.dims",
    "all": "aten.all.dims",
}


@dataclass(frozen=True, slots=True)
class Source:
    """Where a phase reads or writes: kind "in", "out" (of the whole group) or "tmp"."""

    kind: str
    index: int


@dataclass(frozen=True, slots=True)
class Phase:
    graph: Graph
    inputs: tuple[Source, ...]
    outputs: tuple[Source, ...]


@dataclass(frozen=True, slots=True)
class Split:
    """The phases in order, and the types of the temporaries between them."""

    phases: tuple[Phase, ...]
    temporaries: tuple[TensorType, ...]


def split(group: Graph, parts: int) -> Split | Refusal:
    """Cut every large reduction of a group into `parts`, or say why that cannot be."""
    builder = _Builder(parts)
    for node in group.nodes:
        refusal = builder.add(group, node)
        if refusal is not None:
            return refusal
    if not builder.partials:
        return Refusal("split", "no reduction is large enough to be cut")
    outputs = tuple(None if o is None else builder.renamed[o] for o in group.outputs)
    whole = Graph(tuple(builder.nodes), outputs)
    temporary = {node: i for i, node in enumerate(builder.partials)}
    level = _levels(whole, temporary)
    phases = []
    for depth in range(max(level[p] for p in temporary) + 1):
        targets = [p for p in temporary if level[p] == depth]
        phases.append(_phase(whole, targets, temporary, "tmp"))
    phases.append(_phase(whole, [o for o in outputs if o is not None], temporary, "out"))
    kept = tuple(_type(whole.nodes[p]) for p in temporary)
    return Split(tuple(phases), kept)


class _Builder:
    """Writes the rewritten graph."""

    def __init__(self, parts: int) -> None:
        self.parts = parts
        self.nodes: list[Node] = []
        self.renamed: dict[int, int] = {}
        self.partials: list[int] = []

    def add(self, group: Graph, node: Node) -> Refusal | None:
        reduction = row(node)
        if not isinstance(reduction, Reduction):
            args = tuple(map_refs(a, self.renamed) for a in node.args)
            kwargs = tuple((k, map_refs(v, self.renamed)) for k, v in node.kwargs)
            self._append(node, replace(node, id=len(self.nodes), args=args, kwargs=kwargs))
            return None
        named = bound(node)
        source = named["self"]
        assert isinstance(source, Ref)
        shape = _type(group.nodes[source.node]).shape
        over = _dims(named.get("dim"), len(shape))
        size = math.prod(shape[d] for d in over)
        if size < max(SMALLEST, 2 * self.parts):
            args = tuple(map_refs(a, self.renamed) for a in node.args)
            self._append(node, replace(node, id=len(self.nodes), args=args))
            return None
        cut = next((d for d in over if shape[d] % self.parts == 0), None)
        if cut is None or reduction.monoid.name not in _BY_MONOID:
            return Refusal("split", f"{node.name} does not divide into {self.parts} parts")
        self._cut(node, reduction, Ref(self.renamed[source.node]), shape, over, cut)
        return None

    def _cut(
        self,
        node: Node,
        reduction: Reduction,
        source: Ref,
        shape: tuple[int, ...],
        over: Sequence[int],
        cut: int,
    ) -> None:
        own = _type(node)
        working = register_dtype(own.dtype)
        inner = (*shape[:cut], self.parts, shape[cut] // self.parts, *shape[cut + 1 :])
        viewed = self._new(node, "aten.view.default", (source, inner), inner, working)
        folded = tuple(d + (d >= cut) for d in over)
        place = cut - sum(d < cut for d in over)
        left = tuple(n for d, n in enumerate(inner) if d not in folded)
        fold = _BY_MONOID[reduction.monoid.name]
        partial = self._new(node, fold, (viewed, folded), left, working)
        self.partials.append(partial.node)
        rest = left[:place] + left[place + 1 :]
        result = self._new(node, fold, (partial, (place,)), rest, working)
        if reduction.mean:
            count = math.prod(shape[d] for d in over)
            result = self._new(node, "aten.div.Scalar", (result, count), rest, working)
        reshaped = self._new(node, "aten.view.default", (result, own.shape), own.shape, working)
        cast = replace(node, id=len(self.nodes), op="prims.convert_element_type.default")
        target = Symbol("dtype", own.dtype)
        self._append(node, replace(cast, args=(reshaped, target), kwargs=()))

    def _new(
        self, origin: Node, op: str, args: tuple[Arg, ...], shape: tuple[int, ...], dtype: str
    ) -> Ref:
        tensor = TensorType(shape, _contiguous(shape), dtype)
        self.nodes.append(Node(len(self.nodes), origin.name, op, args, (), tensor))
        return Ref(len(self.nodes) - 1)

    def _append(self, old: Node, new: Node) -> None:
        self.renamed[old.id] = new.id
        self.nodes.append(new)


def _levels(graph: Graph, temporary: Iterable[int]) -> list[int]:
    """For each node, how many temporaries deep its inputs lie."""
    cut = set(temporary)
    level: list[int] = []
    for node in graph.nodes:
        level.append(max((level[i] + (i in cut) for i in node.inputs), default=0))
    return level


def _phase(graph: Graph, targets: list[int], temporary: dict[int, int], kind: str) -> Phase:
    """What computes the targets from the group's inputs and earlier temporaries."""
    read = set(temporary) - set(targets)
    needed: set[int] = set()
    stack = list(targets)
    while stack:
        found = stack.pop()
        if found not in needed:
            needed.add(found)
            stack.extend(() if found in read else graph.nodes[found].inputs)
    group_inputs = {node: i for i, node in enumerate(graph.inputs)}
    renamed: dict[int, int] = {}
    nodes: list[Node] = []
    inputs: list[Source] = []
    for old in sorted(needed):
        node = graph.nodes[old]
        renamed[old] = len(nodes)
        if old in read:
            inputs.append(Source("tmp", temporary[old]))
            nodes.append(Node(len(nodes), node.name, INPUT, type=node.type))
            continue
        if node.op == INPUT:
            inputs.append(Source("in", group_inputs[old]))
        args = tuple(map_refs(a, renamed) for a in node.args)
        kwargs = tuple((k, map_refs(v, renamed)) for k, v in node.kwargs)
        nodes.append(replace(node, id=len(nodes), args=args, kwargs=kwargs))
    outputs = tuple(
        Source("tmp", temporary[t]) if kind == "tmp" else Source("out", i)
        for i, t in enumerate(targets)
    )
    return Phase(Graph(tuple(nodes), tuple(renamed[t] for t in targets)), tuple(inputs), outputs)


def _type(node: Node) -> TensorType:
    assert node.type is not None
    return node.type


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for n in reversed(shape):
        strides.insert(0, step)
        step *= max(1, n)
    return tuple(strides)


def _dims(dim: Arg, rank: int) -> list[int]:
    if dim is None or dim == ():
        return list(range(rank))
    listed = dim if isinstance(dim, tuple) else (dim,)
    return sorted(int(d) % rank for d in listed if isinstance(d, int))
