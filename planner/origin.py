"""The origin of a plan, for people: it is stored beside the plan, and is no part of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ABOUT = "about"
"""The field of a plan's record that holds it."""

MOST_LINES = 4000
"""Lines of source that are kept of one plan: those of the first nodes."""
LONGEST = 240
"""Characters that are kept of a line."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The model and the call that a plan was tuned for. stage: of training, or inference. inputs:
    types and shapes of the call. sources: the line of the user's code behind each node of the
    graph, as `file.py:12: code`. All are text to be shown, and "" or empty where they are not
    known."""

    stage: str = ""
    inputs: str = ""
    sources: Mapping[int, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data. A line that is behind several nodes stands there once."""
        nodes: dict[str, list[int]] = {}
        for node, line in sorted(self.sources.items()):
            nodes.setdefault(line[:LONGEST], []).append(node)
        kept = list(nodes.items())[:MOST_LINES]
        told: dict[str, Any] = {"stage": self.stage, "inputs": self.inputs}
        return told | ({"sources": [[line, of] for line, of in kept]} if kept else {})

    @staticmethod
    def of(payload: Mapping[str, Any]) -> Origin:
        """The origin in the record of a plan. Fields that are missing or of another form are left
        out."""
        told = payload.get(ABOUT)
        told = told if isinstance(told, Mapping) else {}
        stage, inputs = (told.get(name) for name in ("stage", "inputs"))
        return Origin(str(stage or ""), str(inputs or ""), dict(_lines(told.get("sources"))))


def _lines(told: object) -> list[tuple[int, str]]:
    found = []
    for each in told if isinstance(told, list) else []:
        match each:
            case [str(line), list(nodes)]:
                found += [(node, line) for node in nodes if isinstance(node, int)]
            case _:
                continue
    return found


def without_sources(payload: Mapping[str, Any]) -> dict[str, Any]:
    """The record of a plan with no line of the user's code, to be given to others."""
    told = payload.get(ABOUT)
    if not isinstance(told, Mapping):
        return dict(payload)
    return {**payload, ABOUT: {name: value for name, value in told.items() if name != "sources"}}
