"""Common subexpression elimination: of equal operations on equal operands only the first stays.

torch has such a rewrite (`fx_graph_cse`), but calling it imports much of Inductor, which a process
that only runs stored plans never needs.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.multiprocessing.reductions import StorageWeakRef

from ..collectives import process_group

aten = torch.ops.aten


def drop_duplicates(graph: fx.Graph) -> None:
    """Changes an FX graph with fake values in its metadata. Random operations stay apart, and so
    do results: what the caller gets as two tensors is two."""
    kept = _storages(graph.output_node().all_input_nodes)
    first: dict[Any, fx.Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if _is_mutable(node.target):
            first.clear()  # What is read behind it may have changed.
        elif _is_repeatable(node) and kept.isdisjoint(_storages([node])):
            same = first.setdefault(_content(node), node)
            if same is not node:
                node.replace_all_uses_with(same)
                graph.erase_node(node)


def _content(node: fx.Node) -> Any:
    return node.target, _frozen(node.args), _frozen(node.kwargs)


def _frozen(value: Any) -> Any:
    """Arguments as what can be looked up; 1, 1.0 and True differ, and so do 0.0 and -0.0."""
    match value:
        case dict():
            return tuple((name, _frozen(each)) for name, each in sorted(value.items()))
        case list() | tuple():
            return tuple(map(_frozen, value))
        case slice():
            return slice, _frozen((value.start, value.stop, value.step))
        case fx.Node():
            return value
    return type(value), repr(value)


def _is_mutable(target: Any) -> bool:
    return isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable


def _is_repeatable(node: fx.Node) -> bool:
    """Whether the operation gives the same each time; memory that nobody has written is not. What
    all ranks of a process group do stays as often as the others do it."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return target is operator.getitem
    return (
        process_group(node) is None
        and target._overloadpacket is not aten.empty
        and torch.Tag.nondeterministic_seeded not in target.tags
    )


def _storages(nodes: list[fx.Node]) -> set[StorageWeakRef]:
    values = (node.meta.get("val") for node in nodes)
    plain = (v for v in values if isinstance(v, FakeTensor) and v.layout is torch.strided)
    storages = (v.untyped_storage() for v in plain)
    return {StorageWeakRef(s) for s in storages}  # type: ignore[no-untyped-call]
