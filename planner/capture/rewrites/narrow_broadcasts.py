"""Operations on single elements that give the same along an axis: computed once, then expanded.

A mask of positions is often expanded to all sequences, and the bias that is chosen by it has an
element for each of them, though none differs. A kernel reads and computes such a value once; but
where it is stored between kernels, all its elements are.

The rule: f(expand(a), b, ...) = expand(f(a, b, ...)), where no operand has more than one element
along an axis that f(a, b, ...) then lacks.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ..capture import is_dynamic
from ..fx_nodes import called, is_pointwise, takes_any_strides, value_of
from ..on_a_copy import rewritten_copy

__all__ = ["narrow_broadcasts"]

aten = torch.ops.aten


def narrow_broadcasts(gm: fx.GraphModule) -> fx.GraphModule:
    """The functional FX graph with such operations before the expansion, or `gm` itself where there
    are none. `gm` is left as it is; names and metadata are kept. A graph whose sizes vary stays as
    it is."""
    if is_dynamic(gm) or not any(map(_is_expanded, gm.graph.nodes)):
        return gm
    return rewritten_copy(gm, _narrow, "values stay as wide as they are made")


def _narrow(graph: fx.Graph) -> bool:
    changed = False
    for node in list(graph.nodes):
        operands: list[fx.Node] = node.all_input_nodes
        if _is_elementwise(node) and any(map(_is_expanded, operands)):
            changed |= _narrowed(node, operands)
    return changed


def _is_expanded(node: fx.Node) -> bool:
    return node.target is aten.expand.default and value_of(node) is not None


def _is_elementwise(node: fx.Node) -> bool:
    """Whether a node may be computed on other shapes, and its result lie in any order."""
    if not is_pointwise(node) or node.target is aten.clone.default:
        return False
    target: Any = node.target
    if target._schema.is_mutable or torch.Tag.nondeterministic_seeded in target.tags:
        return False
    return value_of(node) is not None and "memory_format" not in node.kwargs


def _narrowed(node: fx.Node, operands: list[fx.Node]) -> bool:
    """Whether a node is replaced: its operands have one element where it has several alike."""
    sources = {n: _source(n) for n in operands}
    values = [value_of(n) for n in sources.values()]
    shape = value_of(node).shape
    if None in values or _broadcast(values).numel() == shape.numel():
        return False
    if not takes_any_strides(node):
        return False
    args, named = fx.map_arg((node.args, node.kwargs), sources.__getitem__)
    with node.graph.inserting_before(node):
        once = called(node, node.target, args, **named)
        wide = called(node, aten.expand.default, (once, list(shape)))
    node.replace_all_uses_with(wide)
    node.graph.erase_node(node)
    return True


def _source(node: fx.Node) -> fx.Node:
    """What a node is the expansion of."""
    while _is_expanded(node):
        node = node.args[0]  # type: ignore[assignment]
    return node


def _broadcast(values: list[Any]) -> torch.Size:
    shapes = (value.shape for value in values)
    shape: torch.Size = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
    return shape
