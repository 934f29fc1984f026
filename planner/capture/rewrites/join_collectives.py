"""One collective in place of several whose results are added.

The backward pass of a layer that several products read (queries, keys and values) adds their
gradients, each of which is a sum over ranks where weights are spread (tensor parallelism). For f,
the sum or the mean over ranks, f(a) + f(b) = f(a + b): a rank adds its own first, and sends once.
All ranks capture the same code, so that they all do so.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ..collectives import awaited

aten = torch.ops.aten

_LINEAR = ("sum", "avg")
"""What a collective may do with the values of the ranks."""


def join_added_collectives(graph: fx.Graph) -> int:
    """Changes an FX graph with fake values in its metadata; how many collectives are fewer."""
    joined = 0
    for node in list(graph.nodes):
        if node.target is aten.add.Tensor and len(node.args) == 2 and not node.kwargs:
            joined += _join(node)
    return joined


def _join(add: fx.Node) -> bool:
    waits = add.all_input_nodes
    if len(waits) != 2 or any(set(wait.users) != {add} for wait in waits):
        return False
    sums = [awaited(wait) for wait in waits]
    first, second = sums
    if first is None or second is None or not _are_alike(first, second):
        return False
    if any(wait.args[0] is not each for wait, each in zip(waits, sums, strict=True)):
        return False  # One of several results.
    if _type(add) != _type(waits[0]) or _type(waits[0]) != _type(waits[1]):
        return False
    last = second if _is_before(first, second) else first
    graph = add.graph
    with graph.inserting_before(last):
        own = graph.call_function(aten.add.Tensor, (first.args[0], second.args[0]))
        made = graph.node_copy(last, lambda node: own if node is last.args[0] else node)
        wait = graph.node_copy(waits[0], lambda _: made)
    own.meta.update(last.args[0].meta)  # type: ignore[union-attr]
    wait.meta.update(add.meta)
    add.replace_all_uses_with(wait)
    for node in (add, *waits, first, second):
        graph.erase_node(node)
    return True


def _are_alike(first: fx.Node, second: fx.Node) -> bool:
    """Whether two collectives do the same, a sum or a mean, with inputs of one type."""
    inputs = first.args[0], second.args[0]
    if not all(isinstance(each, fx.Node) for each in inputs) or first.target is not second.target:
        return False
    if (first.args[1:], first.kwargs) != (second.args[1:], second.kwargs):
        return False
    names = [each.name for each in first.target._schema.arguments]  # type: ignore[union-attr]
    given: dict[str, Any] = {**dict(zip(names, first.args, strict=False)), **first.kwargs}
    return given.get("reduce_op") in _LINEAR and _type(inputs[0]) == _type(inputs[1])


def _type(node: Any) -> Any:
    """Shape, strides and dtype, as text where sizes are symbolic: a comparison of such would guard
    them."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return None, node
    return str([*value.shape]), str([*value.stride()]), value.dtype


def _is_before(first: fx.Node, second: fx.Node) -> bool:
    return bool(first < second)
