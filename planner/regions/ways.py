"""The ways to run a region: its large values computed again, or the whole in chunks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ..errors import Refusal
from ..graph.graph import Graph
from ..groups.group import subgraph
from ..plan import GroupPlan, Plan
from .chunks import Walk, walk
from .recompute import recomputed
from .regions import LARGE_BYTES

BUDGETS = (128 << 20, 512 << 20)
"""Bytes that a value may have within a chunk. In 16 bits it takes half of what counts here, which
is the largest of its forms."""

Regional = Literal["recomputed", "chunked"]
REGIONAL: tuple[Regional, ...] = ("recomputed", "chunked")


@dataclass(frozen=True, slots=True)
class Way:
    """lowering, options: as the plan of the group has them (bytes, in both cases)."""

    lowering: Regional
    options: str
    walk: Walk


def ways(group: Graph) -> tuple[Way, ...]:
    """All that are possible for a group."""
    tried: list[tuple[Regional, int]] = [("recomputed", LARGE_BYTES)]
    tried += [("chunked", size) for size in BUDGETS]
    return tuple(
        Way(lowering, str(size), found)
        for lowering, size in tried
        if isinstance(found := way(group, lowering, str(size)), Walk)
    )


def way(group: Graph, lowering: str, options: str) -> Walk | Refusal:
    """How a plan runs a group. options: bytes."""
    if not options.isdecimal():
        return Refusal("options", f"{options!r} is no number of bytes")
    if lowering == "recomputed":
        return recomputed(group, int(options))
    return walk(group, int(options))


class Numbered(NamedTuple):
    """A group with its number, and the graph that its nodes are of."""

    number: str
    graph: Graph
    group: GroupPlan


def groups_within(graph: Graph, plan: Plan, prefix: str = "") -> Iterator[Numbered]:
    """All groups of a plan in order, the groups of a region's bodies after it: "1", "1.0.0"."""
    for number, group in enumerate(plan.groups):
        yield Numbered(f"{prefix}{number}", graph, group)
        if group.lowering not in REGIONAL:
            continue
        found = way(subgraph(graph, group.nodes, group.copies).graph, group.lowering, group.options)
        bodies = found.bodies if isinstance(found, Walk) else ()
        for place, (body, own) in enumerate(zip(bodies, group.bodies, strict=False)):
            yield from groups_within(body, own, f"{prefix}{number}.{place}.")
