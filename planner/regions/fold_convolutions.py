"""A convolution that is scaled, shifted and cut off at 0, as one call of the library on a weight
that has the scale.

    relu((convolution(x, w) - mean) * scale + shift + added)
        = relu(convolution(x, w * scale) + (shift - mean * scale) + added)

Weight and bias are computed anew in each call, for they may have changed: by one kernel, which also
puts the weight into the order of memory that the library reads. The scaled weight is rounded once
more than the user's; whether that is good enough is decided where numbers are compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from ..bitsets import bits
from ..errors import Refusal
from ..graph.dtypes import FLOATS, NARROW
from ..graph.graph import Arg, Graph, Node, Ref, Symbol, TensorType
from ..graph.op import Op
from ..graph.ops import Cast, Pointwise, bound, is_convolution, is_input, row
from ..groups.group import Groups, subgraph
from ..groups.legality import Dependences
from ..trace.aten_calls import Builder
from ..vendor.convolution import WHOLE
from ..vendor.operands import Other
from .chunks import ChunkInput, ChunkOutput, Walk


def around_convolutions(graph: Graph, groups: Groups) -> Iterator[tuple[int, ...]]:
    """Of each convolution of several channels that one group alone reads: its node with those of
    the group, and of the one that copies its weight into another order."""
    home: dict[int, list[int]] = {}
    for number, nodes in enumerate(groups):
        for member in nodes:
            home.setdefault(member, []).append(number)
    users = Dependences(graph).users
    for node in graph.nodes:
        if not _sums_channels(node) or node.id in home:
            continue
        readers = {tuple(home.get(u, ())) for u in bits(users[node.id])}
        if len(readers) != 1 or node.id in graph.outputs:
            continue
        (reader,) = readers
        if len(reader) != 1:
            continue
        found = {node.id, *groups[reader[0]]}
        weight = bound(node)["weight"]
        if isinstance(weight, Ref):
            found |= _made_alone(graph, weight.node, home, groups)
        yield tuple(sorted(found))


def _sums_channels(node: Node) -> bool:
    """Whether it is a convolution that no kernel of ours can hold."""
    return is_convolution(node) and row(node) is None


def _made_alone(
    graph: Graph, node: int, home: Mapping[int, Sequence[int]], groups: Groups
) -> set[int]:
    """The nodes of a group that makes but this value, for one reader; none where it does more."""
    own = home.get(node, ())
    if len(own) != 1 or len(graph.users(node)) != 1:
        return set()
    nodes = groups[own[0]]
    return set(nodes) if subgraph(graph, nodes).outputs == (node,) else set()


def folded(group: Graph, *, scaled: bool) -> Walk | Refusal:
    """The group as one chunk: what makes weight and bias, and the call. scaled: whether the weight
    has to be."""
    try:
        body = _Folder(group).body(scaled)
    except Other as error:
        return Refusal("fold", f"the region is not one convolution and relu: {error}")
    (output,) = group.outputs
    types = [group.nodes[i].type for i in (*group.inputs, output or 0)]
    *given, result = (t for t in types if t is not None)
    inputs = tuple(ChunkInput("input", t, (), i) for i, t in enumerate(given))
    return Walk(inputs, (ChunkOutput(result, (), summed=False),), (), (body,), 0)


@dataclass(frozen=True, slots=True)
class _Chain:
    """relu or not of convolution * scale + shift + added, by values of the body; None: 1, or 0.
    scale and shift have one element for each channel, scale in float32."""

    scale: Ref | None = None
    shift: Ref | None = None
    added: Ref | None = None
    is_cut: bool = False


class _Folder:
    """One walk over a group in order. What does not come of the convolution is computed as it
    was."""

    def __init__(self, group: Graph) -> None:
        self.group = group
        own = [n for n in group.nodes if _sums_channels(n)]
        if len(own) != 1 or len(group.outputs) != 1:
            raise Other("not one convolution with one result")
        if group.numerics == "eager":
            raise Other("a folded weight is rounded where eager's is not")
        (self.node,) = own
        self.build = Builder(group)
        self.made: dict[int, Ref] = {n: self.build.input(n) for n in group.inputs}
        self.chains: dict[int, _Chain] = {}

    def body(self, scaled: bool) -> Graph:
        self._check()
        for node in self.group.nodes:
            if is_input(node):
                continue
            if node is self.node:
                self.chains[node.id] = _Chain()
            elif any(n in self.chains for n in node.inputs):
                self.chains[node.id] = self._next(node)
            elif node.type is None:
                raise Other(f"{node.name} is no single tensor")
            else:
                self.made[node.id] = self.build.again(node, self.made)
        (output,) = self.group.outputs
        chain = self.chains.get(-1 if output is None else output)
        if chain is None or not chain.is_cut or chain.shift is None:
            raise Other("the result is not cut off at 0, or has no bias")
        if (chain.scale is not None) != scaled:
            raise Other("it is scaled" if chain.scale else "it is not scaled")
        return self.build.finish(self._call(chain, chain.shift))

    def _check(self) -> None:
        kind, named = self.node.type, bound(self.node)
        (output,) = self.group.outputs
        result = None if output is None else self.group.nodes[output].type
        weight = self._type(named["weight"])
        if kind is None or weight is None or result is None or len(kind.shape) != 4:
            raise Other("not images")
        if result != kind or kind.dtype not in NARROW or kind.stride[1] != 1:
            raise Other("not 16-bit images with their channels side by side")
        if any(n % WHOLE for n in weight.shape[:2]) or named["groups"] != 1:
            raise Other(f"channels in groups, or not in multiples of {WHOLE}")
        if named["transposed"] or named["bias"] is not None:
            raise Other("a transposed convolution, or one with a bias")

    def _type(self, argument: Arg) -> TensorType | None:
        return self.group.nodes[argument.node].type if isinstance(argument, Ref) else None

    def _next(self, node: Node) -> _Chain:
        """What an operation makes of what it reads."""
        kind, named = row(node), bound(node)
        assert self.node.type is not None
        if node.type is None or node.type.shape != self.node.type.shape:
            raise Other(f"{node.name} has another shape")
        if isinstance(kind, Cast) and node.type.dtype in ("float32", self.node.type.dtype):
            return self.chains[node.inputs[0]]
        if not isinstance(kind, Pointwise):
            raise Other(f"{node.name} is no scale and no shift")
        left, right = named.get("self"), named.get("other")
        if named.get("alpha", 1) != 1:
            raise Other(f"{node.name} has a factor")
        if isinstance(right, Ref) and right.node in self.chains:
            if isinstance(left, Ref) and left.node in self.chains:
                raise Other(f"{node.name} reads the convolution twice")
            if kind.op not in (Op.ADD, Op.MUL):
                raise Other(f"{node.name} takes the convolution from another")
            left, right = right, left
        assert isinstance(left, Ref)
        chain = self.chains[left.node]
        if chain.is_cut:
            raise Other(f"{node.name} comes after the cut")
        match kind.op:
            case Op.RELU:
                return replace(chain, is_cut=True)
            case Op.ADD | Op.SUB if self._is_image(right):
                if chain.added is not None or kind.op is Op.SUB:
                    raise Other(f"{node.name} adds one image more")
                assert isinstance(right, Ref)
                return replace(chain, added=self.made[right.node])
            case Op.ADD | Op.SUB:
                shift = self._channels(right, node)
                if kind.op is Op.SUB:
                    shift = self.build.call("neg.default", self._wide(shift))
                if chain.shift is not None:
                    both = self._wide(chain.shift), self._wide(shift)
                    shift = self.build.call("add.Tensor", *both)
                return replace(chain, shift=shift)
            case Op.MUL | Op.DIV if chain.added is None:
                return self._scaled(chain, kind.op, self._wide(self._channels(right, node)))
        raise Other(f"{node.name} is no scale and no shift")

    def _scaled(self, chain: _Chain, op: Op, other: Ref) -> _Chain:
        def scaled(of: Ref) -> Ref:
            name = "mul.Tensor" if op is Op.MUL else "div.Tensor"
            return self.build.call(name, self._wide(of), other)

        if chain.scale is not None:
            scale = scaled(chain.scale)
        elif op is Op.MUL:
            scale = other
        else:
            scale = self.build.call("reciprocal.default", other)
        return replace(
            chain, scale=scale, shift=None if chain.shift is None else scaled(chain.shift)
        )

    def _is_image(self, value: Arg) -> bool:
        kind = self._type(value)
        return (
            kind is not None and self.node.type is not None and kind.shape == self.node.type.shape
        )

    def _channels(self, value: Arg, node: Node) -> Ref:
        """A number of each channel, [channels]."""
        assert self.node.type is not None
        channels = self.node.type.shape[1]
        if isinstance(value, (int, float)):
            like = torch.empty(channels, dtype=torch.float32, device="meta")
            kept = {"dtype": Symbol("dtype", "float32"), "device": Symbol("device", "graph")}
            return self.build.call("full.default", (channels,), float(value), like=like, **kept)
        kind = self._type(value)
        if kind is None or kind.dtype not in FLOATS or kind.dtype == "float64":
            raise Other(f"{node.name} reads what is no number of each channel")
        shape = (1,) * (4 - len(kind.shape)) + kind.shape
        if shape != (1, channels, 1, 1):
            raise Other(f"{node.name} reads what is no number of each channel")
        assert isinstance(value, Ref)
        return self.build.reshape(self.made[value.node], (channels,))

    def _wide(self, value: Ref) -> Ref:
        return self.build.cast(value, "float32")

    def _call(self, chain: _Chain, shift: Ref) -> Ref:
        named, build = bound(self.node), self.build
        assert self.node.type is not None
        image, weight = named["input"], named["weight"]
        assert isinstance(image, Ref)
        assert isinstance(weight, Ref)
        made, dtype = self.made[weight.node], self.node.type.dtype
        # The library keeps what it chose for sizes and type of the image: a bias of another type
        # would be read as one of that, and has slower kernels.
        shift = shift if build.type(shift).dtype == dtype else build.rounded(shift, dtype)
        if chain.scale is not None:
            column = build.reshape(chain.scale, (build.shape(chain.scale)[0], 1, 1, 1))
            made = build.rounded(build.call("mul.Tensor", self._wide(made), column), dtype)
        order = (named["stride"], named["padding"], named["dilation"])
        like = torch.empty_strided(
            self.node.type.shape,
            self.node.type.stride,
            dtype=getattr(torch, self.node.type.dtype),
            device="meta",
        )
        args = (self.made[image.node], made, shift, chain.added, *order)
        return build.own("convolution_relu.default", *args, like=like)
