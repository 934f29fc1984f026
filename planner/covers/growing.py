"""Groups that grow edge by edge, each step a legal kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ..bitsets import bits
from ..errors import Refusal
from ..graph.graph import Graph
from ..graph.ops import is_compute
from ..groups.group import GroupContent, Groups, is_copied, with_free_nodes
from ..groups.legality import LARGEST_GROUP, Dependences, Homes, may_join
from .budget import CoverBudget

Edge = tuple[int, int]


def cut_edges(graph: Graph) -> tuple[Edge, ...]:
    """The edges between compute nodes along which groups can grow; each can be cut."""
    return Dependences(graph).edges


class Grown(NamedTuple):
    """Groups that were grown. stops: edges that were left out because the budget was spent."""

    groups: Groups
    stops: int


def grow(
    graph: Graph,
    wanted: Callable[[Edge], bool],
    worth: Callable[[int, int], bool],
    budget: CoverBudget | None = None,
) -> Grown:
    """Grows groups edge by edge. wanted: the edges to grow along. worth: whether two groups that
    may join should. budget: the limit of groups that are looked at."""
    dependences = Dependences(graph)
    own = (n.id for n in graph.nodes if is_compute(n) and not is_copied(graph, n.id))
    home = Homes(graph, own)
    never: set[Edge] = set()  # Pairs of groups that make no kernel, whatever stands around them.
    grows = True
    stops: set[Edge] = set()
    while grows:  # What was refused may become legal when its neighbours have joined.
        grows = False
        for first, second in dependences.edges:
            left, right = home[first], home[second]
            if left == right or (left, right) in never or not wanted((first, second)):
                continue
            if budget is not None and budget.is_spent:
                stops.add((left, right))
                continue
            within = home.within(left | right)
            refusal = may_join(graph, dependences, home, left, right, within)
            if budget is not None and _is_looked_at(left | right, refusal):
                budget.look(GroupContent.of(graph, with_free_nodes(graph, bits(left | right))))
            if refusal is None and worth(left, right):
                grows = True
                home.join(left | right)
            elif refusal is None or refusal.rule != "convex":
                never.add((left, right))
    groups = sorted(set(home.values()), key=lambda group: group & -group)
    return Grown(tuple(with_free_nodes(graph, bits(group)) for group in groups), len(stops))


def _is_looked_at(group: int, refusal: Refusal | None) -> bool:
    """Whether it took a look at what the group computes to say that it may be a kernel, or not."""
    return group.bit_count() <= LARGEST_GROUP and (refusal is None or refusal.rule != "convex")
