"""The share of a tune's time that each graph of a model has."""

from __future__ import annotations

from collections.abc import Sequence

from ...planner.costs.device import DeviceProfile
from ...planner.covers.cover import cover_s
from ...planner.lowerings.aten import aten_s
from ..capture.capture_model import ModelGraph
from ..records.ledger import compute_count
from ..search.tuned_groups import LARGE

LEAST = 0.2
"""Of an equal share, what a graph has at least: the model may be wrong about it."""


def shares(parts: Sequence[ModelGraph], profile: DeviceProfile) -> list[float]:
    """For each graph its part of what is left when its turn comes: as its time in a call of the
    model, by a quick look of the cost model, is to that of the graphs that still come."""
    if len(parts) < 2:
        return [1.0] * len(parts)
    graphs = [part.captured.graph for part in parts]
    # A quick look at a large graph's cover takes seconds.
    large = any(compute_count(graph) >= LARGE for graph in graphs)
    look = aten_s if large else cover_s
    seconds = [look(graph, profile) * part.times for graph, part in zip(graphs, parts, strict=True)]
    least = LEAST * sum(seconds) / len(parts)
    stakes = [max(each, least, 1e-9) for each in seconds]
    return [stake / sum(stakes[number:]) for number, stake in enumerate(stakes)]
