"""Reads and writes in a Dynamo graph at a place that a tensor of one number names, as
`cache[:, :, position] = keys`.

Python asks such a tensor for its number, so that the place is a view. AOTAutograd knows no numbers
and gives the whole graph up. `aten.index` and `aten.index_put_` take the tensor itself; what a read
gives then is a copy. So a read is left alone where a copy can be told from a view: where it is
returned, or where it or its source is written to while it is in use.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import takewhile
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

from .dynamo_writes import written_by
from .on_a_copy import dynamo_copy

log = logging.getLogger(__name__)

aten = torch.ops.aten

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8)

_ALL = slice(None, None, None)


def elements_indexed(gm: fx.GraphModule) -> fx.GraphModule:
    """The Dynamo graph with such reads and writes by index, or `gm` itself where there is none.
    `gm` is left as it is."""
    if not isinstance(gm, fx.GraphModule):  # AOTAutograd takes any module
        return gm
    try:
        chosen = [n for n in gm.graph.nodes if names_an_element(n) and _is_told_by_values(n)]
        return _rewritten(gm, chosen) if chosen else gm
    except Exception:  # whatever the user's operations raise, the model must run
        log.debug("indices stay as they are", exc_info=True)
        return gm


def _items(node: fx.Node) -> tuple[Any, ...]:
    given = node.args[1]
    return given if isinstance(given, tuple) else (given,)


def _of(node: fx.Node) -> fx.Node:
    """What is read from, or written into."""
    source = node.args[0]
    assert isinstance(source, fx.Node)
    return source


def _value(node: Any) -> Any:
    """The example value of a node, or the number itself."""
    return node.meta.get("example_value") if isinstance(node, fx.Node) else node


def _is_element(item: Any) -> bool:
    """Whether an item is a tensor of one integer, which takes one dimension away."""
    value = _value(item)
    return isinstance(value, torch.Tensor) and value.dim() == 0 and value.dtype in _INTEGERS


def names_an_element(node: fx.Node) -> bool:
    """Whether it reads or writes so: the other items are slices, whole numbers, None and "..."."""
    if node.op != "call_function" or node.target not in (operator.getitem, operator.setitem):
        return False
    if not isinstance(_value(node.args[0]), torch.Tensor):
        return False
    items = _items(node)
    return any(map(_is_element, items)) and all(_is_element(i) or _is_basic(i) for i in items)


def _is_basic(item: Any) -> bool:
    value = _value(item)
    if isinstance(value, bool):
        return False
    return value is None or value is Ellipsis or isinstance(value, (int, slice, torch.SymInt))


# --- whether a copy does ---


def _is_told_by_values(node: fx.Node) -> bool:
    """Whether nothing but the numbers of what is read matters: a copy is as good as a view."""
    if node.target is operator.setitem:
        return True
    memory = _memory(node.args[0])
    views = _views(node)
    order = {n: i for i, n in enumerate(node.graph.nodes)}
    last = max((order[user] for view in views for user in view.users), default=-1)
    for other in node.graph.nodes:
        if order[other] <= order[node] or order[other] > last:
            continue
        if other.op == "output" and any(n in views for n in other.all_input_nodes):
            return False
        if any(_memory(n) == memory for n in _written(other)):
            return _is_changed_in_place(node)
    return True


def _views(node: fx.Node) -> set[fx.Node]:
    """The node, and what is made of it in the same memory."""
    found, memory = {node}, _memory(node)
    for other in node.graph.nodes:
        if _memory(other) == memory and any(n in found for n in other.all_input_nodes):
            found.add(other)
    return found


def _memory(node: Any) -> int | None:
    value = _value(node)
    return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else None


def _is_changed_in_place(node: fx.Node) -> bool:
    """Whether it is read for `x[i] += y`: changed once, at once, and written back to where it was
    read."""
    (source, items), users = node.args, list(node.users)
    if len(users) != 1 or node not in _written(users[0]):
        return False
    change = users[0]
    back = list(change.users)
    if len(back) != 1 or back[0].target is not operator.setitem or back[0].args[2] is not change:
        return False
    between = list(takewhile(lambda n: n is not back[0], _following(node)))
    memory = _memory(source)
    touched = [n for n in between if memory in map(_memory, n.all_input_nodes)]
    if any(memory in map(_memory, _written(n)) for n in touched if n is not change):
        return False
    return back[0].args[:2] == (source, items) and touched[-1] is change


def _written(node: fx.Node) -> Sequence[fx.Node]:
    """The operands that may be written to; an operator of Python writes to its first alone."""
    found = written_by(node)
    return found[:1] if getattr(node.target, "__module__", "") == "_operator" else found


def _following(node: fx.Node) -> Iterator[fx.Node]:
    while node.next.op != "root":
        node = node.next
        yield node


# --- by index ---


def _rewritten(gm: fx.GraphModule, chosen: list[fx.Node]) -> fx.GraphModule:
    found, copies = dynamo_copy(gm)
    for node in chosen:
        copy = copies[node]
        with copy.graph.inserting_before(copy):
            if node.target is operator.setitem:
                _write(copy)
            else:
                copy.replace_all_uses_with(_read(copy))
        copy.graph.erase_node(copy)
    found.recompile()
    return found


def _read(node: fx.Node) -> fx.Node:
    items, source = _items(node), _of(node)
    places = _dims(items, _value(source).dim(), in_view=False)
    read = _called(node, aten.index.Tensor, source, _indices(items, places, source))
    rest = tuple(item for item in items if not _is_element(item))
    return read if _is_whole(rest) else _called(node, operator.getitem, read, rest)


def _write(node: fx.Node) -> None:
    """Into the view that the other items give."""
    items, source, written = _items(node), _of(node), node.args[2]
    rest = tuple(_ALL if _is_element(item) else item for item in items)
    view = source if _is_whole(rest) else _called(node, operator.getitem, source, rest)
    places = _dims(items, _value(source).dim(), in_view=True)
    left = _value(view).dim() - sum(map(_is_element, items))
    indices = _indices(items, places, source)
    _called(node, aten.index_put_.default, view, indices, _taken(node, written, source, left))


def _taken(node: fx.Node, written: Any, source: fx.Node, dims: int) -> fx.Node:
    """What is written, as a tensor of the source's type of at most so many dimensions."""
    into = _value(source)
    if not isinstance(_value(written), torch.Tensor):
        return _called(node, aten.new_full.default, source, (), written)
    if _value(written).dtype != into.dtype:
        written = _called(node, aten.to.dtype, written, into.dtype)
    while _value(written).dim() > dims and _value(written).shape[0] == 1:
        written = _called(node, aten.squeeze.dim, written, 0)
    assert isinstance(written, fx.Node)
    return written


def _is_whole(items: tuple[Any, ...]) -> bool:
    """Whether they stand for all that there is."""
    return all(not isinstance(i, fx.Node) and (i is Ellipsis or i == _ALL) for i in items)


def _indices(items: tuple[Any, ...], places: list[int], source: fx.Node) -> list[fx.Node | None]:
    """The tensors, each at its dimension."""
    found: dict[int, fx.Node] = {}
    for item, place in zip(items, places, strict=True):
        if not _is_element(item):
            continue
        device = _value(source).device
        if _value(item).device != device:
            item = _called(item, aten.to.device, item, device, torch.int64)
        elif _value(item).itemsize < 4:  # which aten.index does not take
            item = _called(item, aten.to.dtype, item, torch.int64)
        found[place] = item
    return [found.get(place) for place in range(max(found) + 1)]


def _dims(items: tuple[Any, ...], dims: int, *, in_view: bool) -> list[int]:
    """The dimension at which each item stands: of the source, or of the view that the items other
    than elements give."""
    left = dims - sum(item is not None and item is not Ellipsis for item in items)
    found, at = [], 0
    for item in items:
        found.append(at)
        if item is Ellipsis:
            at += left
        elif item is None:
            at += in_view
        else:
            at += not in_view or _is_element(item) or isinstance(item, slice)
    return found


def _called(beside: fx.Node, target: Any, *args: Any, **named: Any) -> fx.Node:
    """A new call at the graph's point of insertion, with a value of its own."""
    made = beside.graph.call_function(target, args, named)
    made.meta = {k: v for k, v in beside.meta.items() if k != "example_value"}
    values, more = fx.map_arg((args, named), lambda n: n.meta["example_value"])
    fakes = [v.fake_mode for v in tree_leaves(values) if isinstance(v, FakeTensor)]
    with fakes[0] if fakes else nullcontext():
        made.meta["example_value"] = target(*values, **more)
    return made
