"""Jobs: what a tune offers of its searches to workers that share its store."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ...db.claims import LEASE_S
from ...db.errors import StoreError
from ...db.records import JobRecord
from ...db.store import Store
from ...planner.graph.graph import Graph, from_json, key, to_json, varying_to_json
from ..workers.covering import Covering
from .heartbeat import Heartbeat
from .ledger import graph_record

COVERING = "covering"
"""In a job's payload, the covers that the tune has found."""


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """The limits of the search of a graph. trials, each: see `Allowance`; seed: of the tune."""

    trials: int
    each: int
    seed: int


_LIMITS: TypeAdapter[SearchLimits] = TypeAdapter(SearchLimits)


@dataclass(frozen=True, slots=True)
class Job:
    """A search that a tune shares, as a worker reads it."""

    key: str
    name: str
    graph: Graph
    graph_key: str
    device_key: str
    versions: Mapping[str, str]
    limits: SearchLimits

    @staticmethod
    def of(record: JobRecord) -> Job:
        """Raises ValueError for a record that is no job, or whose graph is another."""
        try:
            limits = _LIMITS.validate_python(record.payload.get("limits"))
            graph = from_json(record.payload["graph"])
        except ValidationError as error:
            first = error.errors()[0]
            raise ValueError(f"no job: {first['loc']}: {first['msg']}") from error
        except (KeyError, TypeError) as error:
            raise ValueError(f"no job: {error!r}") from error
        if key(graph) != record.graph_key:
            raise ValueError("its graph is not the one that it names")
        device, versions = record.device_key, record.versions
        return Job(record.key, record.name, graph, record.graph_key, device, versions, limits)


def covering_of(payload: Mapping[str, Any]) -> Covering | None:
    """The covers that a job has; None where it has none, or none that can be read."""
    try:
        return Covering.from_json(payload[COVERING])
    except (KeyError, ValueError, AttributeError):
        return None


@dataclass(frozen=True, slots=True)
class OfferedJob:
    """A job as its tune holds it."""

    store: Store
    key: str

    def planned(self, found: Covering | None) -> None:
        """The covers that the tune has found, from which its workers set out: to plan a large
        graph takes as long as many trials. None: they plan it themselves."""
        with contextlib.suppress(StoreError, ValueError):
            self.store.jobs.add(self.key, {COVERING: None if found is None else found.to_json()})

    def end(self) -> None:
        """Workers leave it. That the store cannot be written is told by what is written next."""
        with contextlib.suppress(StoreError):
            self.store.jobs.end(key=self.key)


@dataclass(slots=True)
class Offers:
    """The jobs of one tune, open while the block runs."""

    store: Store
    device_key: str
    versions: Mapping[str, str]
    tune: str = field(default_factory=lambda: uuid.uuid4().hex)
    _alive: Heartbeat | None = None

    def __enter__(self) -> Offers:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def offer(self, graph: Graph, name: str, limits: SearchLimits, seconds: float) -> OfferedJob:
        """Open a job for so many seconds at most. The device is in the store already."""
        graph_key = key(graph)
        self.store.put_graph(graph_record(graph, graph_key, name))
        payload: dict[str, Any] = {
            "graph": to_json(graph, varying_to_json),
            "limits": _LIMITS.dump_python(limits),
        }
        record = JobRecord(
            key=uuid.uuid4().hex,
            tune=self.tune,
            name=name,
            graph_key=graph_key,
            device_key=self.device_key,
            versions=dict(self.versions),
            payload=payload,
        )
        self.store.jobs.offer(record, seconds, LEASE_S)
        if self._alive is None:
            self._alive = Heartbeat(self._renew, LEASE_S / 4)
            self._alive.start()
        return OfferedJob(self.store, record.key)

    def close(self) -> None:
        """All jobs are over."""
        if self._alive is not None:
            self._alive.stop()
            self._alive = None
            with contextlib.suppress(StoreError):
                self.store.jobs.end(tune=self.tune)

    def _renew(self) -> None:
        with contextlib.suppress(StoreError):
            self.store.jobs.renew(self.tune, LEASE_S)
