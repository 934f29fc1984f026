"""Rewriting a copy of an FX graph, so that whatever goes wrong leaves the graph that was given."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TypeVar

from torch import fx

log = logging.getLogger(__name__)

Match = TypeVar("Match")


def rewritten_copy(
    gm: fx.GraphModule, change: Callable[[fx.Graph], object], otherwise: str
) -> fx.GraphModule:
    """A copy of the graph after `change`, or `gm` itself where that changes nothing (gives
    something false) or raises. `gm` is left as it is; names and metadata are kept.

    otherwise: what then stays as it was, for the log."""
    graph = fx.Graph()
    last = next(n for n in reversed(gm.graph.nodes) if n.op == "output")
    graph.output(graph.graph_copy(gm.graph, {})).meta = dict(last.meta)
    try:
        changed = change(graph)
    except Exception:  # whatever an operation's metadata raises, the user's model must run
        log.debug(otherwise, exc_info=True)
        return gm
    if not changed:
        return gm
    found = fx.GraphModule(gm, graph)
    found.meta = dict(gm.meta)
    return found


def rewritten_matches(
    gm: fx.GraphModule,
    find: Callable[[fx.Graph], Iterator[Match]],
    build: Callable[[Match], object],
    otherwise: str,
) -> fx.GraphModule:
    """As `rewritten_copy`: `build` replaces each match that `find` gives of a graph. `gm` itself
    where there is none."""
    if not any(True for _ in find(gm.graph)):
        return gm

    def change(graph: fx.Graph) -> bool:
        for match in list(find(graph)):
            build(match)
        graph.eliminate_dead_code()
        return True

    return rewritten_copy(gm, change, otherwise)


def dynamo_copy(gm: fx.GraphModule) -> tuple[fx.GraphModule, dict[fx.Node, fx.Node]]:
    """A copy of a graph from Dynamo, and its nodes by those of `gm`. Who changes it recompiles."""
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    output = graph.graph_copy(gm.graph, copies)
    last = next(n for n in reversed(gm.graph.nodes) if n.op == "output")
    graph.output(output).meta = dict(last.meta)
    for node, copy in copies.items():
        if hasattr(node, "_dynamo_source"):  # by which AOTAutograd knows an input; not in `meta`
            copy._dynamo_source = node._dynamo_source
    found = fx.GraphModule(gm, graph)
    # AOTAutograd reads more of a module than its graph, as the names of its parameters.
    for name, value in vars(gm).items():
        vars(found).setdefault(name, value)
    found.meta = dict(gm.meta)
    return found, copies
