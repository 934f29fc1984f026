"""The first kernel of each group, compiled as soon as the group is known.

The sections of a graph are planned at the same time, and the longest takes seconds more than the
others, in which most compile workers would wait.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ...planner.config import Config
from ..trial.outcome import TunerError
from ..trial.wire import config_from_json
from .pool import RANK_LIMIT_S, Answer, Pool

_Kernel = tuple[str, Config]
"""The key of its group, and its config."""

_UNFORESEEN = (TunerError, KeyError, TypeError, ValueError)
"""Of a pool that is closed, or an answer that is none: whoever needs it asks again."""


@dataclass(slots=True)
class FirstKernels:
    """Follows the requests of a lab: where covers are found, the configs of their groups are
    ranked; where those are, the first is compiled, and then its variant for any address. A request
    for the same that comes later has the same future."""

    pool: Pool
    capability: int
    _ranked: dict[str, Future[Answer]] = field(default_factory=dict)
    _begun: dict[_Kernel, Future[Answer]] = field(default_factory=dict)
    _for_any_address: list[Future[Answer]] = field(default_factory=list)
    """Nobody asks for these by name: whoever needs one finds it in Triton's cache."""

    def follow(self, covers: Future[Answer], profile: Mapping[str, Any]) -> None:
        """Rank the groups of the best cover as soon as it is found. profile: the device's."""

        def found(answer: Mapping[str, Any]) -> None:
            for group in answer["groups"]:
                if group["key"] not in self._ranked:
                    self._ranked[group["key"]] = self._rank(group["key"], group["data"], profile)

        _when_done(covers, found)

    def rank(
        self, key: str, group: Mapping[str, Any], profile: Mapping[str, Any]
    ) -> Future[Answer]:
        """The order of a group's configs, of which the first is compiled."""
        begun = self._ranked.pop(key, None)
        return self._rank(key, group, profile) if begun is None or begun.cancelled() else begun

    def compile(self, key: str, config: Config) -> Future[Answer] | None:
        """The compilation of a config that was begun; None where none was."""
        begun = self._begun.pop((key, config), None)
        return None if begun is None or begun.cancelled() else begun

    def cancel(self) -> None:
        """Let go of what is not begun and nobody has asked for."""
        for future in (*self._ranked.values(), *self._begun.values(), *self._for_any_address):
            future.cancel()
        self._ranked.clear()
        self._begun.clear()
        self._for_any_address.clear()

    def _rank(
        self, key: str, group: Mapping[str, Any], profile: Mapping[str, Any]
    ) -> Future[Answer]:
        request = {"rank": group, "profile": profile}
        ranked = self.pool.submit("compile", request, RANK_LIMIT_S, urgent=True)
        _when_done(ranked, partial(self._compile_first, key, group))
        return ranked

    def _compile_first(
        self, key: str, group: Mapping[str, Any], ranking: Mapping[str, Any]
    ) -> None:
        if ranking["first"] is None:
            return
        request = {"group": group, "config": ranking["first"], "capability": self.capability}
        config = config_from_json(ranking["first"])
        begun = self._begun[key, config] = self.pool.submit("compile", request)

        def compiled(answer: Mapping[str, Any]) -> None:
            others = self.pool.submit("compile", {**request, "aligned": False})
            self._for_any_address.append(others)

        _when_done(begun, compiled)


def _when_done(future: Future[Answer], then: Callable[[Mapping[str, Any]], None]) -> None:
    """Calls with an answer as soon as it is there, unless it is a failure of its worker."""

    def done(future: Future[Answer]) -> None:
        if future.cancelled() or future.exception() is not None:
            return
        answer = future.result()
        if isinstance(answer, dict) and "outcome" not in answer:
            try:
                then(answer)
            except _UNFORESEEN:
                return

    future.add_done_callback(done)
