"""A group of nodes walked in chunks: the same graph over a part of one axis, run again and again.

For groups with a value inside that is much larger than all that enters and leaves them (the scores
of attention in a backward pass, the logits of a large vocabulary), if one kernel cannot hold all
that uses it. The group then runs for a few heads, or for a few thousand classes, at a time. So what
its kernels hand on stays in the second-level cache, and never exists as a whole.

An axis can be walked when every large value has it. Results that have the axis are written part by
part; those that sum over it are summed up over the chunks.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from ..errors import Refusal, Refused
from ..graph.dtypes import itemsize, register_dtype
from ..graph.graph import INPUT, Graph, Node, Ref, Symbol, TensorType, map_refs
from ..graph.ops import (
    SUM,
    Concat,
    Constant,
    Contraction,
    Depthwise,
    Iota,
    Reduction,
    View,
    bound,
    is_input,
    row,
)
from ..groups.group import is_copied
from ..trace.survey import dims_of_nodes
from ..values.values import Dims

__all__ = ["Chunk", "ChunkInput", "ChunkOutput", "Cut", "Walk", "walk"]

ALIGNED = 128
"""A step over a long axis is a multiple of it: the kernels' tiles then divide it."""

MOST_STEPS = 4096


@dataclass(frozen=True, slots=True)
class Cut:
    """One dimension of a tensor that is walked: its index begins at the sum of start * scale over
    these axes (axis, scale)."""

    dim: int
    axes: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class ChunkInput:
    """An input of the body: the group's input `index`; or start, step of a counting (`iota`); or
    the sum so far of the result `index`. cuts: the dimensions of which a chunk takes a part."""

    kind: Literal["input", "iota", "sum"]
    type: TensorType
    cuts: tuple[Cut, ...]
    index: int = 0
    iota: tuple[int, int] = (0, 1)


@dataclass(frozen=True, slots=True)
class ChunkOutput:
    """An output of the group, and of its bodies. cuts: where a chunk's part goes. summed: several
    chunks add to it, in float32 where its own dtype is shorter."""

    type: TensorType
    cuts: tuple[Cut, ...]
    summed: bool


@dataclass(frozen=True, slots=True)
class Chunk:
    """start and size along each walked axis. body: which of the bodies computes it."""

    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    body: int


@dataclass(frozen=True, slots=True)
class Walk:
    """steps: (extent, step) of each walked axis. bodies: one graph, and one more where the last
    step is shorter. largest: bytes of the largest value within a chunk."""

    given: tuple[ChunkInput, ...]
    results: tuple[ChunkOutput, ...]
    steps: tuple[tuple[int, int], ...]
    bodies: tuple[Graph, ...]
    largest: int

    def chunks(self) -> Iterator[Chunk]:
        """All chunks, in order."""
        ranges = [
            [(at, min(step, extent - at)) for at in range(0, extent, step)]
            for extent, step in self.steps
        ]
        whole = tuple(step for _, step in self.steps)
        for parts in itertools.product(*ranges):
            sizes = tuple(size for _, size in parts)
            yield Chunk(tuple(start for start, _ in parts), sizes, int(sizes != whole))

    @property
    def count(self) -> int:
        return math.prod(-(-extent // step) for extent, step in self.steps)


def walk(group: Graph, budget: int) -> Walk | Refusal:
    """The walk over a group in which no value inside it is larger than `budget` bytes, as far as
    its axes allow."""
    try:
        return _Walker(group, budget).walk()
    except Refused as refused:
        return refused.refusal


class _Walker:
    def __init__(self, group: Graph, budget: int) -> None:
        self.group, self.budget = group, budget
        found = dims_of_nodes(group)
        self.extents = found.extents
        self.dims: dict[int, Dims] = {n: dims[0] for n, dims in found.dims.items()}
        self.also = found.dims  # of nodes that each reader sees for itself, all of them
        ends = {*group.inputs, *group.outputs}
        inner = [n for n in group.nodes if n.id in self.dims and n.id not in ends]
        self.large = [n for n in inner if not is_copied(group, n.id) and _bytes(n) > budget]

    def walk(self) -> Walk:
        if not self.large:
            raise Refused("walk", "no value of the group is large")
        steps = self._steps()
        order = sorted(steps)
        number = {factor: i for i, factor in enumerate(order)}
        self._check_inputs(steps)
        sizes = [steps]
        rest = {f: self.extents[f] % n or n for f, n in steps.items()}
        if rest != steps:
            sizes.append(rest)
        bodies = tuple(self._body(each) for each in sizes)
        outputs = [self.group.nodes[o] for o in self.group.outputs if o is not None]
        results = tuple(
            ChunkOutput(_type(n), self._cuts(n.id, number), self._is_partial(n, steps))
            for n in outputs
        )
        sums = [(i, r) for i, r in enumerate(results) if r.summed]
        given = (
            *(self._given(n, number) for n in self._sources(steps)),
            *(ChunkInput("sum", _wide(r.type), r.cuts, i) for i, r in sums),
        )
        axes = tuple((self.extents[f], steps[f]) for f in order)
        largest = max(self._step_bytes(n, steps) for n in self.large)
        made = Walk(given, results, axes, bodies, largest)
        if made.count > MOST_STEPS:
            raise Refused("walk", f"{made.count} chunks are too many")
        return made

    def _steps(self) -> dict[int, int]:
        """The length of a step along each walked axis: axes that only write parts first, from the
        outside in, then the one with the least to sum up."""
        common = set.intersection(*(_factors(self.dims[n.id]) for n in self.large))
        order = [f for dim in self.dims[self.large[0].id] for f in dim if f in common]
        summed = {f: s for f in order if (s := self._summed(f)) is not None}
        if not summed:
            raise Refused("walk", "no axis of the large values can be walked")
        steps: dict[int, int] = {}
        for factor in sorted(summed, key=lambda f: summed[f]):
            if max(self._step_bytes(n, steps) for n in self.large) <= self.budget:
                break
            steps[factor] = self._step(factor, steps)
        return steps

    def _step(self, factor: int, steps: Mapping[int, int]) -> int:
        """As many elements as the budget allows; a divisor of the axis where one is not much
        smaller, else a multiple of the tiles, with a shorter last step."""
        extent = self.extents[factor]
        most = max(self._step_bytes(n, steps) for n in self.large)
        allowed = max(1, self.budget * extent // most)
        divisor = next(d for d in range(min(allowed, extent), 0, -1) if extent % d == 0)
        aligned = allowed // ALIGNED * ALIGNED
        if divisor * 2 > allowed and (divisor % ALIGNED == 0 or aligned == 0):
            return divisor
        if not aligned or steps:  # only an outermost walk may end with a shorter step
            return divisor
        count = -(-extent // aligned)
        return -(-extent // (count * ALIGNED)) * ALIGNED

    def _step_bytes(self, node: Node, steps: Mapping[int, int]) -> int:
        return math.prod(self._shape(node.id, steps)) * itemsize(_type(node).dtype)

    def _summed(self, factor: int) -> int | None:
        """Bytes of the results that are summed over the chunks; None where the axis cannot be
        walked."""
        total = 0
        for node in self.group.nodes:
            if node.id not in self.dims or is_input(node):
                continue
            if not self._may_walk(node, factor):
                return None
            if self._has(node.id, factor):
                continue
            if self._is_partial(node, (factor,)):
                if not self._sums(node) or self.group.users(node.id):
                    return None
                total += math.prod(_type(node).shape) * 4
            elif node.id in self.group.outputs:
                return None
        return total

    def _has(self, node: int, factor: int) -> bool:
        return any(factor in _factors(dims) for dims in self.also[node])

    def _may_walk(self, node: Node, factor: int) -> bool:
        """Whether the operation is the same for a part of the axis."""
        sees = [factor in _factors(dims) for dims in self.also[node.id]]
        if any(sees) != all(sees):
            return False
        kind = row(node)
        if isinstance(kind, View) and kind.kind in ("slice", "select"):
            source, named = self._source(node), bound(node)
            dim = named["dim"]
            assert isinstance(dim, int)
            return all(factor not in dims[dim % len(dims)] for dims in self.also[source])
        if isinstance(kind, Concat):
            dim = bound(node)["dim"]
            assert isinstance(dim, int)
            return factor not in self.dims[node.id][dim % len(self.dims[node.id])]
        if isinstance(kind, Depthwise):
            # It sees neighbours of a pixel, and is told how many channels there are.
            return not any(sees)
        return True

    def _sums(self, node: Node) -> bool:
        kind = row(node)
        if isinstance(kind, Contraction):
            return not kind.bias
        return isinstance(kind, Reduction) and kind.monoid is SUM and not kind.mean

    def _source(self, node: Node) -> int:
        source = bound(node).get("self", node.args[0])
        assert isinstance(source, Ref)
        return source.node

    def _check_inputs(self, steps: Mapping[int, int]) -> None:
        """A chunk must be one range of each dimension that it cuts."""
        ends = [*self.group.inputs, *(o for o in self.group.outputs if o is not None)]
        for node in (*ends, *(n.id for n in self.group.nodes if isinstance(row(n), Iota))):
            for dim in self.dims.get(node, ()):
                cut = [i for i, f in enumerate(dim) if steps.get(f, 0)]
                for place in cut:
                    if any(steps.get(f, self.extents[f]) != 1 for f in dim[:place]):
                        raise Refused("walk", "an axis to walk lies inside of another dimension")

    def _sources(self, steps: Mapping[int, int]) -> list[Node]:
        """What the body takes: the group's inputs, and counting along a walked axis."""
        return [n for n in self.group.nodes if is_input(n) or self._is_counted(n, steps)]

    def _is_counted(self, node: Node, steps: Iterable[int]) -> bool:
        return isinstance(row(node), Iota) and any(self._has(node.id, f) for f in steps)

    def _given(self, node: Node, number: Mapping[int, int]) -> ChunkInput:
        cuts = self._cuts(node.id, number)
        if is_input(node):
            return ChunkInput("input", _type(node), cuts, self.group.inputs.index(node.id))
        named = bound(node)
        start, step = named.get("start") or 0, named.get("step", 1)
        assert isinstance(start, int)  # else the trace has refused the group
        assert isinstance(step, int)
        return ChunkInput("iota", _type(node), cuts, iota=(start, step))

    def _cuts(self, node: int, number: Mapping[int, int]) -> tuple[Cut, ...]:
        found = []
        for position, dim in enumerate(self.dims.get(node, ())):
            scale, axes = 1, []
            for factor in reversed(dim):
                if factor in number:
                    axes.append((number[factor], scale))
                scale *= self.extents[factor]
            if axes:
                found.append(Cut(position, tuple(axes)))
        return tuple(found)

    def _body(self, steps: Mapping[int, int]) -> Graph:
        """The group over one chunk. Its inputs are those of `_sources`, then the sums so far."""
        group = self.group
        outputs = [o for o in group.outputs if o is not None]
        sources = [n.id for n in self._sources(steps)]
        sums = [o for o in outputs if self._is_partial(group.nodes[o], steps)]
        rest = [n.id for n in group.nodes if n.id not in sources and n.id in self.dims]
        nodes = [
            Node(i, group.nodes[old].name, INPUT, type=self._chunk(old, steps))
            for i, old in enumerate(sources)
        ]
        before = {}
        for old in sums:
            before[old] = len(nodes)
            kept = _wide(self._chunk(old, steps))
            nodes.append(Node(len(nodes), f"{group.nodes[old].name}_sum", INPUT, type=kept))
        renumber = {old: new for new, old in enumerate(sources)}
        for old in rest:
            renumber[old] = len(nodes)
            changed = self._changed(group.nodes[old], steps)
            args = tuple(map_refs(a, renumber) for a in changed.args)
            kwargs = tuple((k, map_refs(v, renumber)) for k, v in changed.kwargs)
            nodes.append(replace(changed, id=len(nodes), args=args, kwargs=kwargs))
        for old in sums:
            both = (Ref(before[old]), Ref(renumber[old]))
            renumber[old] = len(nodes)
            kept = _type(nodes[before[old]])
            nodes.append(Node(len(nodes), f"add_{old}", "aten.add.Tensor", both, (), kept))
        chosen = tuple(renumber[o] for o in outputs)
        return Graph(tuple(nodes), chosen, group.numerics)

    def _chunk(self, node: int, steps: Mapping[int, int]) -> TensorType:
        """A part of a value that lies in memory as a whole: with the strides of the whole."""
        kept = _type(self.group.nodes[node])
        return replace(kept, shape=self._shape(node, steps))

    def _shape(self, node: int, steps: Mapping[int, int]) -> tuple[int, ...]:
        """A dimension that is not walked is whole, whatever part of it a reader takes."""
        return tuple(
            math.prod(steps.get(f, self.extents[f]) for f in dim) if {*dim} & {*steps} else size
            for dim, size in zip(self.dims[node], _type(self.group.nodes[node]).shape, strict=True)
        )

    def _changed(self, node: Node, steps: Mapping[int, int]) -> Node:
        """The same operation with the sizes of a chunk."""
        own, shape = _type(node), self._shape(node.id, steps)
        type_ = TensorType(shape, _dense(shape, own), own.dtype)
        kind = row(node)
        if isinstance(kind, View) and kind.kind in ("reshape", "squeeze", "unsqueeze"):
            source = Ref(self._source(node))
            return Node(node.id, node.name, "aten.reshape.default", (source, shape), (), type_)
        if isinstance(kind, View) and kind.kind == "expand":
            return replace(node, args=(node.args[0], shape), kwargs=(), type=type_)
        if isinstance(kind, Constant):
            number = bound(node)[kind.argument] if kind.argument else kind.value
            kwargs = (("dtype", Symbol("dtype", own.dtype)), ("device", Symbol("device", "graph")))
            return Node(node.id, node.name, "aten.full.default", (shape, number), kwargs, type_)
        return replace(node, type=type_)

    def _is_partial(self, node: Node, steps: Iterable[int]) -> bool:
        gone = [f for f in steps if not self._has(node.id, f)]
        return any(self._has(s, f) for f in gone for s in node.inputs)


def _wide(tensor: TensorType) -> TensorType:
    """The type that a sum has until its last chunk."""
    return replace(tensor, dtype=register_dtype(tensor.dtype))


def _dense(shape: tuple[int, ...], like: TensorType) -> tuple[int, ...]:
    """Strides of a dense tensor whose dimensions lie in the order of another's."""
    order = sorted(range(len(shape)), key=lambda d: (-like.stride[d], d))
    strides, step = [0] * len(shape), 1
    for dim in reversed(order):
        strides[dim] = step
        step *= max(1, shape[dim])
    return tuple(strides)


def _factors(dims: Dims) -> set[int]:
    return {f for dim in dims for f in dim}


def _bytes(node: Node) -> int:
    return math.prod(_type(node).shape) * itemsize(_type(node).dtype)


def _type(node: Node) -> TensorType:
    if node.type is None:
        raise Refused("opaque", f"{node.name} is no single tensor")
    return node.type
