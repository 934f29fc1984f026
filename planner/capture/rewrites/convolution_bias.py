"""The bias of a convolution as an addition of its own, which a kernel of ours fuses.

On a GPU the library that computes a convolution knows no bias: ATen adds it to the stored result by
another kernel, and sums its gradient by another one. As operations of the graph, both share a
kernel with what follows or precedes. Roundings stay where ATen has them: the result is rounded to
its type, and then the bias is added.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ..fx_nodes import called
from ..on_a_copy import rewritten_copy

__all__ = ["split_biases"]

aten = torch.ops.aten

_FORWARD = aten.convolution.default
_BACKWARD = aten.convolution_backward.default


def split_biases(gm: fx.GraphModule) -> fx.GraphModule:
    """The functional FX graph whose convolutions have no bias, or `gm` itself where none has one.
    `gm` is left as it is; names and metadata are kept. A convolution whose sizes vary stays as it
    is."""
    if not any(n.target in (_FORWARD, _BACKWARD) for n in gm.graph.nodes):
        return gm

    def change(graph: fx.Graph) -> bool:
        changed = [_SPLIT[n.target](n) for n in list(graph.nodes) if n.target in _SPLIT]
        return any(changed)

    return rewritten_copy(gm, change, "convolutions keep their biases")


def _split_forward(node: fx.Node) -> bool:
    image, weight, bias = node.args[:3]
    wanted = _value(node)
    if bias is None or not _is_static(wanted) or _adds_itself(node):
        return False
    with node.graph.inserting_before(node):
        alone = called(node, _FORWARD, (image, weight, None, *node.args[3:]))
        shape = [wanted.shape[1], *[1] * (wanted.dim() - 2)]
        column = called(node, aten.view.default, (bias, shape))
        total = called(node, aten.add.Tensor, (alone, column))
    value = _value(total)
    # Of a single pixel or channel the sum may lie in another order than was promised.
    if value.stride() != wanted.stride() or value.dtype != wanted.dtype:
        for made in (total, column, alone):
            node.graph.erase_node(made)
        return False
    node.replace_all_uses_with(total)
    node.graph.erase_node(node)
    return True


def _split_backward(node: fx.Node) -> bool:
    """Of the three results the last is the bias's gradient: the sum over all but the channels."""
    gradient: Any = node.args[0]
    given: Any = node.args[-1]
    *mask, wanted = given
    value = _value(gradient)
    if not wanted or not _is_static(value):
        return False
    reads = [n for n in node.users if n.args[1:] == (2,)]
    with node.graph.inserting_before(node):
        axes = [0, *range(2, value.dim())]
        total = called(node, aten.sum.dim_IntList, (gradient, axes))
    for read in reads:
        read.replace_all_uses_with(total)
        node.graph.erase_node(read)
    if not any(mask):
        node.graph.erase_node(node)
        return True
    node.args = (*node.args[:-1], [*mask, False])
    node.meta["val"] = (*node.meta["val"][:2], None)
    return True


_SPLIT = {_FORWARD: _split_forward, _BACKWARD: _split_backward}


def _adds_itself(node: fx.Node) -> bool:
    """Whether ATen computes the convolution by a kernel of its own, which adds the bias: a
    depthwise one of images in planes."""
    image = _value(node.args[0])
    groups, transposed = node.args[8], node.args[6]
    if transposed or groups == 1 or groups != image.shape[1]:
        return False
    order = {4: torch.channels_last, 5: torch.channels_last_3d}.get(image.dim())
    if order is None:
        return False
    return image.is_contiguous() or not image.is_contiguous(memory_format=order)


def _is_static(value: torch.Tensor) -> bool:
    return all(isinstance(n, int) for n in value.shape)


def _value(node: Any) -> Any:
    """The fake tensor of a node."""
    return node.meta["val"]
