"""A unit: a group of a plan, or one operation between groups, that runs in one go."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ScheduledUnit:
    """A unit that runs in one go: a group (`group` is its index in the plan) or one node by ATen
    (`group` is None). inputs, outputs: node ids."""

    group: int | None
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
