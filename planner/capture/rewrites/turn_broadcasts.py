"""Small tensors of which many elements are computed, and that are read across their order.

A bias for pairs of positions and heads is often looked up as [queries, keys, heads] and read as
[heads, queries, keys], by every layer and for every sequence: neighbouring elements of a row lie a
stride apart, and each read of 2 bytes moves 32. The tensor is copied once into the order in which
it is read; that copy is part of the kernel that computes it, where there is one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from ..capture import is_dynamic
from ..fx_nodes import called, is_pointwise, value_of
from ..on_a_copy import rewritten_copy

__all__ = ["turn_broadcasts"]

aten = torch.ops.aten

_VIEWS = (
    aten.expand.default,
    aten.slice.Tensor,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.unsqueeze.default,
    aten.view.default,
)

_TIMES = 8
"""How often each element is to be read at least: a copy reads and writes it once."""

_READ = 1 << 20
"""Elements that are to be read at least: the copy may be a launch."""

_SIDE_BY_SIDE = 16
"""Elements of the last axis that are to be there at least."""

_Path = tuple[fx.Node, ...]


def turn_broadcasts(gm: fx.GraphModule) -> fx.GraphModule:
    """The functional FX graph with copies of such tensors, or `gm` itself where there are none.
    `gm` is left as it is; names and metadata are kept. A graph whose sizes vary stays as it is."""
    if is_dynamic(gm) or not any(map(_is_apart, gm.graph.nodes)):
        return gm
    return rewritten_copy(gm, _turn, "tensors stay in the order in which they are made")


def _turn(graph: fx.Graph) -> bool:
    changed = False
    for node in list(graph.nodes):
        if not _is_apart(node):
            continue
        readers = list(_readers(node, ()))
        read = sum(value_of(reader).numel() for reader, _ in readers)
        if read >= max(_READ, _TIMES * value_of(node).numel()):
            changed |= _copied(node, readers)
    return changed


def _is_apart(node: fx.Node) -> bool:
    """Whether neighbours along the last axis of a tensor lie apart."""
    value = value_of(node)
    if value is None or value.dim() < 2 or value.layout is not torch.strided:
        return False
    return bool(value.shape[-1] >= _SIDE_BY_SIDE and value.stride(-1) > 1)


def _readers(node: fx.Node, path: _Path) -> Iterator[tuple[fx.Node, _Path]]:
    """The operations on single elements that read a tensor across its order, each with what lies
    between: views, and operations whose results lie as the tensor does."""
    for user in node.users:
        value = value_of(user)
        if value is None:
            continue
        if user.target in _VIEWS and user.args[0] is node:
            yield from _readers(user, (*path, user))
        elif user.target is aten.clone.default:
            continue  # It tells a product's operand its order.
        elif is_pointwise(user) and value.dim() and value.stride(-1) == 1 and _is_apart(node):
            yield user, path
        elif is_pointwise(user) and _is_apart(user) and node not in user.kwargs.values():
            yield from _readers(user, (*path, user))


def _copied(node: fx.Node, readers: list[tuple[fx.Node, _Path]]) -> bool:
    """Let the readers read a copy. False where none of their results stays as it lies."""
    with node.graph.inserting_after(node):
        turned = called(node, aten.clone.default, (node,), memory_format=torch.contiguous_format)
    made: dict[fx.Node, fx.Node] = {}
    changed = False
    for reader, path in readers:
        before, instead = node, turned
        for each in path:
            if each not in made:
                with node.graph.inserting_before(each):
                    made[each] = called(
                        each, each.target, _with(each, before, instead), **each.kwargs
                    )
            before, instead = each, made[each]
        if value_of(instead).stride(-1) == 1:
            changed |= _replaced(reader, before, instead)
    for unused in (*reversed(made), *reversed(made.values()), turned):
        if not unused.users:
            node.graph.erase_node(unused)
    return changed


def _with(node: fx.Node, before: fx.Node, instead: fx.Node) -> Any:
    """A node's arguments with another node in place of one."""
    return fx.map_arg(node.args, lambda n: instead if n is before else n)


def _replaced(reader: fx.Node, before: fx.Node, instead: fx.Node) -> bool:
    """Let a reader read another node, where its result then lies as it did."""
    own = value_of(reader)
    args, kwargs = fx.map_arg(
        (reader.args, reader.kwargs), lambda n: (instead if n is before else n).meta["val"]
    )
    with own.fake_mode:
        result = reader.target(*args, **kwargs)  # type: ignore[operator]
    if result.stride() != own.stride():
        return False
    reader.replace_input_with(before, instead)
    return True
