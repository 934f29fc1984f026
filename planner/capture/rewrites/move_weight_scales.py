"""Scales of packed weights, moved behind the product that reads the weights.

Weights of 8 bits are multiplied by a scale for each row before a linear layer takes them. As
written, that is a product for each weight, rounded to 16 bits. The scale is the same along the
summed axis, so that it may multiply the sum instead: then weights are only converted, exactly.

The rule: x @ (W * s)^T = (x @ W^T) * s, for s with one value for each row of W, where x has few
rows. Real numbers would be the same; here fewer are rounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import fx

from ..capture import is_dynamic
from ..fx_nodes import CAST, CASTS, called, turned_matrix, value_of
from ..on_a_copy import rewritten_matches
from .packed_weights import SAFE, is_packed

__all__ = ["move_weight_scales"]

aten = torch.ops.aten

MOST_ROWS = 64
"""Rows of x up to which the result has fewer elements than the weights of any layer."""


class _Scaled(NamedTuple):
    """weights, scales: matrices that the product's right operand is the product of, before it is
    turned. dtype: of the operand."""

    weights: fx.Node
    scales: Any
    dtype: torch.dtype


def move_weight_scales(gm: fx.GraphModule) -> fx.GraphModule:
    """The functional FX graph with such scales moved, or `gm` itself where there are none. `gm` is
    left as it is; names and metadata are kept. A graph whose sizes vary stays as it is."""
    if is_dynamic(gm):
        return gm
    return rewritten_matches(
        gm, _moves, lambda found: _move(*found), "scales stay before their products"
    )


def _moves(graph: fx.Graph) -> Iterator[tuple[fx.Node, _Scaled]]:
    for node in graph.nodes:
        if node.target is aten.mm.default and value_of(node) is not None:
            scaled = _scaled(node)
            if scaled is not None:
                yield node, scaled


def _scaled(product: fx.Node) -> _Scaled | None:
    row, right = product.args
    if value_of(row).shape[0] > MOST_ROWS or value_of(product).dtype not in SAFE:
        return None
    turned = turned_matrix(right)
    factors = turned or right
    assert isinstance(factors, fx.Node)
    dtype, summed = value_of(factors).dtype, 1 if turned else 0
    if factors.target in CASTS and isinstance(factors.args[0], fx.Node):
        factors = factors.args[0]
    if factors.target is not aten.mul.Tensor or value_of(factors).dtype not in SAFE:
        return None
    for weights, scales in (factors.args, reversed(factors.args)):
        if not isinstance(weights, fx.Node) or not isinstance(scales, fx.Node):
            continue
        sizes = value_of(scales).shape
        is_whole = value_of(weights).shape == value_of(factors).shape
        # Counted from the last, as broadcasting does.
        is_same = len(sizes) < 2 - summed or sizes[summed - 2] == 1
        if is_whole and is_same and is_packed(weights):
            return _Scaled(weights, scales, dtype)
    return None


def _move(product: fx.Node, scaled: _Scaled) -> None:
    row, right = product.args
    kept = value_of(product).dtype
    with product.graph.inserting_before(product):
        weights, scales = scaled.weights, scaled.scales
        if value_of(weights).dtype is not scaled.dtype:
            weights = called(product, CAST, (weights, scaled.dtype))
        if turned_matrix(right) is not None:
            weights = called(product, aten.permute.default, (weights, [1, 0]))
            if value_of(scales).dim() == 2:
                scales = called(product, aten.permute.default, (scales, [1, 0]))
        found = called(product, aten.mm.default, (row, weights))
        found = called(product, aten.mul.Tensor, (found, scales))
        if value_of(found).dtype is not kept:
            found = called(product, CAST, (found, kept))
    product.replace_all_uses_with(found)
