"""The best config of one group: its configs and the framework's own way are tried and settled."""

from __future__ import annotations

from ...planner.errors import Refusal
from ..records.findings import GroupFindings
from ..trial.outcome import ATEN
from ..workers.lab import Group
from ..workers.ranking import SpaceLike
from .config_study import ConfigStudy
from .group_trials import Budget, GroupTrials
from .runoff import SharedSearch, settle

SURE = 1.5
"""Times the seconds of a kernel that the framework takes at least, by the model, where it is not
measured: what lies in L2 between two operations is read faster than the model says."""


def tune_group(
    group: Group,
    space: SpaceLike | Refusal,
    shared: SharedSearch,
    budget: Budget,
    framework_s: float = 0.0,
    settles: bool = True,
    waits: bool = True,
) -> GroupFindings:
    """Measure the framework's own way, vendors' calls and up to `budget.trials` configs; settle
    the winner. framework_s: seconds that the framework takes at least, by the model; it is then
    measured last, and only if no config is faster than that by far. settles: False leaves the
    winner to be settled later. waits: False leaves what other tuners are at to them, so that this
    one can go on to another group; `found.elsewhere` counts it.

    What is found goes to `shared.findings` and the store at once, so an interruption loses
    nothing. With a refusal for a space no config is tried.
    """
    found = shared.findings.of(group.key)
    found.settled, found.elsewhere = None, 0
    try:
        search = GroupTrials(group, shared, found, budget, waits)
        _search(group, space, search, framework_s, settles)
    finally:
        shared.ledger.let_go()
    return found


def _search(
    group: Group,
    space: SpaceLike | Refusal,
    search: GroupTrials,
    framework_s: float,
    settles: bool,
) -> None:
    shared, found = search.shared, search.found
    search.resume(shared.ledger.open(group))
    if not isinstance(space, Refusal):
        configs = ConfigStudy(space, shared.seed, search)
        try:
            configs.run(shared.ledger.neighbours(group), framework_s)
        finally:
            configs.cancel()
    else:
        search.framework()
    search.framework_again()
    if not settles or found.elsewhere:
        return
    settle(group, shared, found)
    # After that, because kernels may be dropped.
    if framework_s and ATEN not in found.outcomes and _may_win(framework_s, found):
        search.framework()
        found.settled = None
        settle(group, shared, found)


def _may_win(framework_s: float, found: GroupFindings) -> bool:
    """Whether the framework, which takes so long by the model, may be as fast as the best."""
    return found.best_s is None or found.best_s * SURE > framework_s
