"""All ways to run a group, by the names that plans and the store have for them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Protocol

from ..graph.graph import Graph
from ..plan import LoweringName
from .aten import Aten
from .base import Lowering, WholeLowering
from .chunked import Chunked
from .folded import Folded
from .inductor import Inductor
from .recomputed import Recomputed
from .regional import Regional
from .triton import Triton
from .vendor import Vendor

log = logging.getLogger(__name__)

TRITON, ATEN, INDUCTOR, VENDOR = Triton(), Aten(), Inductor(), Vendor()
RECOMPUTED, CHUNKED, FOLDED = Recomputed(), Chunked(), Folded()

LOWERINGS: Mapping[str, Lowering] = {
    "triton": TRITON,
    "aten": ATEN,
    "inductor": INDUCTOR,
    "vendor": VENDOR,
    "recomputed": RECOMPUTED,
    "chunked": CHUNKED,
    "folded": FOLDED,
}

CALLS: tuple[Lowering, ...] = (ATEN, VENDOR)
"""Those that are measured as they are, for every group, before its configs are."""

WHOLE: tuple[WholeLowering, ...] = (ATEN, INDUCTOR)
"""Those by which a whole graph may run, without a group of its own."""

REGIONAL: tuple[Regional, ...] = (RECOMPUTED, CHUNKED, FOLDED)
"""Those that run a region of several groups."""


class Named(Protocol):
    """A group of a plan, or a candidate for one."""

    @property
    def lowering(self) -> LoweringName: ...


def lowering_of(group: Named) -> Lowering:
    """The lowering that runs a group."""
    return LOWERINGS[group.lowering]


def calls(group: Graph) -> Iterator[tuple[Lowering, str]]:
    """The lowerings of `CALLS` that can run a group, each with its options. An error of one of them
    is logged, and ends no tune."""
    for lowering in CALLS:
        try:
            found = lowering.options(group)
        except Exception:  # a fault of ours
            log.exception("%s is left out for a group: please report it", lowering.name)
            continue
        for options in found:
            yield lowering, options
