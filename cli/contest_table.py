"""A contest as people read it: every way to run the model, cold and busy, and how sure that is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from . import render

if TYPE_CHECKING:
    from ..planner.plan import Contest


_LEGEND = (
    "cold: one call, cache overwritten; busy: calls one after the other, with the host's time; "
    "host: its time for a busy call; behind: its time divided by the fastest, the worst of cold, "
    "busy, and busy where the host takes half as long again"
)


def view(contest: Contest) -> RenderableType:
    """A table, the least behind first; who was left out, and under which conditions."""
    figures = ("cold", "busy", "host", "behind", "interval", "rounds")
    made = render.table("run as", *figures, right=figures, extra=("rounds", "interval", "host"))
    for each in sorted(contest.contestants, key=lambda c: c.behind):
        made.add_row(
            each.name,
            render.duration(each.cold_s),
            render.duration(each.busy_s),
            render.duration(each.host_s) if each.host_s else "",
            f"{each.behind:.3f}x",
            f"{each.low:.3f} to {each.high:.3f}",
            str(each.rounds),
        )
    lines = [f"{name} was left out: {reason}" for name, reason in contest.left_out]
    sure = "decided" if contest.decided else "not decided: the intervals still overlap"
    lines.append(f"winner: {contest.winner}, {sure}; {contest.inputs} sets of inputs in turn")
    lines.append(_LEGEND)
    if contest.conditions:
        lines.append(", ".join(f"{name} {value}" for name, value in contest.conditions))
    return Group(made, *map(Text, lines))
