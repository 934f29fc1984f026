"""The winner of a group: its fastest candidates timed in turn, on inputs they have not seen."""

from __future__ import annotations

from dataclasses import dataclass

from ..progress.progress import Progress
from ..records.findings import Finding, Findings, GroupFindings
from ..records.ledger import Ledger
from ..trial.outcome import ATEN, Failure, Timed
from ..workers.lab import Duel, Group, Lab

FINALISTS = 4
WITHIN = 1.1


@dataclass(frozen=True, slots=True)
class SharedSearch:
    """The lab, the records and the progress that every group's search shares. settles: finalists
    are timed against each other, which a worker leaves to the tune whose search it shares."""

    lab: Lab
    ledger: Ledger
    findings: Findings
    progress: Progress
    seed: int = 0
    settles: bool = True


def settle(group: Group, shared: SharedSearch, found: GroupFindings) -> None:
    """Time the finalists in turn, on inputs they have not seen, and keep the winner. One alone, if
    it is not the framework, has to be right on those too."""
    if not shared.settles:
        return
    finalists = found.finalists(FINALISTS, WITHIN)
    if len(finalists) > 1 or any(f.timed.laps == 0 or f.candidate != ATEN for f in finalists):
        duel = shared.lab.duel(group, [f.candidate for f in finalists])
        if duel.whole:
            finalists = [f for f in finalists if _stands_alone(f, group, shared, found)]
            if len(finalists) < 2:
                duel = Duel((), None, {})
            else:
                duel = shared.lab.duel(group, [f.candidate for f in finalists])
        for finalist, outcome in zip(finalists, () if duel.whole else duel.outcomes, strict=False):
            if not isinstance(outcome, Timed):
                _drop(finalist, outcome, group, shared, found)
        if duel.best is not None:
            winner, timed = finalists[duel.best], duel.outcomes[duel.best]
            assert isinstance(timed, Timed)
            found.settled = Finding(winner.candidate, timed, winner.cost, winner.number)
    best = found.best
    if best is not None:
        shared.progress.group_done(group.name, best.candidate, best.seconds)


def _stands_alone(
    finalist: Finding, group: Group, shared: SharedSearch, found: GroupFindings
) -> bool:
    """Whether a finalist runs by itself, after a comparison that ended for all of them."""
    outcome = shared.lab.measure(group, finalist.candidate)
    if isinstance(outcome, Timed):
        return True
    _drop(finalist, outcome, group, shared, found)
    return False


def _drop(
    finalist: Finding, outcome: Failure, group: Group, shared: SharedSearch, found: GroupFindings
) -> None:
    found.drop(finalist.candidate)
    shared.progress.note(f"{group.name}: {finalist.candidate} dropped: {outcome.reason}")
