"""A region whose large values are computed again for each of their readers. `options`: the bytes
from which a value is."""

from __future__ import annotations

from ..errors import Refusal
from ..graph.graph import Graph
from ..plan import LoweringName
from ..regions.chunks import Walk
from ..regions.recompute import recomputed
from ..regions.regions import LARGE_BYTES
from .regional import Regional, number_of_bytes


class Recomputed(Regional):
    name: LoweringName = "recomputed"

    def choices(self) -> tuple[str, ...]:
        return (str(LARGE_BYTES),)

    def bodies(self, group: Graph, options: str) -> Walk | Refusal:
        size = number_of_bytes(options)
        return size if isinstance(size, Refusal) else recomputed(group, size)
