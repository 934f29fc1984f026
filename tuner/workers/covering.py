"""The model's best covers of a graph, found in compile workers while this process does other work,
with the prices that were asked for on the way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from threading import Event
from typing import Any, Protocol

from pydantic import TypeAdapter, ValidationError

from ...planner.costs.device import DeviceProfile
from ...planner.covers.cover import Cover, covers
from ...planner.covers.pricing import quick_s
from ...planner.covers.sections import Section, put_together
from ...planner.graph.graph import Graph
from ..trial.outcome import Crashed, TimedOut
from .pool import Answer

LOOK_S = 0.2
"""Seconds between looks at whether the covers are still wanted."""

Asked = Callable[[], bool]


def _never() -> bool:
    return False


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
    def of(graph: Graph, device: DeviceProfile, count: int) -> Covering:
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

    def result(self, is_over: Asked, is_enough: Asked = _never) -> Covering | None:
        """Waits for them. None: whoever wants them makes them, or `is_over` said that nobody waits
        any longer, and nothing had come. is_enough: whether what has come of sections will do."""


class WorkerPlanning:
    """In a compile worker."""

    def __init__(self, future: Future[Answer]) -> None:
        self._future = future

    def result(self, is_over: Asked, is_enough: Asked = _never) -> Covering | None:
        while not wait([self._future], LOOK_S).done:
            if is_over():
                self._future.cancel()
                return None
        return _answered(self._future)


class SectionedPlanning:
    """In several compile workers, the sections of a graph at the same time. begun: by key, the
    covers that are looked for of each kind of section. whole: those of the graph as one, which are
    taken where they come in time. over: set when nobody waits for any of them any more."""

    def __init__(
        self,
        graph: Graph,
        parts: Sequence[Section],
        begun: Mapping[str, Future[Answer]],
        whole: Future[Answer] | None = None,
        over: Event | None = None,
    ) -> None:
        self._graph, self._parts, self._begun, self._whole = graph, parts, begun, whole
        self._over = over or Event()

    def result(self, is_over: Asked, is_enough: Asked = _never) -> Covering | None:
        """What has come by the time that one of them says so, and groups by a rule in the other
        sections; None where nothing has come and all time is over."""
        if self._whole is not None:
            found = WorkerPlanning(self._whole).result(lambda: is_over() or is_enough())
            if found is not None:
                self._end()
                return found
        while wait(self._begun.values(), LOOK_S).not_done and not (is_over() or is_enough()):
            pass
        come = {key: future for key, future in self._begun.items() if future.done()}
        self._end()
        ready = {key: _answered(future) for key, future in come.items()}
        covers = {key: found for key, found in ready.items() if found is not None}
        prices: dict[str, float | None] = {}
        for found in covers.values():
            prices |= found.prices
        made = tuple(self._covers({key: found.covers for key, found in covers.items()}))
        by_rule = bool(self._parts) and is_enough() and not is_over()
        return Covering(made, prices) if covers or by_rule else None

    def _end(self) -> None:
        """Let go of what has not come, under way or not."""
        self._over.set()
        for future in (*self._begun.values(), *([self._whole] if self._whole else [])):
            future.cancel()

    def _covers(self, found: Mapping[str, Sequence[Cover]]) -> Iterator[Cover]:
        """The best, then those with one kind of section in its next best way, the nearest first."""
        best = {key: covers[0] for key, covers in found.items()}
        yield put_together(self._graph, self._parts, best)
        count = Counter(part.key for part in self._parts)
        others = [
            (count[key] * (other.chosen.seconds - best[key].chosen.seconds), number, key, other)
            for number, (key, covers) in enumerate(found.items())
            for other in covers[1:]
        ]
        for _, _, key, other in sorted(others, key=lambda each: each[:2]):
            yield put_together(self._graph, self._parts, {**best, key: other})


def _answered(future: Future[Answer]) -> Covering | None:
    """What a worker has found; None where that is nothing."""
    answer = future.result()
    if isinstance(answer, (TimedOut, Crashed)):
        return None
    try:
        return Covering.from_json(answer)
    except ValueError:
        return None
