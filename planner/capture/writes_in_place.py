"""Writes of a graph into its inputs: in place, or as copies at its end.

AOTAutograd makes a graph functional: a write becomes an operation that gives a whole new tensor,
which `copy_` brings back into the input at the end. For a row of a cache that is two copies of all
of the cache. Where a write by an index is all that reads the tensor as it was before, it is done in
place here, and the copy falls away. What is left are updates: values that replace inputs when all
else has run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor

from ..graph.ops import OPS, View

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Update:
    """The new value of an input that the graph writes to. place: the input's, among the inputs.
    value: an operation on it in place, or where `is_copied` what is to be copied into it at the
    end."""

    place: int
    value: fx.Node
    is_copied: bool


def keeps_writes(inputs: Any) -> bool:
    """Whether AOTAutograd is to leave writes into the inputs to the graph: not where sizes vary. It
    never does for an input that requires a gradient. What the graph does not write it copies back
    itself, by one launch for each input."""
    return not any(_varies(x) for x in inputs)


def _varies(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return any(isinstance(n, torch.SymInt) for n in (*value.shape, *value.stride()))
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


def written_in_place(graph: fx.Graph) -> tuple[Update, ...]:
    """Takes the copies into inputs out of a graph, and gives what they copied. The graph is changed
    so that an update that is not copied is done in place."""
    places = {n: i for i, n in enumerate(n for n in graph.nodes if n.op == "placeholder")}
    copies = [n for n in graph.nodes if _is_last_write(n)]
    found: dict[fx.Node, Update] = {}
    for copy in copies:
        target, value = copy.args[:2]
        graph.erase_node(copy)
        value = _copied(graph, value, found)
        found.pop(target, None)  # Only the last one counts.
        writes = _writes(graph, target, value)
        if writes:
            for write in writes:
                write.target = aten.index_put_.default
            found[target] = Update(places[target], value, False)
        else:
            found[target] = Update(places[target], value, True)
    return tuple(_apart(graph, found))


def _copied(graph: fx.Graph, value: Any, found: dict[fx.Node, Update]) -> fx.Node:
    """What a value is that is copied into an input: of a copy that nobody else reads its source.
    found: the updates so far, which may have the same copy."""
    assert isinstance(value, fx.Node)
    while value.target is aten.clone.default and not value.users:
        copy, value = value, value.args[0]
        assert isinstance(value, fx.Node)
        for target, update in found.items():
            if update.value is copy:
                found[target] = replace(update, value=value)
        graph.erase_node(copy)
    return value


def _is_last_write(node: fx.Node) -> bool:
    """Whether this is a copy into an input that nobody reads after it."""
    if node.target is not aten.copy_.default or node.users or len(node.args) < 2:
        return False
    target, value = node.args[:2]
    if not isinstance(target, fx.Node) or not isinstance(value, fx.Node):
        return False
    later = (n for n in target.users if n is not node and node < n)
    return target.op == "placeholder" and all(_is_last_write(n) for n in later)


def _writes(graph: fx.Graph, target: fx.Node, value: fx.Node) -> list[fx.Node]:
    """The operations, first to last, that make the value of the input, where all of them may be
    done in place; else none. Each tensor between them, and the input itself, must be read by the
    next of them alone: so no reader of what was there before can come too late. The value itself
    may be read by anyone but the caller, whose result must have memory of its own."""
    found: list[fx.Node] = []
    at = value
    while at is not target:
        if at.target is not aten.index_put.default or not _may_be_in_place(at, last=at is value):
            return []
        found.insert(0, at)
        at = at.args[0]  # type: ignore[assignment]
    tensor = target.meta.get("val")
    if not isinstance(tensor, torch.Tensor) or torch._debug_has_internal_overlap(tensor) == 1:
        return []
    is_read = [user for user in target.users if user not in found[:1]]
    return [] if is_read or _is_given_out(graph, value) else found


def _may_be_in_place(node: fx.Node, last: bool) -> bool:
    """Whether an operation may write into its first operand, of which nothing else of it is made;
    and twice is as once, for a tune runs a graph again and again."""
    source, operands = node.args[0], list[Any]()
    fx.map_arg((node.args, node.kwargs), operands.append)
    if not isinstance(source, fx.Node) or operands.count(source) != 1:
        return False
    if {*node.args[3:], *node.kwargs.values()} - {False} or not (last or len(node.users) == 1):
        return False
    before, after = source.meta.get("val"), node.meta.get("val")
    if not isinstance(before, FakeTensor) or not isinstance(after, FakeTensor):
        return False
    # Readers were traced with the strides of a copy.
    return before.stride() == after.stride() and before.dtype == after.dtype


def _is_given_out(graph: fx.Graph, value: fx.Node) -> bool:
    """Whether a result of the graph may be this tensor, or a view of it."""
    pending, seen = [value], {value}
    while pending:
        for user in pending.pop().users:
            if user.op == "output":
                return True
            if user not in seen and _may_be_view(user):
                seen.add(user)
                pending.append(user)
    return False


def _may_be_view(node: fx.Node) -> bool:
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return True
    return any(r.alias_info is not None for r in target._schema.returns) or isinstance(
        OPS.get(str(target)), View
    )


def _apart(graph: fx.Graph, found: dict[fx.Node, Update]) -> Iterator[Update]:
    """The updates; a value that is a view of memory that another one writes is copied first."""
    last = next(n for n in reversed(graph.nodes) if n.op == "output")
    for update in found.values():
        source = update.value
        while source.op != "placeholder" and source.all_input_nodes and _may_be_view(source):
            source = source.all_input_nodes[0]
        if not update.is_copied or source not in found:
            yield update
            continue
        with graph.inserting_before(last):
            value = graph.call_function(aten.clone.default, (update.value,))
        value.meta.update(update.value.meta)
        yield Update(update.place, value, True)
