"""Trials of one group: measured or known from others, counted, written down, told."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ...planner.costs.cost import Cost
from ...planner.lowerings.registry import CALLS, calls, lowering_of
from ..progress.progress import TrialDone
from ..records.findings import GroupFindings
from ..records.ledger import Known
from ..trial.outcome import Candidate, Failure, Outcome, ProgramResources, Timed, is_transient
from ..workers.lab import Group
from .runoff import SharedSearch

POLL_S = 0.2
"""Seconds between looks at what other tuners have found."""


@dataclass(frozen=True, slots=True)
class Budget:
    """trials: most for this group, known ones included. until: on `clock`."""

    trials: int
    until: float = float("inf")
    clock: Callable[[], float] = time.monotonic

    @property
    def left_s(self) -> float:
        return self.until - self.clock()

    @property
    def is_spent(self) -> bool:
        return self.left_s <= 0


@dataclass(slots=True)
class GroupTrials:
    """Settles candidates of one group: measured, written down, told."""

    group: Group
    shared: SharedSearch
    found: GroupFindings
    budget: Budget
    waits: bool = True
    since_better: int = 0
    news: list[Known] = field(default_factory=list)
    """Of other tuners, not yet told to the study."""

    @property
    def outcomes(self) -> dict[Candidate, Outcome]:
        return self.found.outcomes

    @property
    def triton(self) -> int:
        return self.found.trials

    def resume(self, known: list[Known]) -> None:
        """Take over what the store knows; failures that are doubted are to be tried again."""
        for item in known:
            if item.candidate in self.outcomes:
                continue
            if is_transient(item.outcome):
                self.found.doubted.append(item.candidate)
            else:
                self._count(item.candidate, item.outcome, None, reused=True)

    def framework(self) -> None:
        """The group by the framework's own kernels, and by a vendor's call that computes all of
        it: the times to beat."""
        for lowering, options in calls(self.group.graph):
            candidate = Candidate(lowering.name, options=options)
            if candidate not in self.outcomes:
                self._measure_call(candidate)

    def is_ours(self, candidate: Candidate) -> bool:
        """Whether nobody else measures it, nor has: it is then this tuner's to do."""
        known = self.outcomes.get(candidate)
        if known is not None and not is_transient(known):
            return False
        if self.shared.ledger.claim(self.group, candidate):
            return True
        self.take_news()
        return False

    def take_news(self) -> None:
        """Take over what other tuners have found out meanwhile."""
        for item in self.shared.ledger.news(self.group):
            if item.candidate not in self.outcomes and not is_transient(item.outcome):
                self._count(item.candidate, item.outcome, None, reused=True)
                self.news.append(item)

    def framework_again(self) -> None:
        """The same once more, where it failed for what may be no fault of its own."""
        for candidate in self.found.to_try_again():
            if lowering_of(candidate) in CALLS:
                self.found.again.add(candidate)
                self._measure_call(candidate)

    def _measure_call(self, candidate: Candidate) -> None:
        """Unless another tuner is at it, whose result is waited for."""
        before = self.outcomes.get(candidate)
        while not self.is_ours(candidate):
            if self.outcomes.get(candidate) is not before or self.budget.is_spent:
                return
            if not self.waits:
                self.found.elsewhere += 1
                return
            time.sleep(POLL_S)
        outcome = self.shared.lab.measure(self.group, candidate, self.found.best_s)
        self.finish(candidate, outcome, None, None)

    def measure(
        self,
        candidate: Candidate,
        cost: Cost,
        compiled: ProgramResources | Failure,
        meanwhile: Callable[[], None],
    ) -> Outcome | None:
        """Settle one that came from the compiler. None: it took so long that another tuner has
        taken it over."""
        if not self.shared.ledger.keeps(self.group, candidate):
            return None
        if not isinstance(compiled, ProgramResources):
            self.finish(candidate, compiled, cost, None)
            return compiled
        best_s = self.found.best_s
        outcome = self.shared.lab.measure(self.group, candidate, best_s, meanwhile)
        self.finish(candidate, outcome, cost, compiled)
        return outcome

    def finish(
        self,
        candidate: Candidate,
        outcome: Outcome,
        cost: Cost | None,
        resources: ProgramResources | None,
    ) -> None:
        self.shared.ledger.add(self.group, candidate, outcome, cost, resources)
        self._count(candidate, outcome, cost)
        if not isinstance(outcome, Timed) and outcome.transient:
            self._tell(candidate, outcome.reason)

    def _tell(self, candidate: Candidate, reason: str) -> None:
        """Each kind of trouble once: a full disk fails every candidate."""
        told = self.shared.findings.told
        if reason not in told:
            told.add(reason)
            self.shared.progress.note(
                f"{self.group.name}: {candidate} failed, perhaps for no fault of its own, and is "
                f"tried again: {reason}"
            )

    @property
    def is_over(self) -> bool:
        return self.triton >= self.budget.trials or self.budget.is_spent

    def _count(
        self, candidate: Candidate, outcome: Outcome, cost: Cost | None, *, reused: bool = False
    ) -> None:
        before = self.found.best_s
        self.found.add(candidate, outcome, cost)
        after = self.found.best_s
        better = after is not None and (before is None or after < before)
        self.since_better = 0 if better else self.since_better + 1
        self.shared.progress.trial(
            TrialDone(
                self.group.key,
                self.group.name,
                self.triton,
                self.budget.trials,
                candidate,
                outcome,
                cost.seconds if cost else None,
                after,
                reused,
            )
        )
