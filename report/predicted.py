"""The cost model's figures for a group's kernels, beside what was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..terminal import count, duration, size

if TYPE_CHECKING:
    from ..planner.explanation import GroupExplanation


class FigureRow(NamedTuple):
    """A row for people. measured: None where it is not known."""

    name: str
    predicted: str
    measured: str | None = None


def figures(group: GroupExplanation) -> tuple[FigureRow, ...]:
    """Of a group that has kernels; nothing of another."""
    cost, known = group.predicted, group.measured
    if cost is None:
        return ()
    seconds, planned = duration(cost.seconds), duration(group.predicted_s)
    # A plan of an older model of the device was chosen by other figures.
    seconds += "" if planned in (seconds, "-") else f" ({planned} in the plan)"

    def rates(amount: float, unit: str, scale: float) -> tuple[str, str | None]:
        """The model's amount over its seconds, and over the measured ones."""
        told = [
            None if not s else f"{amount / s / scale:,.3g} {unit}"
            for s in (cost.seconds, known.seconds)
        ]
        return told[0] or "-", told[1]

    flops = cost.flops + cost.fma + cost.sfu

    def bytes_of(nbytes: int | None) -> str | None:
        return None if nbytes is None else size(nbytes)

    return (
        FigureRow("memory traffic", size(cost.hbm_bytes)),
        FigureRow("L2 traffic", size(cost.l2_bytes)),
        FigureRow("matrix flops", count(cost.flops)),
        FigureRow("fma operations", count(cost.fma)),
        FigureRow("sfu operations", count(cost.sfu)),
        FigureRow(
            "registers a thread",
            str(cost.registers),
            None if known.registers is None else str(known.registers),
        ),
        FigureRow("spilled a thread", size(cost.spill_bytes), bytes_of(known.spill_bytes)),
        FigureRow("shared memory a block", size(cost.shared_bytes), bytes_of(known.shared_bytes)),
        FigureRow("occupancy", f"{cost.occupancy:.0%}"),
        FigureRow("waves", f"{cost.waves:.3g}"),
        FigureRow("launches", str(cost.launches)),
        FigureRow("bound by", cost.limit),
        FigureRow("time", seconds, None if known.seconds is None else duration(known.seconds)),
        FigureRow("memory rate", *rates(cost.hbm_bytes, "TB/s", 1e12)),
        FigureRow("arithmetic rate", *rates(flops, "Tops/s", 1e12)),
    )
