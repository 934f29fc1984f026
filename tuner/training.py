"""Forward and backward graph of a training step, decided together.

When the forward plan runs the user's graph as eager or torch.compile does, so does the whole
step: autograd is then theirs, and our backward plan is never asked for. So a peer is kept for
both graphs or for neither, by the sum of their times.
"""

from __future__ import annotations

from dataclasses import replace

from ..planner.graph import Graph
from ..planner.plan import Plan
from ..planner.runtime.dispatch import whole_lowering
from .groups import Identity
from .measure import MARGIN
from .peers import peer_plan


def settled(
    forward: tuple[Plan, Graph], backward: tuple[Plan, Graph]
) -> tuple[tuple[Plan, Plan], str | None]:
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
