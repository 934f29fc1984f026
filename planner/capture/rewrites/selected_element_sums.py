"""Sums of one selected element, in the graph of a training step.

`sum(where(arange == i, g, 0), dim)` is g where i lies on the axis and 0 elsewhere. The gradient of
a loss over classes is such a selection, and the backward pass of log_softmax sums it: read from the
graph, the sum needs no sweep over the classes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ..fx_nodes import called

aten = torch.ops.aten


def drop_picked_sums(graph: fx.Graph) -> int:
    """Replace such sums in a functional FX graph with fake values in its metadata; returns how many
    were replaced."""
    found = 0
    for node in list(graph.nodes):
        if node.target is not aten.sum.dim_IntList:
            continue
        parts = _selected(node)
        if parts is not None:
            _replace(node, *parts)
            found += 1
    if found:
        graph.eliminate_dead_code()
    return found


def _selected(node: fx.Node) -> tuple[fx.Node, Any, fx.Node, fx.Node] | None:
    """Of a sum of one selected element along one dimension, kept with size 1: the index, the size
    of the axis, the element and the zero. None of any other sum."""
    summed: tuple[Any, ...] = node.args
    source, dims, *keepdim = summed
    if not isinstance(dims, (list, tuple)) or len(dims) != 1 or keepdim != [True]:
        return None
    if _widens(source):
        source = source.args[0]
    if not _is_call(source, aten.where.self):
        return None
    condition, element, zero = source.args
    shape, dim = _shape(source), dims[0] % max(len(_shape(source)), 1)
    if not (shape and _is_float(element) and _is_zero(zero) and _has_one(element, shape, dim)):
        return None
    if not _is_call(condition, aten.eq.Tensor):
        return None
    for places, index in (condition.args, condition.args[::-1]):
        size = _axis(places, shape, dim)
        if size is not None and _is_index(index) and _has_one(index, shape, dim):
            return index, size, element, zero
    return None


def _is_index(node: Any) -> bool:
    return isinstance(node, fx.Node) and node.meta["val"].dtype in (torch.int32, torch.int64)


def _is_call(node: Any, *targets: Any) -> bool:
    return isinstance(node, fx.Node) and node.target in targets


def _axis(places: Any, shape: tuple[Any, ...], dim: int) -> Any:
    """The size of the axis, a number or the node of one, where `places` counts the dimension `dim`
    of `shape` from 0; else None."""
    if not _is_call(places, aten.view.default):
        return None
    viewed, source = _shape(places), places.args[0]
    ahead = len(shape) - len(viewed)
    counts = _is_call(source, aten.arange.start_step) and dim >= ahead
    if not counts or not _is_same(viewed[dim - ahead], shape[dim]):
        return None
    start, end, step = (*source.args, 1)[:3]
    alone = all(_is_same(n, 1) for d, n in enumerate(viewed) if d != dim - ahead)
    return end if alone and start == 0 and step == 1 else None


def _has_one(node: Any, shape: tuple[Any, ...], dim: int) -> bool:
    """Whether a value has as many dimensions as `shape`, and size 1 along `dim`."""
    own = _shape(node)
    return len(own) == len(shape) and _is_same(own[dim], 1)


def _is_same(one: Any, other: Any) -> bool:
    """Whether two sizes are equal whatever the inputs are; to compare symbolic ones as numbers
    would add a guard."""
    sizes = [n.node.expr if isinstance(n, torch.SymInt) else n for n in (one, other)]
    return bool(sizes[0] == sizes[1])


def _widens(node: Any) -> bool:
    """Whether the node is a conversion that no value of its source is rounded by."""
    if not _is_call(node, aten._to_copy.default) or node.kwargs.keys() != {"dtype"}:
        return False
    before, after = node.args[0].meta["val"].dtype, node.meta["val"].dtype
    return bool(torch.promote_types(before, after) == after and after.is_floating_point)


def _is_float(node: Any) -> bool:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return isinstance(value, torch.Tensor) and value.dtype.is_floating_point


def _is_zero(node: Any) -> bool:
    if not _is_call(node, aten.full.default, aten.scalar_tensor.default) or _shape(node):
        return False
    number = node.args[-1]
    return type(number) in (int, float) and bool(number == 0)


def _shape(node: Any) -> tuple[Any, ...]:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return tuple(value.shape) if isinstance(value, torch.Tensor) else ()


def _replace(node: fx.Node, index: fx.Node, size: Any, element: fx.Node, zero: fx.Node) -> None:
    value = node.meta["val"]
    with node.graph.inserting_before(node):
        low = called(node, aten.ge.Scalar, (index, 0))
        high = called(node, aten.lt.Scalar, (index, size))
        inside = called(node, aten.logical_and.default, (low, high))
        found = called(node, aten.where.self, (inside, element, zero))
        if found.meta["val"].dtype != value.dtype:
            found = called(node, aten._to_copy.default, (found,), dtype=value.dtype)
    if _shape(found) != _shape(node):
        with node.graph.inserting_before(node):
            found = called(node, aten.expand.default, (found, list(_shape(node))))
    node.replace_all_uses_with(found)
