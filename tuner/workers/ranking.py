"""The model's order of a group's configs, made once: in a compile worker, or here.

To judge thousands of configs takes seconds, and a training graph has a hundred groups.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import TypeAdapter, ValidationError

from ...planner.config import Config
from ...planner.costs.cost import Cost
from ...planner.errors import Refusal
from ...planner.space.dimensions import Dimension

BEST, SEEDS = 512, 256
"""Configs of each order that are kept; whoever asks for more has them judged again."""

Judged = tuple[Config, Cost]
_JUDGED: TypeAdapter[tuple[Judged, ...]] = TypeAdapter(tuple[Judged, ...])


class SpaceLike(Protocol):
    """The part of `planner.costs.space.Space` that a search needs."""

    @property
    def dimensions(self) -> tuple[Dimension, ...]: ...
    def config(self, choice: Mapping[str, Any]) -> Config: ...
    def choice(self, config: Config) -> Mapping[str, Any]: ...
    def judge(self, config: Config) -> Cost | Refusal: ...
    def ranked(self, limit: int) -> list[Judged]: ...
    def top(self) -> Judged | None: ...
    def seeds(self, limit: int) -> list[Judged]: ...
    def floor_s(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Ranking:
    """The first configs as `Space.ranked` and as `Space.seeds` have them."""

    best: tuple[Judged, ...]
    seeds: tuple[Judged, ...]

    @staticmethod
    def of(space: SpaceLike) -> Ranking:
        return Ranking(tuple(space.ranked(BEST)), tuple(space.seeds(SEEDS)))

    def to_json(self) -> dict[str, Any]:
        both = {"best": self.best, "seeds": self.seeds}
        return {name: _JUDGED.dump_python(judged, mode="json") for name, judged in both.items()}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Ranking:
        """Inverse of `to_json`. Raises ValueError on data that is no ranking."""
        try:
            best, seeds = (_JUDGED.validate_python(data.get(name)) for name in ("best", "seeds"))
        except ValidationError as error:
            first = error.errors()[0]
            raise ValueError(f"no ranking: {first['loc']}: {first['msg']}") from error
        return Ranking(best, seeds)


class Begun(Protocol):
    """A ranking that is made elsewhere; None: it has to be made here."""

    def result(self) -> Ranking | None: ...


class Ordered:
    """A space in which others say in what order its configs come."""

    def __init__(self, space: SpaceLike) -> None:
        self.space = space

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        return self.space.dimensions

    def config(self, choice: Mapping[str, Any]) -> Config:
        return self.space.config(choice)

    def choice(self, config: Config) -> Mapping[str, Any]:
        return self.space.choice(config)

    def judge(self, config: Config) -> Cost | Refusal:
        return self.space.judge(config)

    def floor_s(self) -> float:
        return self.space.floor_s()


class RankedSpace(Ordered):
    """A space whose configs are ranked once. `begin` has it done elsewhere meanwhile."""

    def __init__(self, space: SpaceLike) -> None:
        super().__init__(space)
        self._begun: Begun | None = None
        self._ranking: Ranking | None = None
        self._top: Judged | None = None

    def begin(self, rank: Callable[[], Begun | None]) -> None:
        """Have it ranked, unless it is or will be."""
        if self._ranking is None and self._begun is None:
            self._begun = rank()

    @property
    def ranking(self) -> Ranking:
        """Waits for it, or makes it."""
        if self._ranking is None:
            begun, self._begun = self._begun, None  # Interrupted, nobody waits for it again.
            found = begun.result() if begun is not None else None
            self._ranking = found or Ranking.of(self.space)
        return self._ranking

    def ranked(self, limit: int) -> list[Judged]:
        return _first(self.ranking.best, limit, BEST, self.space.ranked)

    def seeds(self, limit: int) -> list[Judged]:
        return _first(self.ranking.seeds, limit, SEEDS, self.space.seeds)

    def top(self) -> Judged | None:
        """The model's best, which waits for a ranking that was begun; else among the most usual."""
        if self._ranking is None and self._begun is None:
            self._top = self._top or self.space.top()
            return self._top
        return next(iter(self.ranking.best), None)


def _first(
    known: Sequence[Judged], limit: int, kept: int, more: Callable[[int], list[Judged]]
) -> list[Judged]:
    return more(limit) if len(known) == kept < limit else list(known[:limit])
