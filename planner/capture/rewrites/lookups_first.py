"""Lookups of what was computed element by element: the lookup first, the computation after it.

A kernel reads by index only what lies in memory. Of `f(x)[i]` the whole of f(x) would be computed
and stored before it is read; `f(x[i])` is the same numbers, and one kernel. An image that is
enlarged by its nearest pixels, and an embedding whose table is stored in few bits, are such
lookups.

The rule: lookup(f(a, b, ...), i) = f(lookup(a, i), lookup(b, i), ...), where f works on each
element alone, and nothing else reads its result or it only casts to a wider type: each corner of an
image that is enlarged between its pixels reads the 16 bits themselves.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import fx

from ..capture import is_dynamic
from ..fx_nodes import CASTS, called, is_pointwise, of_pass, value_of
from ..on_a_copy import rewritten_copy

__all__ = ["lookups_first"]

aten = torch.ops.aten

_LOOKUPS = {
    aten.index.Tensor: 0,
    aten._unsafe_index.Tensor: 0,
    aten.index_select.default: 0,
    aten.gather.default: 0,
    aten.embedding.default: 0,
}
"""The place of what is read among the arguments of a lookup."""


_LARGEST = 8
"""Times the elements of the source that a result may have: the operations before the lookup are
then done so often, in a kernel that waits for memory. A cast may be done as often as it likes."""


def lookups_first(gm: fx.GraphModule) -> fx.GraphModule:
    """The functional FX graph with such lookups first, or `gm` itself where there are none. `gm` is
    left as it is; names and metadata are kept. A graph whose sizes vary stays as it is."""
    if is_dynamic(gm) or not any(map(_is_late, gm.graph.nodes)):
        return gm

    def change(graph: fx.Graph) -> bool:
        pending = list(filter(_is_late, graph.nodes))
        while pending:
            pending += filter(_is_late, _moved(pending.pop()))
        return True

    return rewritten_copy(gm, change, "lookups stay where they are")


def _is_late(node: fx.Node) -> bool:
    """Whether a node looks up what operations on single elements have computed for it alone."""
    if node.target not in _LOOKUPS:
        return False
    source: Any = node.args[_LOOKUPS[node.target]]
    value, result = value_of(source), value_of(node)
    if value is None or result is None or not value.dim():
        return False
    few = len(source.users) == 1 and result.numel() <= _LARGEST * value.numel()
    indices = pytree.tree_leaves((node.args[1:], node.kwargs))
    if source in indices or not (few or _is_widening(source)):
        return False
    tensors = [value_of(n) for n in source.all_input_nodes]
    return _is_elementwise(source) and bool(tensors) and None not in tensors


def _is_elementwise(node: fx.Node) -> bool:
    target: Any = node.target
    if target in CASTS:
        return node.kwargs.keys() <= {"dtype"}
    if not is_pointwise(node) or target._schema.is_mutable:
        return False
    return torch.Tag.nondeterministic_seeded not in target.tags


def _is_widening(node: fx.Node) -> bool:
    """Whether a node casts to a type of more bytes: done twice, it costs less than it stores."""
    value, given = value_of(node), [value_of(n) for n in node.all_input_nodes]
    if node.target not in CASTS or value is None or None in given:
        return False
    return [x.itemsize < value.itemsize for x in given if x is not None] == [True]


def _moved(node: fx.Node) -> list[fx.Node]:
    """The lookups of the operands, which stand in place of that of the result."""
    source: Any = node.args[0]
    shape = value_of(source).shape
    made: dict[fx.Node, fx.Node] = {}
    with node.graph.inserting_before(node):
        for operand in source.all_input_nodes:
            value = value_of(operand)
            if math.prod(value.shape) == 1 and value.dim() == 0:
                made[operand] = operand  # one number for all
                continue
            wide = operand
            if value.shape != shape:
                wide = called(operand, aten.expand.default, (operand, list(shape)))
                of_pass(wide, node)
            made[operand] = called(node, node.target, (wide, *node.args[1:]), **node.kwargs)
        args, named = fx.map_arg((source.args, source.kwargs), made.__getitem__)
        result = of_pass(called(source, source.target, args, **named), node)
    result.meta["val"] = _strided_as(result.meta["val"], value_of(node))
    node.replace_all_uses_with(result)
    for dead in (node, source):
        if not dead.users:
            node.graph.erase_node(dead)
    return [n for n in made.values() if n.target is node.target]


def _strided_as(value: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """The fake value; a result whose strides differ from those that were promised is refused."""
    if value.stride() != before.stride() or value.dtype != before.dtype:
        raise ValueError(f"a lookup of strides {before.stride()} would have {value.stride()}")
    return value
