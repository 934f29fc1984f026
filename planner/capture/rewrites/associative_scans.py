"""Scans by a function of the user's (`torch.associative_scan`) as operations of the graph.

torch has one node for all results of such a scan, with the function as a graph beside it, which no
kernel of ours could hold. Where it does the same to every element, each result becomes a call of
`fusionplan::associative_scan`, which names the function by the text of its graph.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from ...graph.graph import Graph
from ...graph.ops import Cast, Constant, Pointwise, is_input, row
from ..capture import capture, is_dynamic
from ..decompositions.decompose import decompositions
from ..fx_nodes import called
from ..on_a_copy import rewritten_copy

__all__ = ["associative_scans"]


def associative_scans(gm: fx.GraphModule) -> fx.GraphModule:
    """The functional FX graph with such scans as operations, or `gm` itself where there are none.
    `gm` is left as it is; names and metadata are kept. A graph whose sizes vary stays as it is."""
    if not any(True for _ in _scans(gm.graph)) or is_dynamic(gm):
        return gm

    def change(graph: fx.Graph) -> bool:
        for node in list(_scans(graph)):
            text = _combine(gm, node)
            if text:
                _open(graph, node, text)
        graph.eliminate_dead_code()
        return True

    return rewritten_copy(gm, change, "scans of the user's stay as they are")


def _scans(graph: fx.Graph) -> Iterator[fx.Node]:
    kind = getattr(torch.ops.higher_order, "associative_scan", None)
    for node in graph.nodes:
        if kind is None or node.target is not kind or node.args[2]:
            continue
        if all(user.target is operator.getitem for user in node.users):
            yield node


def _combine(gm: fx.GraphModule, node: fx.Node) -> str:
    """The text of the graph by which a scan combines two elements of each of its operands; "" where
    a kernel has no such function."""
    function, xs = node.args[:2]
    assert isinstance(function, fx.Node)
    assert isinstance(xs, (list, tuple))
    given: list[Any] = [x.meta["val"] for x in xs if isinstance(x, fx.Node)]
    combine = operator.attrgetter(str(function.target))(gm)
    with given[0].fake_mode:
        elements = [x.new_empty(()) for x in (*given, *given)]
        traced = make_fx(combine, decomposition_table=decompositions())(*elements)
    graph = capture(traced).graph
    return str(graph) if _is_elementwise(graph, [str(x.dtype) for x in given]) else ""


def _is_elementwise(graph: Graph, dtypes: list[str]) -> bool:
    kinds = (Pointwise, Cast, Constant)
    if not all(is_input(n) or isinstance(row(n), kinds) for n in graph.nodes):
        return False
    results = [None if o is None else graph.nodes[o].type for o in graph.outputs]
    return [f"torch.{t.dtype}" for t in results if t is not None] == dtypes


def _open(graph: fx.Graph, node: fx.Node, combine: str) -> None:
    for item in list(node.users):
        place = item.args[1]
        with graph.inserting_before(item):
            scan = torch.ops.fusionplan.associative_scan.default
            made = called(item, scan, (list(node.args[1]), combine, place))  # type: ignore[arg-type]
        item.replace_all_uses_with(made)
