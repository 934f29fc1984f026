"""The model's best covers of a graph, found in compile workers while this process does other work,
with the prices that were asked for on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import TypeAdapter, ValidationError

from ...planner.costs.device import DeviceProfile
from ...planner.covers.cover import Cover, covers
from ...planner.covers.pricing import quick_s
from ...planner.graph.graph import Graph
from ..trial.outcome import Crashed, TimedOut
from .pool import Answer

LOOK_S = 0.2
"""Seconds between looks at whether the covers are still wanted."""

Prices = Mapping[str, float | None]
"""Quick ones, by the keys of groups (see `pricing.quick_s`)."""

_COVERS: TypeAdapter[tuple[Cover, ...]] = TypeAdapter(tuple[Cover, ...])
_PRICES: TypeAdapter[dict[str, float | None]] = TypeAdapter(dict[str, float | None])


@dataclass(frozen=True, slots=True)
class Covering:
    """covers: the best first; prices: all that are known where they were found."""

    covers: tuple[Cover, ...]
    prices: Prices

    @staticmethod
    def of(
        graph: Graph, device: DeviceProfile, count: int, known: Prices | None = None
    ) -> Covering:
        """known: prices that others have computed by the same code."""
        quick_s.tell(device, known or {})
        return Covering(covers(graph, device, count), dict(quick_s.of(device)))

    def to_json(self) -> dict[str, Any]:
        return {"covers": _COVERS.dump_python(self.covers, mode="json"), "prices": self.prices}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Covering:
        """Inverse of `to_json`. Raises ValueError on data that has no covers."""
        try:
            found = _COVERS.validate_python(data.get("covers"))
            prices = _PRICES.validate_python(data.get("prices"))
        except ValidationError as error:
            first = error.errors()[0]
            raise ValueError(f"no covers: {first['loc']}: {first['msg']}") from error
        if not found:
            raise ValueError("no covers")
        return Covering(found, prices)


class Planning(Protocol):
    """Covers that are looked for elsewhere."""

    def result(self, is_over: Callable[[], bool]) -> Covering | None:
        """Waits for them. None: whoever wants them makes them, or `is_over` said that nobody wants
        them any more."""


class WorkerPlanning:
    """In a compile worker."""

    def __init__(self, future: Future[Answer]) -> None:
        self._future = future

    def result(self, is_over: Callable[[], bool]) -> Covering | None:
        while not wait([self._future], LOOK_S).done:
            if is_over():
                self._future.cancel()
                return None
        return _answered(self._future)


class SectionedPlanning:
    """In several compile workers: the graph's sections at the same time, for their prices, then the
    whole with these. sections: one that fails costs its prices alone. whole: begins to look for the
    covers of the whole, given prices."""

    def __init__(
        self, sections: Sequence[Future[Answer]], whole: Callable[[Prices], Future[Answer]]
    ) -> None:
        self._sections, self._whole = sections, whole

    def result(self, is_over: Callable[[], bool]) -> Covering | None:
        while wait(self._sections, LOOK_S).not_done:
            if is_over():
                for future in self._sections:
                    future.cancel()
                return None
        prices: dict[str, float | None] = {}
        for found in map(_answered, self._sections):
            prices |= found.prices if found is not None else {}
        return WorkerPlanning(self._whole(prices)).result(is_over)


def _answered(future: Future[Answer]) -> Covering | None:
    """What a worker has found; None where that is nothing."""
    answer = future.result()
    if isinstance(answer, (TimedOut, Crashed)):
        return None
    try:
        return Covering.from_json(answer)
    except ValueError:
        return None
