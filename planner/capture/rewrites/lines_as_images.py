"""Convolutions of one dimension as those of images one pixel high.

Libraries read the channels of an image side by side as fast as they can, and of a line not: there
they copy it to an image first. As an image a convolution of one place at a time is a product, and
whatever is said of the order of images (see `channels_last`) holds for sound and other sequences.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ..capture import is_dynamic
from ..fx_nodes import called, value_of
from ..on_a_copy import rewritten_copy

__all__ = ["lines_as_images"]

aten = torch.ops.aten

_TENSORS: dict[Any, tuple[int, ...]] = {
    aten.convolution.default: (0, 1),
    aten.convolution_backward.default: (0, 1, 2),
}
"""Where lines and weights are among the arguments."""

_SIZES: dict[Any, tuple[tuple[int, int], ...]] = {
    aten.convolution.default: ((3, 1), (4, 0), (5, 1), (7, 0)),
    aten.convolution_backward.default: ((4, 1), (5, 0), (6, 1), (8, 0)),
}
"""Where numbers are that there is one of for each dimension, and what they are along the height:
the step, the padding, the dilation, and what is added to a transposed result."""

_HEIGHT = 2

_NARROW = (torch.float16, torch.bfloat16)


def lines_as_images(gm: fx.GraphModule) -> fx.GraphModule:
    """The functional FX graph with such convolutions, or `gm` itself where there are none of 16-bit
    numbers. `gm` is left as it is; names and metadata are kept."""
    if is_dynamic(gm) or not any(map(_is_of_lines, gm.graph.nodes)):
        return gm

    def change(graph: fx.Graph) -> bool:
        for node in list(filter(_is_of_lines, graph.nodes)):
            _raise(node)
        return True

    return rewritten_copy(gm, change, "convolutions of lines stay as they are")


def _is_of_lines(node: fx.Node) -> bool:
    """Of one channel or one place the image could be taken for either order."""
    if node.target not in _TENSORS:
        return False
    *lines, weight = (value_of(node.args[i]) for i in _TENSORS[node.target])
    if weight is None or weight.dim() != 3 or weight.shape[0] == 1:
        return False
    return all(x is not None and min(x.shape[1:]) > 1 and x.dtype in _NARROW for x in lines)


def _raise(node: fx.Node) -> None:
    given: list[Any] = list(node.args)
    with node.graph.inserting_before(node):
        for place in _TENSORS[node.target]:
            given[place] = called(node, aten.unsqueeze.default, (given[place], _HEIGHT))
        for place, along in _SIZES[node.target]:
            given[place] = [along, *given[place]]
        found = called(node, node.target, tuple(given))
        if node.target is aten.convolution.default:
            _stands_for(node, called(node, aten.squeeze.dim, (found, _HEIGHT)))
        else:
            _results_as_lines(node, found)
    node.graph.erase_node(node)


def _results_as_lines(node: fx.Node, found: fx.Node) -> None:
    """The gradients of lines, of weights, and of a bias, which has none of their dimensions."""
    for read in list(node.users):
        which = read.args[1]
        with node.graph.inserting_before(read):
            item = called(read, read.target, (found, which))
            flat = item if which == 2 else called(read, aten.squeeze.dim, (item, _HEIGHT))
        _stands_for(read, flat)
        node.graph.erase_node(read)


def _stands_for(node: fx.Node, made: fx.Node) -> None:
    """In place of a node, with its strides: of an image with channels side by side a library gives
    such a result, and of a line it does not."""
    wanted = value_of(node)
    if wanted is not None and wanted.stride() != value_of(made).stride():
        if not wanted.is_contiguous():
            raise ValueError(f"{node} has the strides {wanted.stride()}")
        with node.graph.inserting_before(node):
            made = called(node, aten.clone.default, (made,), memory_format=torch.contiguous_format)
    node.replace_all_uses_with(made)
