"""A region that is run in chunks of an axis that all of its large values have. `options`: the bytes
that a value may have within a chunk."""

from __future__ import annotations

from ..errors import Refusal
from ..graph.graph import Graph
from ..plan import LoweringName
from ..regions.chunks import Walk, walk
from .regional import Regional, number_of_bytes

BUDGETS = (128 << 20, 512 << 20)
"""Bytes that a value may have within a chunk. In 16 bits it takes half of what counts here, which
is the largest of its forms."""


class Chunked(Regional):
    name: LoweringName = "chunked"

    def choices(self) -> tuple[str, ...]:
        return tuple(map(str, BUDGETS))

    def bodies(self, group: Graph, options: str) -> Walk | Refusal:
        size = number_of_bytes(options)
        return size if isinstance(size, Refusal) else walk(group, size)
