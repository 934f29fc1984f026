"""The time of a call by steps: equal steps together, the longest first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from .data import StepReport


@dataclass(frozen=True, slots=True)
class Spent:
    """Equal steps, such as those of a model's layers. step: the first of them. seconds, least_s: of
    all together; share: of the seconds of all steps of the graph, from 0 to 1."""

    step: StepReport
    times: int
    seconds: float
    least_s: float
    share: float


def identity(step: StepReport) -> tuple[object, ...]:
    """The same for equal steps."""
    return step.search or step.operations, step.lowering, step.least.nbytes


def spent(steps: Sequence[StepReport]) -> tuple[Spent, ...]:
    """The time of each distinct step. Steps whose time the model does not know are left out."""
    total = sum(step.seconds or 0.0 for step in steps) or 1.0
    found: dict[tuple[object, ...], Spent] = {}
    for step in steps:
        if step.seconds is None:
            continue
        key = identity(step)
        known = found.get(key, Spent(step, 0, 0.0, 0.0, 0.0))
        seconds = known.seconds + step.seconds
        found[key] = replace(
            known,
            times=known.times + 1,
            seconds=seconds,
            least_s=known.least_s + step.least.seconds,
            share=seconds / total,
        )
    return tuple(sorted(found.values(), key=lambda each: -each.seconds))
