"""The cost model's figures for a group's kernels, beside what was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..terminal import count, duration, size

if TYPE_CHECKING:
    from ..planner.explanation import GroupExplanation


class Figure(NamedTuple):
    """A row for people. measured: None where it is not known."""

    name: str
    predicted: str
    measured: str | None = None


def figures(group: GroupExplanation) -> tuple[Figure, ...]:
    """Of a group that has kernels; nothing of another."""
    cost, known = group.predicted, group.measured
    if cost is None:
        return ()
    seconds, planned = duration(cost.seconds), duration(group.predicted_s)
    # A plan of an older model of the device was chosen by other figures.
    seconds += "" if planned in (seconds, "-") else f" ({planned} in the plan)"

    def bytes_of(nbytes: int | None) -> str | None:
        return None if nbytes is None else size(nbytes)

    return (
        Figure("memory traffic", size(cost.hbm_bytes)),
        Figure("L2 traffic", size(cost.l2_bytes)),
        Figure("matrix flops", count(cost.flops)),
        Figure("fma operations", count(cost.fma)),
        Figure("sfu operations", count(cost.sfu)),
        Figure(
            "registers a thread",
            str(cost.registers),
            None if known.registers is None else str(known.registers),
        ),
        Figure("spilled a thread", size(cost.spill_bytes), bytes_of(known.spill_bytes)),
        Figure("shared memory a block", size(cost.shared_bytes), bytes_of(known.shared_bytes)),
        Figure("occupancy", f"{cost.occupancy:.0%}"),
        Figure("waves", f"{cost.waves:.3g}"),
        Figure("launches", str(cost.launches)),
        Figure("bound by", cost.limit),
        Figure("time", seconds, None if known.seconds is None else duration(known.seconds)),
    )
