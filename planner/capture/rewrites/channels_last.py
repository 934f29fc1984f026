"""Convolutions over images whose channels lie side by side.

A GPU's convolutions of 16-bit numbers read channels, not columns, side by side; of an image in
planes their library makes such a copy first, and another back, for each of them. Here the first
convolution's input is copied, and everything after it computed in that order of memory: generated
kernels read and write any strides. Inputs and results of the graph stay as they are. In that order
a convolution of one pixel at a time is a product of two matrices, which kernels of ours compute
with what follows, and is written as one; so is one of patches, as models of images begin with.

A library has fast kernels for that order where a convolution is not grouped, and where each channel
is a group of its own (depthwise); of an image in planes ATen computes the latter by a kernel of its
own, which took 3.6 times as long in EfficientNet-B0 (bfloat16, batches of 64, one H200).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.passes.shape_prop import _extract_tensor_metadata

from ..fx_nodes import value_of
from ..on_a_copy import rewritten_copy
from .convolution_rows import FAST_GROUPS, RowsOf, grouped_rows, is_of_slow_groups, pixels, rows_of
from .pad_channels import padded, padded_widths
from .repeat_channels import repeated, repeats

__all__ = ["channels_last"]

aten = torch.ops.aten

_GROUPS: dict[Any, int] = {aten.convolution.default: 8, aten.convolution_backward.default: 9}
"""Where the number of groups is among the arguments."""

_IMAGE: dict[Any, int] = {aten.convolution.default: 0, aten.convolution_backward.default: 1}
"""Where the image that the convolution reads is among the arguments; the weights follow it."""

_TENSORS: dict[Any, int] = {aten.convolution.default: 2, aten.convolution_backward.default: 3}
"""How many of the first arguments are images or weights."""

_ORDERS = {4: torch.channels_last, 5: torch.channels_last_3d}
"""By the number of dimensions, that in which channels lie side by side."""

_VIEWS = (aten.view.default, aten._unsafe_view.default)

_BY_STRIDE = (aten.as_strided.default, aten.set_.source_Storage)
"""They say where each element lies: nothing before them may move."""


class _Fixed(Exception):
    """An operation counts on the order that its operand has."""


def channels_last(gm: fx.GraphModule) -> fx.GraphModule:
    """The FX graph with the images of its convolutions in that order, or `gm` itself where that
    gains nothing: without convolutions of 16-bit numbers, or with small ones in groups alone for
    which a library has no fast kernel. Beside others those read and write planes. `gm` is left as
    it is; names and metadata are kept."""
    own = [n for n in gm.graph.nodes if n.target in _GROUPS]
    if not any(map(_gains, own)):
        return gm

    def change(graph: fx.Graph) -> bool:
        try:
            return _LayoutPass(graph).run()
        except _Fixed:
            return False

    return rewritten_copy(gm, change, "images stay in planes")


def _gains(node: Any) -> bool:
    value = value_of(node.args[0])
    if value is None or value.dim() not in _ORDERS:
        return False
    if value.dtype not in (torch.float16, torch.bfloat16):
        return False
    if not all(isinstance(n, int) for n in value.shape):
        return False
    if value.dim() == 5:
        return node.args[_GROUPS[node.target]] == 1 and not _is_trained(node.graph)
    if node.args[_GROUPS[node.target]] == 1 or is_of_slow_groups(node):
        return True
    if _widths(node) is not None:
        return True
    return _has_fast_groups(node) or _is_depthwise(node) or _is_repeated(node)


def _widths(node: fx.Node) -> tuple[int, int] | None:
    """With how many channels a convolution is computed, if with others than it has."""
    widths = padded_widths(node)
    return None if widths is None or _is_trained(node.graph) else widths


def _is_repeated(node: Any) -> bool:
    return repeats(node) and not _is_trained(node.graph)


def _is_trained(graph: fx.Graph) -> bool:
    return any(n.target is aten.convolution_backward.default for n in graph.nodes)


def _is_depthwise(node: fx.Node) -> bool:
    """Whether a convolution, or its backward pass, gives a channel of each channel."""
    image, weight = (value_of(n) for n in node.args[_IMAGE[node.target] :][:2])
    *_, transposed, _, groups = node.args[: _GROUPS[node.target] + 1]
    if image is None or weight is None or transposed:
        return False
    return bool(groups == image.shape[1] == weight.shape[0])


def _has_fast_groups(node: Any) -> bool:
    """Whether a convolution, or its backward pass, is in groups of so many channels that a library
    is faster where those lie side by side."""
    weight = value_of(node.args[_IMAGE[node.target] + 1])
    transposed = node.args[_GROUPS[node.target] - 2]
    return weight is not None and not transposed and weight.shape[1] in FAST_GROUPS


class _LayoutPass:
    """One walk over a graph, in order: operands are copied, and what follows gets the metadata
    that it then has."""

    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph
        self.copies: dict[fx.Node, fx.Node] = {}
        self.planes: dict[fx.Node, fx.Node] = {}
        self.changed: dict[fx.Node, Any] = {}  # with the value that each had before
        self.has_products = False

    def run(self) -> bool:
        for node in list(self.graph.nodes):
            if node.op == "output":
                node.args = (pytree.tree_map_only(fx.Node, self._as_it_was, node.args[0]),)
            elif node.target in _GROUPS and not _gains(node):
                self._in_planes(node)
            elif is_of_slow_groups(node):
                self._products(node)
            elif _is_repeated(node):
                self._repeated(node)
            elif (widths := _widths(node)) is not None:
                with self.graph.inserting_before(node):
                    found = padded(self._caller(node), node, widths)
                self._stands_for(node, found)
            elif node.target in _GROUPS:
                make_rows = rows_of(node)
                if make_rows is None or make_rows is pixels:
                    self._convolution(node)
                if make_rows is not None:
                    self._product(node, make_rows)
            elif any(n in self.changed for n in node.all_input_nodes):
                self._again(node)
        return bool(self.changed) or self.has_products

    def _in_planes(self, node: fx.Node) -> None:
        """A convolution as it was; of what no longer lies in planes it reads a copy."""
        moved = [n for n in node.all_input_nodes if n in self.changed]
        if not all(_is_in_planes(self.changed[n]) for n in moved):
            raise _Fixed
        for each in moved:
            if each not in self.planes:
                with self.graph.inserting_before(node):
                    self.planes[each] = self._copy(each, torch.contiguous_format, node)
            node.replace_input_with(each, self.planes[each])
        if moved:
            self._again(node)

    def _convolution(self, node: fx.Node) -> None:
        count = _TENSORS[node.target]
        with self.graph.inserting_before(node):
            laid = [self._laid(n, node) if isinstance(n, fx.Node) else n for n in node.args[:count]]
        node.args = (*laid, *node.args[count:])
        self._again(node)

    def _repeated(self, node: fx.Node) -> None:
        """A depthwise convolution of an image whose channels are repeated."""
        with self.graph.inserting_before(node):
            image = repeated(self._caller(node), self._laid(node.all_input_nodes[0], node), node)
        node.args = (image, *node.args[1:8], value_of(image).shape[1])
        self.has_products = True
        self._convolution(node)

    def _product(self, node: fx.Node, make_rows: RowsOf) -> None:
        """In place of a convolution: what each pixel of the result reads, a row each, times the
        weights."""
        wanted, bias = node.meta["val"], node.args[2]
        images, channels, *places = wanted.shape
        call = self._caller(node)
        with self.graph.inserting_before(node):
            rows, weight = make_rows(call, node)
            rows = call(aten.view.default, rows, [images * math.prod(places), -1])
            columns = call(aten.view.default, weight, [channels, -1])
            columns = call(aten.permute.default, columns, [1, 0])
            if bias is None:
                found = call(aten.mm.default, rows, columns)
            else:
                found = call(aten.addmm.default, bias, rows, columns)
            found = call(aten.view.default, found, [images, *places, channels])
            order = [0, 1 + len(places), *range(1, 1 + len(places))]
            found = call(aten.permute.default, found, order)
        self._stands_for(node, found)

    def _products(self, node: fx.Node) -> None:
        """In place of a convolution in groups: a product for each group."""
        wanted, bias = node.meta["val"], node.args[2]
        images, channels, height, width = wanted.shape
        call = self._caller(node)
        with self.graph.inserting_before(node):
            rows, weight = grouped_rows(call, node)
            columns = call(aten.permute.default, weight, [0, 2, 1])
            found = call(aten.bmm.default, rows, columns)
            found = call(aten.view.default, found, [node.args[8], images, height, width, -1])
            found = call(aten.permute.default, found, [1, 2, 3, 0, 4])
            found = call(aten.clone.default, found, memory_format=torch.contiguous_format)
            found = call(aten.view.default, found, [images, height, width, channels])
            if bias is not None:
                found = call(aten.add.Tensor, found, bias)
            found = call(aten.permute.default, found, [0, 3, 1, 2])
        self._stands_for(node, found)

    def _caller(self, node: fx.Node) -> Callable[..., fx.Node]:
        """What makes calls that stand for a node: what is said of it, as that it is to be computed
        again, stays."""

        def call(target: Any, *args: Any, **kwargs: Any) -> fx.Node:
            made = self._made(node, target, args, kwargs)
            for name in node.meta.keys() - made.meta.keys():
                made.meta[name] = node.meta[name]
            return made

        return call

    def _stands_for(self, node: fx.Node, found: fx.Node) -> None:
        self.has_products = True
        # One channel, or one pixel, lies in both orders: the product in that of channels.
        before = self.changed.pop(node, node.meta["val"])
        if _strides(before) != _strides(found.meta["val"]):
            self.changed[found] = before
        node.replace_all_uses_with(found)
        self.graph.erase_node(node)

    def _laid(self, node: fx.Node, reader: fx.Node) -> fx.Node:
        """The node with channels side by side: itself or a copy."""
        value = value_of(node)
        if value is None:
            return node
        order = _ORDERS[value.dim()]
        if value.is_contiguous(memory_format=order):
            return node
        if node not in self.copies:
            self.copies[node] = self._copy(node, order, reader)
        return self.copies[node]

    def _as_it_was(self, node: fx.Node) -> fx.Node:
        """A result of the graph has the strides that its user was promised."""
        before = self.changed.get(node)
        if not isinstance(before, torch.Tensor):
            return node
        if not _is_in_planes(before):
            raise _Fixed
        with self.graph.inserting_after(node):  # of a joint graph, the forward pass comes first
            return self._copy(node, torch.contiguous_format, node)

    def _copy(self, node: fx.Node, order: torch.memory_format, like: fx.Node) -> fx.Node:
        """A copy in that order; it belongs to the same pass, forward or backward, as `like`."""
        return self._made(like, aten.clone.default, (node,), {"memory_format": order})

    def _made(
        self, like: fx.Node, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> fx.Node:
        """A new node that belongs to the same pass as `like`."""
        made = self.graph.call_function(target, args, kwargs)
        for name in ("partitioner_tag", "stack_trace"):
            if name in like.meta:
                made.meta[name] = like.meta[name]
        _describe(made, _run(made))
        return made

    def _again(self, node: fx.Node) -> None:
        """Its metadata, computed again. A view of what no longer lies in its order is a copy."""
        if node.target in _BY_STRIDE or node.op != "call_function":
            raise _Fixed
        try:
            value = _run(node)
        except (RuntimeError, ValueError) as error:
            source = node.args[0]
            if node.target not in _VIEWS or not isinstance(source, fx.Node):
                raise _Fixed from error
            with self.graph.inserting_before(node):
                node.args = (self._copy(source, torch.contiguous_format, node), *node.args[1:])
            value = _run(node)
        before = node.meta["val"]
        if _strides(before) != _strides(value):
            self.changed[node] = before
        _describe(node, value)


def _describe(node: fx.Node, value: Any) -> None:
    node.meta["val"] = value
    if isinstance(value, torch.Tensor):
        # torch's partitioner takes what has none for a tuple.
        node.meta["tensor_meta"] = _extract_tensor_metadata(value)


def _run(node: fx.Node) -> Any:
    """The node's value on the metadata of its operands; of one without, on that of the first."""
    args, kwargs = pytree.tree_map_only(fx.Node, lambda n: n.meta["val"], (node.args, node.kwargs))
    fakes = [v for v in pytree.tree_leaves((args, kwargs)) if isinstance(v, FakeTensor)]
    fakes = fakes or [next(iter(node.graph.nodes)).meta["val"]]
    with torch.no_grad(), fakes[0].fake_mode:
        return node.target(*args, **kwargs)  # type: ignore[operator]


def _is_in_planes(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_contiguous()


def _strides(value: Any) -> Sequence[Any]:
    return [v.stride() if isinstance(v, torch.Tensor) else None for v in pytree.tree_leaves(value)]
