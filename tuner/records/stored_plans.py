"""The stored plans that fit a graph: the one answer that loading, tuning and the commands share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ...db.records import DeviceRecord, PlanRecord
from ...planner.graph.graph import Graph, key
from ...planner.graph.varying import bucket_key, family_key, sizes_of
from ...planner.versions import versions


class Shelf(Protocol):
    """A store or a bundle in which plans are looked up."""

    def plan(
        self, graph_key: str, device_key: str, versions: dict[str, str]
    ) -> PlanRecord | None: ...
    def plans(
        self,
        *,
        graph_key: str | None = ...,
        bucket_key: str | None = ...,
        device_key: str | None = ...,
        versions: dict[str, str] | None = ...,
    ) -> list[PlanRecord]: ...
    def device(self, key: str) -> DeviceRecord | None: ...


def plans_that_fit(shelf: Shelf, graph: Graph, device_key: str) -> list[PlanRecord]:
    """The plans for a graph, its bucket or its family with the versions at hand; those that were
    made where the device was not come last. Raises StoreError."""
    graph_key, bucket = key(graph), bucket_key(graph)
    found: list[PlanRecord] = []
    for current in _versions_at_hand():
        exact = shelf.plan(graph_key, device_key, current)
        found += [] if exact is None else [exact]
        if bucket is not None:
            found += shelf.plans(bucket_key=bucket, device_key=device_key, versions=current)
            wide = shelf.plans(
                bucket_key=family_key(graph), device_key=device_key, versions=current
            )
            found += sorted(wide, key=lambda record: _distance(record, sizes_of(graph)))
    return found


def plans_of_graph(shelf: Shelf, graph_key: str, device_key: str) -> list[PlanRecord]:
    """The plans for this very graph among `plans_that_fit`, in the same order."""
    found = (shelf.plan(graph_key, device_key, current) for current in _versions_at_hand())
    return [record for record in found if record is not None]


def is_for(record: PlanRecord, graph: Graph) -> bool:
    """Whether a plan is for a graph, its bucket or its family, whatever device and versions it is
    for."""
    bucket = bucket_key(graph)
    if bucket is not None and record.bucket_key in (bucket, family_key(graph)):
        return True
    return record.graph_key == key(graph)


def versions_beside(stored: Mapping[str, str]) -> dict[str, str]:
    """The versions at hand, to be compared with those of a stored plan: a plan that was made where
    its device was not names no CUDA."""
    return versions(portable="cuda" not in stored)


def _versions_at_hand() -> tuple[dict[str, str], dict[str, str]]:
    return versions(), versions(portable=True)


def _distance(record: PlanRecord, sizes: Sequence[int]) -> float:
    """How far the sizes that a plan was tuned at are from these, by their logarithms."""
    at = record.payload.get("at")
    if not isinstance(at, list) or len(at) != len(sizes) or not all(map(_is_size, at)):
        return math.inf
    return sum(abs(math.log(max(1, a) / max(1, b))) for a, b in zip(at, sizes, strict=True))


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and value >= 0
