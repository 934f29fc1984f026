"""Sums over a product that a product already in the graph gives.

The backward pass of softmax needs sum_k P[q,k] * dP[q,k] with dP[q,k] = sum_d dO[q,d] * V[k,d]. In
another order of the sums it is sum_d dO[q,d] * O[q,d] with O[q,d] = sum_k P[q,k] * V[k,d], which
the forward pass has computed. So no pass over the scores is needed for it.

The rule, for any values: sum_k (A @ B)[m,k] * P[m,k] = sum_d A[m,d] * (P @ B^T)[m,d], applied where
the graph holds P @ B^T. P may be a product of several factors, a dropout mask among them, in any
order and rounded on the way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx
from torch.utils.checkpoint import CheckpointPolicy

from ..fx_nodes import CAST, SWAPS, called

aten = torch.ops.aten

_PRODUCTS = (aten.mm.default, aten.bmm.default)
_SUMS = (aten.sum.dim_IntList,)
_SAME_ORDER = (
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten._to_copy.default,
    CAST,
    aten.clone.default,
    aten.alias.default,
    aten.detach.default,
)

LONGER = 2
"""Times the terms of A @ B that the sum over it must have, to be worth another order."""

FactorCounts = Counter[Any]


def reassociate(graph: fx.Graph) -> int:
    """Replace such sums in an FX graph with fake values in its metadata; how many there were."""
    found = 0
    for node in list(graph.nodes):
        made = _replacement(node) if node.target in _SUMS else None
        if made is not None:
            left, product = made
            _replace(node, left, product)
            found += 1
    if found:
        graph.eliminate_dead_code()
    return found


def _replacement(node: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """A and P @ B^T of a sum over the last axis of (A @ B) * P."""
    item, dims = node.args[0], node.args[1]
    if any(not isinstance(n, int) for n in node.meta["val"].shape):
        return None  # a symbolic size would have to be computed in the graph
    if not isinstance(item, fx.Node) or not isinstance(dims, (list, tuple)) or len(dims) != 1:
        return None
    if dims[0] not in (-1, len(_shape(item)) - 1):
        return None
    factors = _factors(item)
    for inner in factors:
        if not isinstance(inner, fx.Node) or inner.target not in _PRODUCTS or factors[inner] != 1:
            continue
        left, right = inner.args
        assert isinstance(left, fx.Node)
        assert isinstance(right, fx.Node)
        rest = factors - Counter([inner])
        if not rest or _shape(inner)[-1] != _shape(item)[-1]:
            continue
        if _shape(inner)[-1] < LONGER * _shape(left)[-1]:
            continue
        for product in _products_with(_swapped(right), inner):
            weights = product.args[0]
            if isinstance(weights, fx.Node) and _factors(weights) == rest:
                return left, product
    return None


def _factors(node: fx.Node) -> FactorCounts:
    """What a value is a product of, through rounding and views that keep the order of elements;
    numbers count with their values."""
    node = _origin(node)
    if node.target in (aten.mul.Tensor, aten.mul.Scalar):
        left, right = node.args
        same = all(not isinstance(a, fx.Node) or _numel(a) == _numel(node) for a in node.args)
        if same:
            return _of(left) + _of(right)
    return Counter([node])


def _of(value: Any) -> FactorCounts:
    return _factors(value) if isinstance(value, fx.Node) else Counter([value])


def _origin(node: fx.Node) -> fx.Node:
    """The value behind views and roundings that keep all elements in their order."""
    while True:
        source = node.args[0] if node.args else None
        keeps = node.target in _SAME_ORDER or node.target is aten.expand.default
        if not keeps or not isinstance(source, fx.Node) or _numel(source) != _numel(node):
            return node
        node = source


def _swapped(node: fx.Node) -> fx.Node | None:
    """The value of which a matrix is the transpose, its last two dimensions exchanged."""
    source = node.args[0] if node.args else None
    if node.target not in SWAPS or not isinstance(source, fx.Node):
        return None
    shape = list(_shape(source))
    shape[-2:] = shape[:-3:-1]
    order = list(range(len(shape)))
    order[-2:] = order[:-3:-1]
    wanted: dict[Any, Callable[[], bool]] = {
        aten.permute.default: lambda: [d % len(order) for d in _listed(node.args[1])] == order,
        aten.transpose.int: lambda: {d % len(order) for d in node.args[1:]} == {*order[-2:]},  # type: ignore[operator]
        aten.t.default: lambda: True,
    }
    return source if wanted[node.target]() else None


def _products_with(right: fx.Node | None, inner: fx.Node) -> Iterator[fx.Node]:
    """Products of something with this right operand that come before `inner` can be replaced."""
    if right is None:
        return
    for user in right.users:
        if user.target is inner.target and user.args[1] is right and user < inner:
            yield user


def _replace(node: fx.Node, left: fx.Node, product: fx.Node) -> None:
    """sum_d left * product in float32 (float64 for such), in the type and shape of the old sum.

    The old sum may nearly cancel what it is taken from, as where a row of P has one large element.
    So the product is saved in float32: the kernel that computes it has it in that precision."""
    value = node.meta["val"]
    wide = torch.float64 if value.dtype is torch.float64 else torch.float32
    if product.meta["val"].dtype != wide:
        with node.graph.inserting_after(product):
            product = called(product, CAST, (product, wide))
            product.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    with node.graph.inserting_before(node):
        if left.meta["val"].dtype != wide:
            left = called(node, CAST, (left, wide))
        item = called(node, aten.mul.Tensor, (left, product))
        total = called(node, aten.sum.dim_IntList, (item, [-1]))
        shaped = called(node, aten.view.default, (total, list(value.shape)))
        if value.dtype != wide:
            shaped = called(node, CAST, (shaped, value.dtype))
    node.replace_all_uses_with(shaped)


def _listed(value: Any) -> list[int]:
    return list(value) if isinstance(value, (list, tuple)) else []


def _shape(node: fx.Node) -> tuple[Any, ...]:
    return tuple(node.meta["val"].shape)


def _numel(node: fx.Node) -> Any:
    value = node.meta.get("val")
    return value.numel() if isinstance(value, torch.Tensor) else None
