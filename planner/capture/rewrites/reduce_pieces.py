"""Reductions of rows to which a few elements were joined: those of both pieces, combined.

A model with attention sinks puts a learned score behind the scores of all keys, and drops its
weight after the softmax. The joined rows are no tile of a product's kernel. But their maximum is
the larger of two maxima and their sum the sum of two, so that the scores stay in the kernel that
computes them, and the sink is one number for each row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import fx

from ..capture import is_dynamic
from ..fx_nodes import CASTS, called, is_pointwise, value_of
from ..on_a_copy import rewritten_copy

__all__ = ["reduce_pieces"]

aten = torch.ops.aten

_COMBINED = {aten.amax.default: aten.maximum.default, aten.sum.dim_IntList: aten.add.Tensor}

_FEW = 8
"""Elements that the narrow piece has at most."""

_MANY = 64
"""Elements that the wide piece has at least."""


class _Joined(NamedTuple):
    """A concatenation of two along the last dimension, and what is computed of it element by
    element, reduced or cut off again, in order."""

    node: fx.Node
    readers: tuple[fx.Node, ...]


def reduce_pieces(gm: fx.GraphModule) -> fx.GraphModule:
    """The functional FX graph with such reductions of pieces, or `gm` itself where there are none.
    `gm` is left as it is. A graph whose sizes vary stays as it is."""
    if is_dynamic(gm) or not any(n.target is aten.cat.default for n in gm.graph.nodes):
        return gm

    def change(graph: fx.Graph) -> bool:
        graph.eliminate_dead_code()  # places of maxima that nobody reads
        joined = [found for node in graph.nodes if (found := _joined(node)) is not None]
        for each in joined:
            _split(each)
        graph.eliminate_dead_code()
        return bool(joined)

    return rewritten_copy(gm, change, "joined rows are reduced as they are")


def _pieces(node: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """Both pieces of such a concatenation: one of many columns, one of few."""
    if node.target is not aten.cat.default or not isinstance(value_of(node), torch.Tensor):
        return None
    parts, dim = node.args[0], node.args[1] if len(node.args) > 1 else 0
    if not isinstance(parts, (list, tuple)) or len(parts) != 2 or not isinstance(dim, int):
        return None
    first, second = parts
    if not isinstance(first, fx.Node) or not isinstance(second, fx.Node):
        return None
    whole, values = value_of(node), [value_of(part) for part in (first, second)]
    widths = sorted(value.shape[-1] for value in values)
    is_last = dim % whole.dim() == whole.dim() - 1
    alike = len({value.dtype for value in values}) == 1
    return (
        (first, second) if is_last and alike and widths[0] <= _FEW and widths[1] >= _MANY else None
    )


def _joined(node: fx.Node) -> _Joined | None:
    """A concatenation that is split, if all that reads it can be."""
    pieces = _pieces(node)
    if pieces is None:
        return None
    whole, readers, reduced = {node}, list[fx.Node](), False
    for each in _following(node):
        if whole.isdisjoint(each.all_input_nodes):
            continue
        readers.append(each)
        if each.target in _COMBINED and _is_of_rows(each):
            reduced = True
        elif each.target is aten.slice.Tensor:
            if _cut(each, pieces) is None:
                return None
        elif _is_elementwise(each, node, whole):
            whole.add(each)
        else:
            return None
    return _Joined(node, tuple(readers)) if reduced else None


def _following(node: fx.Node) -> Iterator[fx.Node]:
    while node.next.op != "root":
        node = node.next
        yield node


def _is_of_rows(node: fx.Node) -> bool:
    """Whether a reduction is over the last dimension alone."""
    dims, shape = (node.args[1] if len(node.args) > 1 else None), value_of(node.args[0]).shape
    return isinstance(dims, (list, tuple)) and [d % len(shape) for d in dims] == [len(shape) - 1]


def _is_elementwise(node: fx.Node, joined: fx.Node, whole: set[fx.Node]) -> bool:
    """Whether an operation computes each element of joined rows by itself: of its other operands
    each has one number for a row."""
    found = value_of(node)
    if not (is_pointwise(node) or node.target in CASTS) or not isinstance(found, torch.Tensor):
        return False
    if found.shape != value_of(joined).shape:
        return False
    others = (value_of(n) for n in node.all_input_nodes if n not in whole)
    return all(not other.dim() or other.shape[-1] == 1 for other in others)


def _cut(node: fx.Node, pieces: tuple[fx.Node, fx.Node]) -> int | None:
    """Which piece a slice shows; None where it shows another part."""
    source = value_of(node.args[0])
    given = [*node.args[1:], *(0, 0, None, 1)[len(node.args) - 1 :]]
    dim, start, end, step = given[:4]
    if node.kwargs or dim % source.dim() != source.dim() - 1 or step != 1:
        return None
    shown = slice(start, end).indices(source.shape[-1])[:2]
    first, whole = value_of(pieces[0]).shape[-1], source.shape[-1]
    return {(0, first): 0, (first, whole): 1}.get(shown)


def _split(joined: _Joined) -> None:
    pieces = _pieces(joined.node)
    assert pieces is not None
    parts: dict[fx.Node, tuple[fx.Node, ...]] = {joined.node: pieces}
    for node in joined.readers:
        if node.target is aten.slice.Tensor:
            which = _cut(node, pieces)
            assert which is not None
            assert isinstance(node.args[0], fx.Node)
            node.replace_all_uses_with(parts[node.args[0]][which])
            continue
        with node.graph.inserting_before(node):
            made = tuple(_of_piece(node, parts, which) for which in range(2))
            if node.target not in _COMBINED:
                parts[node] = made
                continue
            node.replace_all_uses_with(called(node, _COMBINED[node.target], made))


def _of_piece(node: fx.Node, parts: dict[fx.Node, tuple[fx.Node, ...]], which: int) -> fx.Node:
    def own(source: fx.Node) -> Any:
        return parts[source][which] if source in parts else source

    args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), own)
    return called(node, node.target, args, **kwargs)
