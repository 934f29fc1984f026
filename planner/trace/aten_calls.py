"""Building a graph of ATen calls over the tensors of a group, seen through the group's factors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch

from ..graph.graph import INPUT, Arg, Graph, Node, Ref, Symbol, TensorType, map_refs
from ..graph.ops import overload
from ..values.axes import Factors
from ..values.values import Load, Output, Values


class Builder:
    """Builder of a graph of calls with the inputs of the group. Types come from running each call
    on tensors without data."""

    def __init__(self, group: Graph) -> None:
        self._group = group
        self._nodes: list[Node] = []
        self._made: list[torch.Tensor] = []
        self._inputs: dict[int, Ref] = {}
        for node in group.inputs:
            old = group.nodes[node]
            assert old.type is not None
            kind = old.type
            dtype = getattr(torch, kind.dtype)
            like = torch.empty_strided(kind.shape, kind.stride, dtype=dtype, device="meta")
            self._inputs[node] = self._append(old.name, INPUT, (), (), like)

    def input(self, node: int) -> Ref:
        """The reference to an input of the group."""
        return self._inputs[node]

    def again(self, node: Node, made: Mapping[int, Ref]) -> Ref:
        """A node of the group as it is; made: what stands for the nodes that it reads."""
        assert node.type is not None
        kind, dtype = node.type, getattr(torch, node.type.dtype)
        like = torch.empty_strided(kind.shape, kind.stride, dtype=dtype, device="meta")
        renumber = {old: ref.node for old, ref in made.items()}
        args = tuple(map_refs(a, renumber) for a in node.args)
        named = tuple((k, map_refs(v, renumber)) for k, v in node.kwargs)
        return self._append(node.name, node.op, args, named, like)

    def call(self, op: str, *args: Arg, like: torch.Tensor | None = None, **named: Arg) -> Ref:
        """One more call of `aten.<op>`. like: its result where that is not to be computed."""
        name = f"aten.{op}"
        if like is None:
            given = [self._meta(a) for a in args]
            like = overload(name)(*given, **{k: self._meta(v) for k, v in named.items()})
        label = f"{op.partition('.')[0].strip('_')}_{len(self._nodes)}"
        return self._append(label, name, args, tuple(named.items()), like)

    def own(self, op: str, *args: Arg, like: torch.Tensor) -> Ref:
        """One more call of `fusionplan.<op>`, with a result as this."""
        label = f"{op.partition('.')[0]}_{len(self._nodes)}"
        return self._append(label, f"fusionplan.{op}", args, (), like)

    def finish(self, result: Ref) -> Graph:
        return Graph(tuple(self._nodes), (result.node,), self._group.numerics)

    def type(self, value: Ref) -> TensorType:
        found = self._nodes[value.node].type
        assert found is not None
        return found

    def shape(self, value: Ref) -> tuple[int, ...]:
        return tuple(self._made[value.node].shape)

    def stride(self, value: Ref) -> tuple[int, ...]:
        return self._made[value.node].stride()

    def cast(self, ref: Ref, dtype: str) -> Ref:
        if self._made[ref.node].dtype == getattr(torch, dtype):
            return ref
        return self.call("_to_copy.default", ref, dtype=Symbol("dtype", dtype))

    def rounded(self, ref: Ref, dtype: str) -> Ref:
        """A conversion that is not the user's."""
        like = self._made[ref.node].to(getattr(torch, dtype))
        label, arguments = f"convert_{len(self._nodes)}", (ref, Symbol("dtype", dtype))
        return self._append(label, "prims.convert_element_type.default", arguments, (), like)

    def permute(self, ref: Ref, order: Sequence[int]) -> Ref:
        if list(order) == list(range(len(order))):
            return ref
        return self.call("permute.default", ref, tuple(order))

    def reshape(self, ref: Ref, shape: tuple[int, ...]) -> Ref:
        """Copies where the strides ask for it."""
        return ref if self.shape(ref) == shape else self.call("reshape.default", ref, shape)

    def dense(self, ref: Ref) -> Ref:
        """Copied unless its last dimension lies dense in memory."""
        if self.shape(ref)[-1] == 1 or self._made[ref.node].stride(-1) == 1:
            return ref
        order = Symbol("memory_format", "contiguous_format")
        return self.call("clone.default", ref, memory_format=order)

    def _meta(self, value: Arg) -> Any:
        if isinstance(value, Ref):
            return self._made[value.node]
        if isinstance(value, Symbol):
            return getattr(torch, value.name)
        return [self._meta(v) for v in value] if isinstance(value, tuple) else value

    def _append(
        self,
        name: str,
        op: str,
        args: tuple[Arg, ...],
        named: tuple[tuple[str, Arg], ...],
        like: torch.Tensor,
    ) -> Ref:
        dtype = str(like.dtype).removeprefix("torch.")
        kind = TensorType(tuple(like.shape), tuple(like.stride()), dtype)
        self._nodes.append(Node(len(self._nodes), name, op, args, named, kind))
        self._made.append(like)
        return Ref(len(self._nodes) - 1)


class Calls(Builder):
    """The same, of which operands and results are seen through the factors of the group."""

    def __init__(self, group: Graph, values: Values) -> None:
        super().__init__(group)
        self.values = values

    def operand(self, load: Load, dtype: str, axes: Sequence[Factors]) -> Ref:
        """The elements that a load reads, as a tensor with one dimension for each of `axes`,
        repeated along the factors on which it does not depend."""
        values, ref = self.values, self._inputs[load.input]
        for position, dim in enumerate(load.dims):
            size = values.size(dim.factors)
            if (dim.start, dim.step, size) != (0, 1, self.shape(ref)[position]):
                stop = dim.start + dim.step * (size - 1) + 1
                ref = self.call("slice.Tensor", ref, position, dim.start, stop, dim.step)
        ref = self.cast(ref, dtype)
        own = [f for dim in load.dims for f in dim.factors]
        wanted = [f for axis in axes for f in axis]
        ones = tuple(f for f in wanted if f not in own)
        parts = tuple(values.extents[f] for f in own)
        merged = tuple(values.size(axis) for axis in axes)
        if ones or _regroups(load, axes):
            ref = self.reshape(ref, (*parts, *(1 for _ in ones)))
            ref = self.permute(ref, [(*own, *ones).index(f) for f in wanted])
            whole = tuple(values.extents[f] for f in wanted)
            if ones:
                ref = self.call("expand.default", ref, whole)
        else:
            dims = [d.factors for d in load.dims if d.factors]
            ref = self.reshape(ref, tuple(values.size(d) for d in dims))
            ref = self.permute(ref, [dims.index(axis) for axis in axes if axis])
        return self.reshape(ref, merged)

    def result(self, ref: Ref, axes: Sequence[Factors], output: Output) -> Ref:
        """A tensor with one dimension for each of `axes` as the output of the group."""
        values = self.values
        ref = self.cast(ref, output.type.dtype)
        dims = [d for d in output.dims if d]
        own, wanted = [f for axis in axes for f in axis], [f for d in dims for f in d]
        if set(dims) == {axis for axis in axes if axis}:
            ref = self.reshape(ref, tuple(values.size(axis) for axis in axes if axis))
            ref = self.permute(ref, [[a for a in axes if a].index(d) for d in dims])
        else:
            ref = self.reshape(ref, tuple(values.extents[f] for f in own))
            ref = self.permute(ref, [own.index(f) for f in wanted])
        return self.reshape(ref, output.type.shape)


def _regroups(load: Load, axes: Sequence[Factors]) -> bool:
    """Whether the axes are not the load's own dimensions in some order."""
    return {d.factors for d in load.dims if d.factors} != {axis for axis in axes if axis}


def is_one(axis: Factors, strides: Mapping[int, int], values: Values) -> bool:
    """Whether one stride walks all factors of an axis, so that it is a dimension without a copy."""
    return all(
        strides.get(a, 0) == strides.get(b, 0) * values.extents[b] for a, b in pairwise(axis)
    )
