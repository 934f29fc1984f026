"""Graphs whose sizes vary, and what two of them share.

Plans are kept by *bucket*: the graph with its varying numbers as they are at the probes, and of
the sizes of its inputs what `sizes.bucket` says. A plan made at some sizes of a bucket is meant
for all of them. A plan that says how its groups run at any sizes is kept by *family*: the graph
with its numbers at the probes alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from ..memo import by_identity
from . import sizes
from .graph import INPUT, Graph, Node, TensorType, canonical, digest, to_json
from .sizes import Size


def mapped(graph: Graph, number: Callable[[Size], Any]) -> Graph:
    """The graph with something else for every integer that varies."""

    def of(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(of, value))
        return number(value) if isinstance(value, Size) else value

    nodes = []
    for node in graph.nodes:
        kind = node.type
        if kind is not None:
            kind = TensorType(of(kind.shape), of(kind.stride), kind.dtype)
        kwargs = tuple((k, of(v)) for k, v in node.kwargs)
        nodes.append(replace(node, args=of(node.args), kwargs=kwargs, type=kind))
    return Graph(tuple(nodes), graph.outputs, graph.numerics)


@by_identity(64)
def of_any_sizes(graph: Graph) -> Graph:
    """The graph as if nothing were known to divide its varying numbers: the kernels of it are those
    of all sizes."""
    return mapped(graph, lambda number: Size(int(number), number.probes))


def _bases(graph: Graph) -> tuple[Size, ...]:
    types = [n.type for n in graph.nodes if n.op == INPUT and n.type is not None]
    return sizes.bases(n for t in types for n in t.shape)


def is_varying(graph: Graph) -> bool:
    """Whether some number of the graph varies."""
    return any(sizes.varies(n) for node in graph.nodes for n in _numbers(node))


def _numbers(node: Node) -> Iterator[Any]:
    stack: list[Any] = [*node.args, *(v for _, v in node.kwargs)]
    if node.type is not None:
        stack += [node.type.shape, node.type.stride]
    while stack:
        value = stack.pop()
        if isinstance(value, tuple):
            stack += value
        else:
            yield value


def bucket_key(graph: Graph) -> str | None:
    """Content digest that graphs of one bucket share; None of a graph of which nothing varies."""
    if not is_varying(graph):
        return None
    return digest([_at_probes(graph), sizes.bucket(_bases(graph))])


def family_key(graph: Graph) -> str | None:
    """Content digest that a graph shares with all that differ from it in sizes alone; None of a
    graph of which nothing varies."""
    if not is_varying(graph):
        return None
    return digest([_at_probes(graph), "all sizes"])


def _at_probes(graph: Graph) -> Any:
    return to_json(canonical(graph), lambda number: {"varies": list(number.probes)})


def sizes_of(graph: Graph) -> tuple[int, ...]:
    """The sizes of the inputs that vary and from which the others follow, in an order that graphs
    of one family share."""
    return tuple(int(base) for base in _bases(graph))


def bucket_name(graph: Graph) -> str:
    """The bucket in words: `up to 4096 (a multiple of 16), up to 128`."""
    found = sizes.bucket(_bases(graph))
    return ", ".join(f"up to {n}" + " (a multiple of 16)" * aligned for n, aligned in found)
