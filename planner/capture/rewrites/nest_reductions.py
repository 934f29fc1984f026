"""Reductions in two steps: first over the axes of a reduction inside them, then over the rest.

The mean of a batch of losses, each from a softmax over its own row, is captured as one sum over
rows and columns of values that need the row's maximum and sum. No kernel divides such a sum among
programs: a program would need whole rows for one sum and all rows for the other. As a sum over
columns and a sum over rows, the first belongs to the kernel of the softmax, which then stores one
number a row and not the whole matrix.

The rule: reduce(x, D) = reduce(reduce(x, S), D), where x is computed from values that are constant
along S, a proper part of D, and come from a reduction. It holds for sums and extrema; a sum of 16
bits stays in float32 between the steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from ..capture import is_dynamic
from ..fx_nodes import CAST, called, value_of
from ..on_a_copy import rewritten_copy

__all__ = ["nest_reductions"]

aten = torch.ops.aten

_SPLIT = (aten.sum.dim_IntList, aten.amax.default, aten.amin.default)

_REDUCTIONS = (
    *_SPLIT,
    aten.any.dim,
    aten.any.dims,
    aten.argmax.default,
    aten.argmin.default,
    aten.max.dim,
    aten.min.dim,
    aten.prod.dim_int,
)
"""Operations that give fewer elements than they read."""

_NARROW = (torch.float16, torch.bfloat16)


def nest_reductions(gm: fx.GraphModule) -> fx.GraphModule:
    """The functional FX graph with such reductions in two steps, or `gm` itself where there are
    none. `gm` is left as it is; names and metadata are kept. A graph whose sizes vary stays as it
    is."""
    if is_dynamic(gm) or not any(n.target in _SPLIT for n in gm.graph.nodes):
        return gm

    def change(graph: fx.Graph) -> bool:
        changed = [_nest(node) for node in list(graph.nodes) if node.target in _SPLIT]
        return any(changed)

    return rewritten_copy(gm, change, "reductions stay in one step")


def _nest(node: fx.Node) -> bool:
    """Divide a reduction, if the rule holds for it."""
    source: Any = node.args[0]
    first = _first_axes(node)
    if not first or node.kwargs.get("dtype") in _NARROW:
        return False
    is_sum = node.target is aten.sum.dim_IntList
    widens = is_sum and "dtype" not in node.kwargs and value_of(source).dtype in _NARROW
    named = {"dtype": torch.float32} if widens else dict(node.kwargs)
    with node.graph.inserting_before(node):
        inner = called(node, node.target, (source, first, True), **named)
        result = called(node, node.target, (inner, *node.args[1:]), **({} if widens else named))
        if widens:
            result = called(node, CAST, (result, value_of(node).dtype))
    node.replace_all_uses_with(result)
    node.graph.erase_node(node)
    return True


def _first_axes(node: fx.Node) -> list[int]:
    """The axes to reduce over first; none where one step is right."""
    source: Any = node.args[0]
    value = value_of(source)
    if value is None or not value.numel() or not value.dim():
        return []
    given: Any = (node.args[1] if len(node.args) > 1 else None) or ()
    axes = {d % value.dim() for d in given} or set(range(value.dim()))
    axes = {d for d in axes if value.shape[d] > 1}
    # What is one number along all the axes is ready before either step.
    first = set().union(*(along for along in _constant_along(source) if not along >= axes))
    return sorted(first) if first < axes else []


def _constant_along(source: fx.Node) -> Iterator[set[int]]:
    """For each value that is broadcast into the computation of `source` and comes from a
    reduction: the axes of `source` along which it is constant."""
    shape = value_of(source).shape
    seen, pending = {source}, [source]
    while pending:
        node = pending.pop()
        if not _is_elementwise(node):
            continue
        for operand in node.all_input_nodes:
            value = value_of(operand)
            if operand in seen or value is None:
                continue
            seen.add(operand)
            if value.shape == shape:
                pending.append(operand)
            elif value.numel() < shape.numel() and _is_reduced(operand, shape.numel()):
                padded = (1,) * (len(shape) - value.dim()) + tuple(value.shape)
                yield {d for d, n in enumerate(shape) if n > 1 and padded[d] == 1}


def _is_reduced(node: fx.Node, elements: int) -> bool:
    """Whether a value is computed, element by element, from a reduction of so many elements."""
    seen, pending = {node}, [node]
    while pending:
        node = pending.pop()
        if node.target in _REDUCTIONS:
            if value_of(node.args[0]).numel() == elements:
                return True
        elif _is_elementwise(node) or _is_view(node):
            new = [n for n in node.all_input_nodes if n not in seen and value_of(n) is not None]
            seen.update(new)
            pending.extend(new)
    return False


def _is_elementwise(node: fx.Node) -> bool:
    """Whether each element of the result is computed from one element of each operand."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    plain = (aten._to_copy.default, aten.clone.default, aten.expand.default, CAST)
    return node.target in plain or torch.Tag.pointwise in node.target.tags


def _is_view(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target.is_view
