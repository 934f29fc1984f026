"""The search for the nodes that share a kernel, by measured time.

A partition here is any cover of the graph that is tried, also one whose groups share nodes. Its
time is the sum of its groups' times, so that every measured group serves every partition that
contains it, and each distinct group is tuned once. What a lower bound shows cannot win is never
compiled. Caches break the sum: the best few are measured end to end afterwards.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import optuna
from optuna.trial import TrialState

from ...planner.config import Config
from ...planner.costs.device import CPU
from ...planner.covers.cover import cuts_of
from ...planner.errors import Refusal
from ...planner.groups.group import Groups
from ...planner.lowerings import registry
from ...planner.lowerings.inductor import MODES
from ..progress.progress import TrialDone
from ..records.ledger import compute_count
from ..trial.outcome import Candidate, Timed
from ..workers.lab import Group
from .config_search import tune_group
from .config_study import SEEDS, new_study
from .group_trials import Budget
from .runoff import SharedSearch, settle
from .tuned_groups import COVERS, Cuts, Partition, Task, Tasks, measured_s

KEPT = 2
_VENDORS = (0.75, 1.3)
MOST_ASKED = 48
NEAR_FLOOR = 1.1
"""A partition this close to the least that the device can do is not searched further."""
WORTH = 1.15
"""A partition is measured when the model thinks it at most this much slower than the best."""
MOST_SCALED = 1.25
INDUCTOR = Candidate(registry.INDUCTOR.name, options=MODES[0])
MOST_INDUCTOR = 3
INDUCTOR_S = 20.0
"""Seconds that must be left for Inductor to be tried on a group."""
FIRST_SHARE = 0.75
"""Of the trials and the time, for the partition that the model prefers; the rest is for others."""
LOOKS_SHARE = 0.25
"""The largest share of the time left that may go to searches for other covers."""
LEARNED = 4
LEARNED_SHARE = 0.5
"""How often a cover by what was measured is asked for, and its share of the time that is left."""


@dataclass(frozen=True, slots=True)
class TrialBudget:
    """The number of trials of a group: before any gets more, at least, and in all."""

    first: int = 1
    least: int = 4
    usual: int = 8


class PartitionSearch:
    """`run`, then `best`; after an interruption `best` gives what is known."""

    def __init__(
        self, tasks: Tasks, shared: SharedSearch, budget: Budget, split: TrialBudget | None = None
    ) -> None:
        self.tasks, self.shared, self.budget = tasks, shared, budget
        self.split = split or TrialBudget()
        self.graph = tasks.graph
        self.edges = tasks.cover.edges(self.graph)
        self.seen: dict[Groups, None] = {}
        self.used = 0
        self.short: set[str] = set()
        """Groups, by key, that there was no time to tune beyond the first trial."""

    def ahead(self) -> Iterator[tuple[Group, Config]]:
        """What the first partition will have compiled, in the order of `_tune`: the first config of
        each group, with which it is a whole plan, then the second of each, and so on."""
        first = self.tasks.first
        tasks = {task.group.key: task for task in self.tasks.all(first)}
        costs = {key: t.modelled.seconds if t.modelled else 0.0 for key, t in tasks.items()}
        count = min(self.budget.trials, SEEDS) if len(tasks) == 1 else self.split.least
        wanted: list[list[tuple[Group, Config]]] = []
        for key in sorted(tasks, key=lambda key: (tasks[key].vendor_s > 0, -costs[key])):
            group, space = tasks[key].group, tasks[key].space
            if not isinstance(space, Refusal):
                wanted.append([(group, config) for config, _ in space.seeds(SEEDS)[:count]])
        for turn in itertools.zip_longest(*wanted):
            yield from filter(None, turn)

    def run(self) -> None:
        """Tune the groups of the partitions that are worth it."""
        best = self.tasks.best(COVERS)
        first = best[0].groups
        self.seen[first] = None
        if not first:
            return
        alone = not self.edges
        share = 1.0 if alone else FIRST_SHARE
        self._tune(first, int(self.budget.trials * share), share=share)
        if alone or self._is_obvious(first):
            return
        kept = min(MOST_INDUCTOR, self.budget.trials // 16)
        self._learn(kept)
        for groups in self._proposals([cover.groups for cover in best]):
            rest = self.budget.trials - self.used - kept
            if self.budget.is_spent or rest < self.split.least:
                break
            if self._is_worth_measuring(groups):
                self._tune(groups, min(rest, self.split.usual * len(groups)))
        self._try_inductor(self.best(1)[0].groups)
        rest = self.budget.trials - self.used
        if rest >= self.split.least and not self.budget.is_spent:
            self._tune(self.best(1)[0].groups, rest, again=True)

    def _learn(self, kept: int) -> None:
        """Covers by what was measured: groups that took far longer than the model says make room
        for others, as long as the cheapest cover is one that was not tried."""
        for _ in range(LEARNED):
            rest = self.budget.trials - self.used - kept
            if not self._has_time_to_look(1) or rest < self.split.least:
                return
            both = dict(self._both())
            scale = statistics.median(m / p for p, m in both.values()) if both else 1.0
            scale = min(MOST_SCALED, scale)  # a group alone would excuse itself
            known = {key: measured / scale for key, (_, measured) in both.items()}
            groups = self.tasks.cover.learned(self.graph, self.tasks.profile, known)
            if not self._is_new(groups):
                return
            self._tune(groups, min(rest, self.split.usual * len(groups)), share=LEARNED_SHARE)

    def _has_time_to_look(self, times: int) -> bool:
        """Whether so many more looks for covers leave most of the time to what they find."""
        left_s = self.budget.left_s
        return math.isinf(left_s) or left_s * LOOKS_SHARE > times * self.tasks.look_s

    def best(self, count: int = KEPT) -> list[Partition]:
        """The measured partitions, fastest first; if none is, the first as it stands."""
        found = []
        for groups in self.seen:
            seconds = measured_s(groups, self.tasks, self.shared.findings)
            found.append(Partition(groups, self.tasks.modelled_s(groups), seconds))
        complete = [p for p in found if p.measured_s is not None]
        complete.sort(key=lambda p: p.measured_s or 0.0)
        return complete[:count] or found[:1]

    def _incumbent_s(self) -> float | None:
        best = self.best(1)
        return best[0].measured_s if best else None

    def _is_obvious(self, groups: Groups) -> bool:
        """One group, as fast as its memory traffic allows: cutting it only adds traffic."""
        if len(groups) != 1:
            return False
        incumbent = self._incumbent_s()
        return incumbent is not None and incumbent <= self.tasks.floor_s(groups) * NEAR_FLOOR

    def _is_worth_measuring(self, groups: Groups) -> bool:
        incumbent = self._incumbent_s()
        if incumbent is None:
            return True
        if self.tasks.floor_s(groups) >= incumbent:
            return False
        return self._estimated_s(groups) <= incumbent * WORTH

    def _estimated_s(self, groups: Groups) -> float:
        """Measured where it is, modelled where not; the model's seconds are brought towards the
        measured scale by what both know. Only so far: a group that runs much slower than the
        model says is the very reason to try others."""
        measured = modelled = 0.0
        unknown: list[Task] = []
        for task in self.tasks.all(groups):
            best = self.shared.findings.best(task.group.key)
            if best is None:
                unknown.append(task)
            else:
                measured += best.seconds
        known_s = modelled_s = 0.0
        for guess, truth in self._both().values():
            known_s += truth
            modelled_s += guess
        scale = min(MOST_SCALED, known_s / modelled_s) if modelled_s else 1.0
        modelled = sum(
            t.modelled.seconds if t.modelled and not t.vendors else t.floor_s for t in unknown
        )
        return measured + modelled * scale

    def _both(self) -> dict[str, tuple[float, float]]:
        """Modelled and measured seconds of the groups of which both are known, by key."""
        done = {task.group.key: task for g in self.seen for task in self.tasks.all(g)}
        found = {}
        for key, task in done.items():
            best = self.shared.findings.best(key)
            if best is not None and task.modelled is not None:
                found[key] = task.modelled.seconds, best.seconds
        return found

    def _proposals(self, best: Sequence[Groups]) -> Iterator[Groups]:
        """The model's best covers, what grows edge by edge, never-fuse, always-fuse, then what
        Optuna proposes; each new partition once. Optuna is told the estimate that stands when it
        asks for the next."""
        for groups in best:
            if self._is_new(groups):
                yield groups
        study = new_study(self.shared.seed)
        names = {f"{a}-{b}": (a, b) for a, b in self.edges}
        everything: Cuts = frozenset(self.edges)
        known = [cuts_of(self.graph, groups) for groups in best]
        grown = self._grown() if self._has_time_to_look(1 + len(_VENDORS)) else ()
        for cuts in (*known, *grown, everything, frozenset[tuple[int, int]]()):
            study.enqueue_trial({n: e in cuts for n, e in names.items()})
        for _ in range(min(MOST_ASKED, 2 ** min(len(names), 16) + len(known) + 4)):
            if not self._has_time_to_look(1):
                return
            trial = study.ask()
            cuts = frozenset(
                e for n, e in names.items() if trial.suggest_categorical(n, [False, True])
            )
            groups = self.tasks.cover.partition(self.graph, cuts)
            if self._is_new(groups):
                yield groups
            self._tell(study, trial, groups)

    def _is_new(self, groups: Groups) -> bool:
        new = groups not in self.seen
        self.seen[groups] = None
        return new

    def _grown(self) -> Iterator[Cuts]:
        """The cuts that growing groups leaves, also if the vendor's products were slower or faster
        than the model thinks."""
        profile = self.tasks.profile
        for vendor in (1.0, *_VENDORS):
            leaning = replace(profile, vendor=profile.vendor * vendor)
            yield self.tasks.cover.grown(self.graph, leaning)

    def _tell(self, study: optuna.Study, trial: optuna.trial.Trial, groups: Groups) -> None:
        if all(task.modelled is None for task in self.tasks.all(groups)):
            study.tell(trial, state=TrialState.PRUNED)
        else:
            study.tell(trial, self._estimated_s(groups))

    def _tune(
        self, groups: Groups, trials: int, *, again: bool = False, share: float = 1.0
    ) -> None:
        """Tune the groups that are not yet (with `again`, all of them more), the costly ones
        longer, in a share of the time that is left. Each is tried once before any is tuned: a plan
        is as slow as the group that there was no time for. Products alone that the model leaves to
        the vendor come last, for to check one with all words of a language model takes as long as
        all other groups together."""
        end = self.budget.clock()
        end += (self.budget.until - end) * share
        self.tasks.begin(groups, self.shared.lab)
        own = self.tasks.all(groups)
        counts = Counter(task.group.key for task in own)
        tasks = {task.group.key: task for task in own}
        weights = {
            key: counts[key] * self._seconds(task)
            for key, task in tasks.items()
            if again or key in self.short or self._is_new_task(task)
        }
        costliest = sorted(weights, key=lambda key: -weights[key])
        before = {key: self.shared.findings.of(key).trials for key in costliest}
        last = [key for key in costliest if tasks[key].vendor_s and len(tasks) > 1]
        weights = {key: weights[key] for key in costliest if key not in last}
        if len(weights) > 1 and not again:
            for key in weights:
                self._try_once(tasks[key], before[key])
            weights = {key: counts[key] * self._seconds(tasks[key]) for key in weights}
        self._tune_longer(tasks, weights, before, trials, end)
        for key in last:
            if self.budget.clock() < end:
                self._try_once(tasks[key], before[key])
        for key in costliest:
            if self.shared.findings.of(key).settled is None and not self.budget.is_spent:
                settle(tasks[key].group, self.shared, self.shared.findings.of(key))

    def _try_once(self, task: Task, before: int) -> None:
        if not self.budget.is_spent:
            total = before + self.split.first
            self._tune_one(task, total, self.budget.until, settles=False, waits=False)

    def _tune_longer(
        self,
        tasks: Mapping[str, Task],
        weights: Mapping[str, float],
        before: Mapping[str, int],
        trials: int,
        end: float,
    ) -> None:
        """Tune groups by their weights, the heaviest first, until `end`. before: trials that they
        had."""
        costliest = sorted(weights, key=lambda key: -weights[key])
        rest = sum(weights.values())
        shared: dict[str, int] = {}
        for key in costliest:
            if self.budget.is_spent:
                return
            part = weights[key] / rest if rest else 1.0
            rest -= weights[key]
            now = self.budget.clock()
            until = now + (end - now) * max(part, 0.1)
            if until <= now:
                self.short.add(key)
                continue
            self.short.discard(key)
            total = before[key] + self._trials(len(weights), part, trials)
            self._tune_one(tasks[key], total, until, waits=len(weights) == 1)
            found = self.shared.findings.of(key)
            trials = max(0, trials - found.trials - found.elsewhere + before[key])
            if found.elsewhere:
                shared[key] = total
        for key, total in shared.items():  # where other tuners were at the rest
            self._tune_one(tasks[key], total, end)

    def _seconds(self, task: Task) -> float:
        """Of a group, measured or else modelled."""
        best = self.shared.findings.best(task.group.key)
        if best is not None:
            return best.seconds
        return task.modelled.seconds if task.modelled else 1e-6

    def _tune_one(
        self, task: Task, total: int, until: float, *, settles: bool = True, waits: bool = True
    ) -> None:
        """A group, up to so many trials of it in all. settles, waits: see `tune_group`."""
        before = self.shared.findings.of(task.group.key).trials
        budget = Budget(total, until, self.budget.clock)
        tune_group(task.group, task.space, self.shared, budget, task.framework_s, settles, waits)
        self.used += self.shared.findings.of(task.group.key).trials - before

    def _is_new_task(self, task: Task) -> bool:
        """Whether none of its kernels was tried, as when its time was over before one was compiled;
        of a group without kernels, whether it was not measured."""
        found = self.shared.findings.of(task.group.key)
        return not (found.outcomes if isinstance(task.space, Refusal) else found.trials)

    def _try_inductor(self, groups: Groups) -> None:
        """Inductor's own kernels for the costliest groups of several operations that are not yet
        near their floor. Each is a trial, and takes the time of a compilation on the device."""
        if self.tasks.profile == CPU:  # in the interpreter speed means nothing
            return
        tasks = {task.group.key: task for task in self.tasks.all(groups)}
        findings = self.shared.findings
        seconds = {key: findings.of(key).best_s or 0.0 for key in tasks}
        tried = 0
        for key in sorted(tasks, key=lambda key: -seconds[key]):
            task, known = tasks[key], findings.of(key).outcomes
            if compute_count(task.group.graph) < 2 or INDUCTOR in known:
                continue
            if not seconds[key] > task.floor_s * NEAR_FLOOR:
                continue
            left_s = self.budget.until - self.budget.clock()
            if tried == MOST_INDUCTOR or self.used >= self.budget.trials or left_s < INDUCTOR_S:
                return
            tried += 1
            self.used += 1
            self._measure_inductor(task)

    def _measure_inductor(self, task: Task) -> None:
        group, shared = task.group, self.shared
        found = shared.findings.of(group.key)
        before_s = found.best_s
        if not shared.ledger.claim(group, INDUCTOR):
            return  # another tuner is at it, and a later one will know
        outcome = shared.lab.measure(group, INDUCTOR, before_s)
        shared.ledger.add(group, INDUCTOR, outcome)
        found.add(INDUCTOR, outcome, None)
        if isinstance(outcome, Timed) and (before_s is None or outcome.seconds < before_s):
            found.settled = None
            settle(group, shared, found)
        number, most = len(found.outcomes), self.budget.trials
        done = TrialDone(
            group.key, group.name, number, most, INDUCTOR, outcome, None, found.best_s, False
        )
        shared.progress.trial(done)

    def _trials(self, groups: int, share: float, trials: int) -> int:
        if groups == 1:
            return max(1, trials)
        least = min(self.split.usual, max(self.split.least, trials // groups))
        return max(least, int(trials * share))
