"""Sums over unpacked weights, one for each place in a byte and each group that shares a scale.

Weights of a few bits lie several in a byte. A layer written plainly shifts each out of its byte,
puts them side by side, multiplies groups of neighbours by a scale, and multiplies a row by the
result. A kernel of that reads a byte, and a scale, for each weight. In another order of the sums it
reads each once:

    sum_k x[k] * s[r, k / n] * W[r, k] = sum_g s[r, g] * sum_i sum_j x[g, j, i] * W_i[r, g, j]

where W_i are the weights at place i of their bytes. The rule is for x of one row, and weights that
the graph is given as bytes. Real numbers would be the same; here fewer are rounded.
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

__all__ = ["split_packed_sums"]

aten = torch.ops.aten

MOST_PIECES = 8
"""Weights in a byte, at most."""

_VIEWS = (aten.view.default, aten._unsafe_view.default)


class _Packed(NamedTuple):
    """Weights [rows, groups, each], and how they are made."""

    pieces: tuple[fx.Node, ...]
    """Matrices of the weights at each place of their bytes; the only one holds all in order."""
    casts: tuple[fx.Node, ...]
    """What converts them, the last first."""
    scales: fx.Node | None
    """[rows, groups, 1]; None: there are none."""
    groups: int


def split_packed_sums(gm: fx.GraphModule) -> fx.GraphModule:
    """The functional FX graph with such sums apart, or `gm` itself where there are none. `gm` is
    left as it is; names and metadata are kept. A graph whose sizes vary stays as it is."""
    if is_dynamic(gm):
        return gm
    return rewritten_matches(
        gm, _sums, lambda found: _split(*found), "sums of unpacked weights stay whole"
    )


def _sums(graph: fx.Graph) -> Iterator[tuple[fx.Node, _Packed]]:
    for node in graph.nodes:
        if node.target is aten.mm.default and value_of(node) is not None:
            packed = _packed(node)
            if packed is not None:
                yield node, packed


def _packed(product: fx.Node) -> _Packed | None:
    row, right = product.args
    weights = turned_matrix(right)
    if weights is None or value_of(row).shape[0] != 1 or value_of(product).dtype not in SAFE:
        return None
    if not is_packed(weights):
        return None
    rows, columns = value_of(weights).shape
    below = _below(weights, _VIEWS)
    grouped = _grouped(below)
    scales, groups = None, 1
    if grouped is not None:
        weights, scales = grouped
        groups = value_of(scales).shape[1]
    casts = []
    while weights.target in CASTS or weights.target in _VIEWS:
        casts += [weights] if weights.target in CASTS else []
        weights = weights.args[0]  # type: ignore[assignment]
    pieces = _pieces(weights)
    each = columns // groups
    fits = all(value_of(p).shape == (rows, columns // len(pieces)) for p in pieces)
    if pieces and fits and not each % len(pieces):
        return _Packed(pieces, tuple(casts), scales, groups)
    if scales is None or value_of(weights).numel() != rows * columns:
        return None
    return _Packed((weights,), tuple(casts), scales, groups)


def _below(node: fx.Node, targets: tuple[Any, ...]) -> fx.Node:
    """What a node is made of by such operations alone."""
    while node.target in targets:
        node = node.args[0]  # type: ignore[assignment]
    return node


def _grouped(factors: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """Weights [rows, groups, each] and scales [rows, groups, 1] that make a product."""
    if factors.target in CASTS and isinstance(factors.args[0], fx.Node):
        factors = factors.args[0]
    value = value_of(factors)
    if factors.target is not aten.mul.Tensor or value.dim() != 3 or value.dtype not in SAFE:
        return None
    for weights, scales in (factors.args, reversed(factors.args)):
        if not isinstance(weights, fx.Node) or not isinstance(scales, fx.Node):
            continue
        same = value_of(weights).shape == value.shape
        if same and value_of(scales).shape == (*value.shape[:2], 1) and is_packed(weights):
            return weights, scales
    return None


def _pieces(weights: fx.Node) -> tuple[fx.Node, ...]:
    """The matrices whose elements, one of each in turn, are put side by side; none where it is
    otherwise."""
    if weights.target is not aten.cat.default:
        return ()
    tensors, place = weights.args[0], weights.args[1] if len(weights.args) > 1 else 0
    assert isinstance(tensors, (list, tuple))
    if place not in (2, -1) or len(tensors) > MOST_PIECES:
        return ()
    found: list[fx.Node] = []
    for each in tensors:
        if not isinstance(each, fx.Node) or each.target is not aten.unsqueeze.default:
            return ()
        below, last = each.args
        if not isinstance(below, fx.Node) or last not in (2, -1) or value_of(each).dim() != 3:
            return ()
        found.append(below)
    return tuple(found)


def _wide(product: fx.Node, node: fx.Node) -> fx.Node:
    """In float32: sums of a part are not rounded before they are added up."""
    if value_of(node).dtype is torch.float32:
        return node
    return called(product, CAST, (node, torch.float32))


def _split(product: fx.Node, packed: _Packed) -> None:
    row, kept = product.args[0], value_of(product).dtype
    rows, places, groups = value_of(product).shape[1], len(packed.pieces), packed.groups
    each = value_of(row).shape[1] // groups // places
    with product.graph.inserting_before(product):
        total = None
        for place, piece in enumerate(packed.pieces):
            weights = called(product, aten.view.default, (piece, [rows, groups, each]))
            for cast in reversed(packed.casts):
                weights = called(product, cast.target, (weights, *cast.args[1:]), **cast.kwargs)
            weights = _wide(product, weights)
            weights = called(product, aten.permute.default, (weights, [1, 2, 0]))
            part = row
            if places > 1:
                named = (row, 1, place, groups * each * places, places)
                part = called(product, aten.slice.Tensor, named)
            part = _wide(product, called(product, aten.view.default, (part, [groups, 1, each])))
            found = called(product, aten.bmm.default, (part, weights))
            total = found if total is None else called(product, aten.add.Tensor, (total, found))
        assert total is not None
        if packed.scales is not None:
            scales = called(product, aten.permute.default, (packed.scales, [1, 2, 0]))
            total = called(product, aten.mul.Tensor, (total, scales))
        result = called(product, aten.sum.dim_IntList, (total, [0]))
        if value_of(result).dtype is not kept:
            result = called(product, CAST, (result, kept))
    product.replace_all_uses_with(result)
