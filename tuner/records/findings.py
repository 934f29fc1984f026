"""The results of a tune so far, kept as it goes, so that Ctrl-C loses nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...planner.costs.cost import Cost
from ..measure.timing import first_of_equals
from ..trial.outcome import Candidate, Outcome, Timed, is_transient
from .machine_code import GroupMachineCode


@dataclass(frozen=True, slots=True)
class Finding:
    """A candidate that ran and is right. number: its place in the order of trials."""

    candidate: Candidate
    timed: Timed
    cost: Cost | None
    number: int

    @property
    def seconds(self) -> float:
        return self.timed.seconds


@dataclass(slots=True)
class GroupFindings:
    """Of one group. `settled`: the winner of the last comparison between finalists. compiled: what
    the compiler made of its kernels. doubted: failed in an earlier run for what may be no fault of
    theirs; again: failed so in this one, and were tried once more. elsewhere: trials that were left
    to other tuners, of which nothing is known yet."""

    found: list[Finding] = field(default_factory=list)
    outcomes: dict[Candidate, Outcome] = field(default_factory=dict)
    failures: int = 0
    settled: Finding | None = None
    compiled: GroupMachineCode = field(default_factory=GroupMachineCode)
    doubted: list[Candidate] = field(default_factory=list)
    again: set[Candidate] = field(default_factory=set)
    elsewhere: int = 0

    @property
    def trials(self) -> int:
        """Generated kernels tried; the framework's own way does not count."""
        return sum(c.config is not None for c in self.outcomes)

    @property
    def is_tried(self) -> bool:
        """Whether something is known of a generated kernel: not that its time was over."""
        known = self.outcomes.items()
        return any(c.config is not None and not is_transient(outcome) for c, outcome in known)

    def add(self, candidate: Candidate, outcome: Outcome, cost: Cost | None) -> None:
        """Adds the outcome of a candidate. If it is tried again, the last outcome counts."""
        before = self.outcomes.get(candidate)
        if before is not None and not isinstance(before, Timed):
            self.failures -= 1
        self.outcomes[candidate] = outcome
        if isinstance(outcome, Timed):
            self.found.append(Finding(candidate, outcome, cost, len(self.outcomes)))
        else:
            self.failures += 1

    def to_try_again(self) -> list[Candidate]:
        """What failed in this run for a cause that may lie elsewhere, and was tried only once."""
        outcomes = self.outcomes.items()
        return [c for c, o in outcomes if is_transient(o) and c not in self.again]

    def drop(self, candidate: Candidate) -> None:
        """It failed after all."""
        self.found = [f for f in self.found if f.candidate != candidate]
        self.failures += 1

    @property
    def best_s(self) -> float | None:
        best = self.best
        return None if best is None else best.seconds

    @property
    def best(self) -> Finding | None:
        """The settled winner, else the fastest; of equals the earlier."""
        if self.settled is not None:
            return self.settled
        if not self.found:
            return None
        return first_of_equals([(f, f.seconds) for f in self.found])

    def finalists(self, count: int, within: float) -> list[Finding]:
        """The fastest few that are not far behind, in the order they were tried."""
        complete = [f for f in self.found if not f.timed.stopped]
        if not complete:
            return []
        ordered = sorted(complete, key=lambda f: (f.seconds, f.number))[:count]
        limit = ordered[0].seconds * within
        return sorted((f for f in ordered if f.seconds <= limit), key=lambda f: f.number)


@dataclass(slots=True)
class Findings:
    """Of all groups, by key. told: reasons that were told already."""

    groups: dict[str, GroupFindings] = field(default_factory=dict)
    told: set[str] = field(default_factory=set)

    def of(self, key: str) -> GroupFindings:
        return self.groups.setdefault(key, GroupFindings())

    def best(self, key: str) -> Finding | None:
        found = self.groups.get(key)
        return None if found is None else found.best
