"""A Dynamo graph in parts, around the operations that ask a tensor for a number or whose results
have as many elements as the data say.

AOTAutograd gives a whole graph up for one of them, as for `row = x[i]` with a tensor `i` where the
row is written to. Those operations then run as they are, and what lies between them is compiled:
by Dynamo, when it is first called, for only then are the sizes known.
"""

from __future__ import annotations

import logging
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, free_unbacked_symbols
from torch.utils._pytree import tree_leaves

from .element_indices import names_an_element

log = logging.getLogger(__name__)

_ERRORS = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    GuardOnDataDependentSymNode,
)

_CHECKS = (torch.ops.aten._assert_scalar.default, torch.ops.aten._assert_async.msg)
"""Of numbers that come from data; in a function of its own a number would be none of them."""

MOST_PARTS = 32
"""More of them are not worth the launches that they save."""

Backend = Callable[..., Callable[..., Any]]


def in_parts(gm: Any, error: Exception, backend: Backend) -> Callable[..., Any] | None:
    """The graph as a function, each part compiled by `backend`, after AOTAutograd ended in that
    error; None where the error is another one, or the graph cannot be cut."""
    if not isinstance(error, _ERRORS) or not isinstance(gm, fx.GraphModule):
        return None
    asking = [n for n in gm.graph.nodes if _asks_for_data(n) or n.name == _named_by(error)]
    if not asking or not all(map(_may_be_cut, gm.graph.nodes)):
        return None
    parts = _parts(gm.graph, set(asking))
    if len(parts) > MOST_PARTS or not any(part.computes for part in parts):
        return None
    log.info("a graph is cut into %d parts at %s", len(parts), ", ".join(map(str, asking)))
    # Dynamo does not look into modules that are made while it compiles.
    joined = cache(lambda: _joined(gm, parts, backend))

    def run(*inputs: Any) -> Any:
        return joined()(*inputs)

    return run


def _joined(gm: fx.GraphModule, parts: Sequence[_Part], backend: Backend) -> fx.GraphModule:
    held, cut, values = torch.nn.Module(), fx.Graph(), dict[fx.Node, fx.Node]()
    for node in gm.graph.find_nodes(op="placeholder"):
        values[node] = cut.node_copy(node)
    for number, part in enumerate(parts):
        module = part.module(gm)
        if part.computes:
            module.compile(backend=backend)
        held.add_module(f"part{number}", module)
        results = cut.call_module(f"part{number}", tuple(values[n] for n in part.given))
        for place, node in enumerate(part.made):
            values[node] = cut.call_function(operator.getitem, (results, place))
    cut.node_copy(gm.graph.output_node(), values.__getitem__)
    return fx.GraphModule(held, cut)


def _named_by(error: Exception) -> str | None:
    """The node that an interpreter of FX was at."""
    found = re.search(r"While executing %(\w+)", str(error))
    return found[1] if found else None


def _asks_for_data(node: fx.Node) -> bool:
    """Whether its result, or its size, is a number of which no size of an input tells; or whether
    it is read or written where a tensor says, as a view."""
    if names_an_element(node) or node.target in ("item", "tolist") or node.target in _CHECKS:
        return True
    made = _unbacked(node)
    return bool(made) and not made <= set().union(*map(_unbacked, node.all_input_nodes))


def _unbacked(node: fx.Node) -> set[Any]:
    leaves = tree_leaves(node.meta.get("example_value"))
    kept = (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)
    return set().union(*(free_unbacked_symbols(v) for v in leaves if isinstance(v, kept)))


def _may_be_cut(node: fx.Node) -> bool:
    """Whether it leaves no state behind, as `_set_grad_enabled` does for what follows, and has no
    graph of its own."""
    if node.op in ("call_module", "get_attr"):
        return False
    if node.op != "call_function" or isinstance(node.target, torch._ops.OpOverload):
        return True
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return False
    return not getattr(node.target, "__name__", "_").startswith("_")


@dataclass(frozen=True, slots=True)
class _Part:
    """Operations that follow one another. given: what they read that was made before; made: what
    is read of theirs behind them. asks: whether they are those that ask for data."""

    nodes: tuple[fx.Node, ...]
    given: tuple[fx.Node, ...]
    made: tuple[fx.Node, ...]
    asks: bool

    @staticmethod
    def of(nodes: Sequence[fx.Node], asks: bool) -> _Part:
        own = set(nodes)
        given = dict.fromkeys(n for node in nodes for n in node.all_input_nodes if n not in own)
        made = tuple(n for n in nodes if not own.issuperset(n.users))
        return _Part(tuple(nodes), tuple(given), made, asks)

    @property
    def computes(self) -> bool:
        """Whether there is something in it to compile: more than items of tuples and numbers."""
        if self.asks:
            return False
        return any(n.target is not operator.getitem and _has_tensors(n) for n in self.nodes)

    def module(self, root: fx.GraphModule) -> fx.GraphModule:
        """A graph module that computes `made` from `given`."""
        graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
        for node in self.given:
            copies[node] = graph.placeholder(node.name)
        for node in self.nodes:
            copies[node] = graph.node_copy(node, copies.__getitem__)
        graph.output(tuple(copies[node] for node in self.made))
        return fx.GraphModule(root, graph)


def _parts(graph: fx.Graph, asking: set[fx.Node]) -> list[_Part]:
    nodes = [n for n in graph.nodes if n.op not in ("placeholder", "output")]
    asks, last = dict[fx.Node, bool](), False
    for node in nodes:
        # What counts sizes goes with what is before it.
        last = asks[node] = node in asking or (last and not _has_tensors(node))
    return [_Part.of(list(some), one) for one, some in groupby(nodes, asks.__getitem__)]


def _has_tensors(node: fx.Node) -> bool:
    return isinstance(node.meta.get("example_value"), (torch.Tensor, tuple, list, type(None)))
