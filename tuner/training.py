"""Forward and backward graph of a training step, decided together.

When the forward plan runs the user's graph as eager or torch.compile does, so does the whole
step: autograd is then theirs, and our backward plan is never asked for. So a peer is kept for
both graphs or for neither, by the sum of their times. A mode with CUDA graphs cannot be timed graph
by graph: the whole step is run by what was kept and by such a mode, in turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

from ..planner.graph.graph import Graph
from ..planner.plan import Plan
from ..planner.runtime.dispatch import whole_lowering
from .capture_model import Model, Origin
from .groups import Identity
from .measure import MARGIN, Timer
from .model_peers import WITH_GRAPHS, step_by, step_of
from .peers import EAGER, Peers, peer_plan
from .progress import Progress

OURS = "what was kept"
STEP_S = 1.0
"""Seconds of runs in which whole steps are compared."""

Planned = tuple[Plan, Graph]


def settled(forward: Planned, backward: Planned) -> tuple[tuple[Plan, Plan], str | None]:
    """The two plans to keep, and the peer whose way they both are (None: they are ours).

    Ours are kept unless a peer is faster in sum by more than the margin, or the forward graph has
    no plan of ours. Without a measured sum there is nothing to decide, and they stay.
    """
    plans = (forward[0], backward[0])
    sums = peer_sums(plans)
    if not sums:
        return plans, None
    best = min(sums, key=lambda name: sums[name])
    is_ours = whole_lowering(*forward) is None
    if is_ours and all(p.measured is not None for p in plans):
        ours = sum(p.measured or 0.0 for p in plans)
        if sums[best] >= ours * (1 - MARGIN):
            return plans, None
    kept = [_as_peer(best, plan, graph) for plan, graph in (forward, backward)]
    return (kept[0], kept[1]), best


def peer_sums(plans: tuple[Plan, ...]) -> dict[str, float]:
    """Seconds of all the graphs together under each peer that ran every one of them."""
    if not plans:
        return {}
    by_plan = [dict(plan.peers) for plan in plans]
    names = [name for name in by_plan[0] if all(name in peers for peers in by_plan)]
    return {name: sum(peers[name] for peers in by_plan) for name in names}


def _as_peer(name: str, plan: Plan, graph: Graph) -> Plan:
    seconds = dict(plan.peers)[name]
    identity = Identity(plan.graph_key, plan.device, dict(plan.versions))
    made = peer_plan(name, seconds, graph, identity)
    return replace(made, measured=seconds, peers=plan.peers)


@dataclass(frozen=True, slots=True)
class Steps:
    """Where whole steps are compared. ours: runs the graph of `origin` by the plans kept so far."""

    origin: Origin
    ours: Model
    timer: Timer
    progress: Progress

    def settled(self, planned: Sequence[Planned]) -> tuple[list[Plan], str | None]:
        """The plans of the forward and the backward graph after a look at torch.compile with CUDA
        graphs, and its mode where that wins (None: nothing changes)."""
        plans = [plan for plan, _ in planned]
        sums = peer_sums(tuple(plans))
        timed = [mode for mode in WITH_GRAPHS if mode in sums]
        # Where their twins were timed the better one's; of large graphs neither was.
        like = min(timed, key=lambda name: sums[name]) if timed else EAGER
        names = [WITH_GRAPHS[like]] if timed else list(WITH_GRAPHS.values())
        ours = Peers({OURS: step_of(self.ours, self.origin)}, self.progress, nullcontext)
        theirs = Peers({name: step_by(self.origin, name) for name in names}, self.progress)
        for each in (ours, theirs):
            each.warm()
        calls = ours.ready | theirs.ready
        if OURS not in calls or len(calls) < 2:
            return plans, None
        result = self.timer.interleaved(calls, budget_s=STEP_S)
        seconds = {name: result.timing(name).seconds for name in calls}
        told = [f"{s * 1e3:.4g} ms by {name}" for name, s in seconds.items()]
        self.progress.note(f"a whole step: {', '.join(told)}")
        # Of one step only the sum was measured: its graphs share it as they do without CUDA graphs.
        shares = [dict(plan.peers)[like] / sums[like] if like in sums else 0.5 for plan in plans]
        plans = [
            replace(plan, peers=(*plan.peers, *((n, seconds[n] * part) for n in theirs.ready)))
            for plan, part in zip(plans, shares, strict=True)
        ]
        best = min(theirs.ready, key=lambda name: seconds[name])
        if not result.wins(best, OURS):
            return plans, None
        graphs = [graph for _, graph in planned]
        return [_as_peer(best, p, g) for p, g in zip(plans, graphs, strict=True)], best
