"""Inputs of a graph that a kernel may read before it waits for the kernel before it.

With programmatic dependent launch a kernel begins while the one before it runs, and that one may
itself still wait. So what is read before the wait must be written by no kernel that can be under
way then. The executor launches its first kernel plainly: it begins when all earlier work of the
stream has ended and is seen. So only what a graph itself writes counts: an input that no operation
of the graph writes may be read early, whoever has written it before the graph began.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import torch

from ..graph.graph import Graph, Node, Ref
from ..graph.ops import IndexedWrite, View, bound, is_input, is_item, overload, row
from ..memo import by_identity


def unwritten(graph: Graph) -> frozenset[int]:
    """The inputs of a graph that none of its operations writes, nor a view of them."""
    return frozenset(graph.inputs) - written(graph)


def written(graph: Graph) -> frozenset[int]:
    """The values of a graph that one of its operations writes in place, or whose memory it may
    share with such."""
    return frozenset(writers(graph))


@by_identity(64)
def writers(graph: Graph) -> Mapping[int, frozenset[int]]:
    """By written value the operations that write it."""
    left = [(target, node.id) for node in graph.nodes for target in _targets(node)]
    found: dict[int, set[int]] = {}
    while left:
        target, writer = left.pop()
        if writer not in found.setdefault(target, set()):
            found[target].add(writer)
            left += ((shared, writer) for shared in _shared(graph.nodes[target]))
    return {target: frozenset(by) for target, by in found.items()}


def places(graph: Graph, inputs: Sequence[int], nodes: Collection[int] = ()) -> frozenset[int]:
    """The places of those among these inputs of a group that no operation writes but perhaps some
    of the group, `nodes`: a cache that attention writes a row of is read early, as no other kernel
    is under way that writes it."""
    own, by = frozenset(graph.inputs), writers(graph)
    return frozenset(
        place
        for place, node in enumerate(inputs)
        if node in own and by.get(node, frozenset()).issubset(nodes)
    )


def _targets(node: Node) -> Iterator[int]:
    """The values that an operation writes: of one that does not say, all that it reads."""
    kind = row(node)
    if isinstance(kind, IndexedWrite):
        target = bound(node)[kind.target]
        if isinstance(target, Ref):
            yield target.node
    if is_input(node) or kind is not None:
        return
    try:
        found = overload(node.op)
    except (AttributeError, ValueError, RuntimeError):
        found = None
    if not isinstance(found, torch._ops.OpOverload):
        if not is_item(node):
            yield from node.inputs
        return
    named = dict(node.kwargs)
    for place, argument in enumerate(found._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = node.args[place] if place < len(node.args) else named.get(argument.name)
            parts = given if isinstance(given, tuple) else (given,)
            yield from (part.node for part in parts if isinstance(part, Ref))


def _shared(node: Node) -> tuple[int, ...]:
    """The values whose memory the result may be: a generated operation other than a view has a
    place of its own, of others nothing is known."""
    return node.inputs if row(node) is None or isinstance(row(node), (View, IndexedWrite)) else ()
