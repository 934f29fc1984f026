"""Configs of one group: Optuna proposes, compile workers run ahead, the device measures.

The study lives in memory while it measures: storage costs more than a trial's time on the GPU.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import optuna
from optuna.distributions import IntDistribution
from optuna.trial import TrialState, create_trial

from ...planner.config import Config
from ...planner.costs.cost import Cost
from ...planner.errors import Refusal
from ..trial.outcome import Candidate, Outcome, ProgramResources, Rejected, Timed
from ..workers.lab import Pending
from ..workers.ranking import SpaceLike
from .group_trials import POLL_S, GroupTrials

SEEDS = 8
"""At least so many of the cost model's best configs are tried before Optuna proposes any."""
SEEDED = 0.6
"""This share of the trials goes to the cost model's best configs, in its order, if that is more."""
NEAR_FLOOR = 1.05
"""A kernel is fast enough at so many times the least time that the device needs."""
PATIENCE = 24
"""The search of a kernel that is fast enough ends after so many trials without a faster one."""
RETRIES = 6
"""After so many proposals that were tried before, or are hopeless, the cost model is asked."""
WAIT_S = 60.0
"""At most so many seconds are spent waiting for the last trials of other tuners."""
AGAIN = 4
"""At most so many candidates of a group are tried again, if they failed for a reason that may lie
outside of them. On a machine where all fail, more would take all the time."""
ELSEWHERE = "another tuner is at it"


@dataclass(slots=True)
class _Flying:
    """A config on its way through the compiler. estimated: registers by the model; those of `cost`
    are what to expect after what was compiled before."""

    trial: optuna.trial.Trial
    candidate: Candidate
    cost: Cost
    estimated: int
    pending: Pending


class ConfigStudy:
    """The study of one group, and the configs under way."""

    def __init__(self, space: SpaceLike, seed: int, search: GroupTrials) -> None:
        self.space, self.search = space, search
        self.ranked = space.ranked(512)
        self.floor_s = space.floor_s()
        self.study = new_study(seed)
        self.flying: list[_Flying] = []
        self.ahead = 1 + max(1, search.shared.lab.compilers)
        self.measuring = 0
        self.asked: set[Config] = set()
        self.elsewhere: set[Config] = set()
        """What other tuners are at."""
        self.counts_elsewhere = True
        self._rest: Iterator[tuple[Config, Cost]] = iter(self.ranked)
        self._tell_known()

    def run(self, neighbours: list[Candidate], framework_s: float) -> None:
        """Keep the compilers busy, measure what they deliver, until the budget or a stop; one at
        least, in the framework's place where that waits."""
        self._enqueue(neighbours)
        search = self.search
        self._fill()
        if not framework_s:
            search.framework()
        self._deliver_all(framework_s)
        self.cancel()
        if not search.waits:
            self._take_news()
            search.found.elsewhere += len(self.elsewhere)
            return
        if self.elsewhere and not search.is_over:
            # Rather than wait for others, whoever has nothing else to do tries more.
            self.counts_elsewhere = False
            self._fill()
            self._deliver_all(framework_s)
            self.cancel()
        self._gather()
        self._again()

    def _deliver_all(self, framework_s: float) -> None:
        search = self.search
        while self.flying and not self._is_good_enough():
            if search.is_over and (search.triton or not framework_s):
                return
            flying = self._next(bool(search.triton or not framework_s))
            if flying is None:
                return
            self._deliver(flying)
            self._fill()  # what did not run meanwhile, as after a failure to compile

    def _gather(self) -> None:
        """Wait for what other tuners are at; what they have let go of is measured here."""
        search, until = self.search, time.monotonic() + WAIT_S
        self._take_news()
        while self.elsewhere and not search.is_over and time.monotonic() < until:
            for config in list(self.elsewhere):
                candidate = Candidate.generated(config)
                if not search.is_over and search.is_ours(candidate):
                    self.elsewhere.discard(config)
                    self._measure_now(candidate, config)
            if self.elsewhere:
                time.sleep(POLL_S)
            self._take_news()

    def _measure_now(self, candidate: Candidate, config: Config) -> None:
        cost = self.space.judge(config)
        if isinstance(cost, Cost):
            pending = self.search.shared.lab.compile(self.search.group, config)
            if self.search.measure(candidate, cost, pending.result(), lambda: None) is None:
                self.elsewhere.add(config)

    def _take_news(self) -> None:
        self.search.take_news()
        while self.search.news:
            item = self.search.news.pop()
            config = item.candidate.config
            if config is not None:
                self.asked.add(config)
                self.elsewhere.discard(config)
                self._learn(config, item.outcome)

    def _again(self) -> None:
        """Try once more what failed for a cause that may lie elsewhere."""
        search = self.search
        for candidate in search.found.to_try_again()[:AGAIN]:
            if search.budget.is_spent:
                return
            if candidate.config is not None and search.is_ours(candidate):
                search.found.again.add(candidate)
                self._measure_now(candidate, candidate.config)

    def cancel(self) -> None:
        """Let go of what is under way."""
        while self.flying:
            flying = self.flying.pop()
            flying.pending.cancel()
        self.search.shared.ledger.let_go()

    def _enqueue(self, neighbours: list[Candidate]) -> None:
        seeds = max(SEEDS, int(SEEDED * self.search.budget.trials))
        best = [config for config, _ in self.space.seeds(seeds)]
        near = []
        for candidate in neighbours[:SEEDS]:
            if candidate.config is not None and self._fits(candidate.config):
                near.append(candidate.config)
        doubted = [c.config for c in self.search.found.doubted if c.config and self._fits(c.config)]
        for config in dict.fromkeys([*best[:1], *doubted, *near, *best[1:]]):
            choice = self._indices(config)
            if choice is not None and config not in self.asked:
                self.study.enqueue_trial(choice)

    def _fits(self, config: Config) -> bool:
        """Whether a config of a group of other sizes is one of this space."""
        try:
            return self._indices(config) is not None and not isinstance(
                self.space.judge(config), Refusal
            )
        except (KeyError, StopIteration, ValueError):
            return False

    def _fill(self) -> None:
        search = self.search
        while len(self.flying) < self.ahead and self._has_room() and not search.budget.is_spent:
            flying = self._propose()
            if flying is None:
                return
            self.flying.append(flying)

    def _has_room(self) -> bool:
        """Whether the trials under way, here and with other tuners, leave some of the budget."""
        under_way = self.measuring + len(self.flying)
        if self.counts_elsewhere:
            under_way += len(self.elsewhere)
        return self.search.triton + under_way < self.search.budget.trials

    def _propose(self) -> _Flying | None:
        """A config that is new and not hopeless; None when the space has no more, or others are at
        the rest."""
        for _ in range(RETRIES):
            if not self._has_room():
                return None
            trial = self.study.ask()
            config = self.space.config(self._values(trial))
            cost = self._judged(trial, config)
            if cost is not None:
                return self._launch(trial, config, cost)
        # Optuna repeats itself: the next best by the model that was not tried.
        for config, cost in self._rest:
            if not self._has_room():
                return None
            indices = self._indices(config)
            known = config in self.asked or self._spilled(config, cost)
            if indices is not None and not known and self._is_ours(config):
                self.study.enqueue_trial(indices)
                trial = self.study.ask()
                self._values(trial)
                return self._launch(trial, config, cost)
        return None

    def _judged(self, trial: optuna.trial.Trial, config: Config) -> Cost | None:
        if config in self.asked:
            outcome = self.search.outcomes.get(Candidate.generated(config))
            self._tell(trial, outcome if outcome is not None else Rejected("asked before"))
            return None
        cost = self.space.judge(config)
        if isinstance(cost, Refusal):
            self.asked.add(config)
            self._tell(trial, Rejected(str(cost)))
            return None
        if spilled := self._spilled(config, cost):
            self.asked.add(config)
            self._tell(trial, Rejected(f"a kernel like it spilled {spilled} bytes a thread"))
            return None
        if not self._is_ours(config):
            self._tell(trial, Rejected(ELSEWHERE))
            return None
        return cost

    def _is_ours(self, config: Config) -> bool:
        """Whether this tuner is to measure it; what another is at is looked for later."""
        self._take_news()
        if config in self.asked:
            return False
        candidate = Candidate.generated(config)
        ours = self.search.is_ours(candidate)
        if not ours:
            self.asked.add(config)
            if candidate not in self.search.outcomes:
                self.elsewhere.add(config)
        return ours

    def _spilled(self, config: Config, cost: Cost) -> int:
        return self.search.found.compiled.spilled(config, cost.registers)

    def _launch(self, trial: optuna.trial.Trial, config: Config, cost: Cost) -> _Flying:
        self.asked.add(config)
        candidate = Candidate.generated(config)
        expected = self.search.found.compiled.registers(config, cost.registers)
        pending = self.search.shared.lab.compile(self.search.group, config)
        told = replace(cost, registers=expected)
        return _Flying(trial, candidate, told, cost.registers, pending)

    def _next(self, ends: bool) -> _Flying | None:
        """The earliest that is compiled; waits for one. ends: only until the budget is spent, and
        there is none then."""
        while True:
            for flying in self.flying:
                if flying.pending.done():
                    self.flying.remove(flying)
                    return flying
            left_s = self.search.budget.left_s if ends else math.inf
            if left_s <= 0:
                return None
            pending = [flying.pending for flying in self.flying]
            self.search.shared.lab.wait(pending, left_s if math.isfinite(left_s) else None)

    def _deliver(self, flying: _Flying) -> None:
        self.measuring = 1
        compiled, config = flying.pending.result(), flying.candidate.config
        if isinstance(compiled, ProgramResources) and config is not None:
            registers, spills = compiled.registers, compiled.spill_bytes
            self.search.found.compiled.add(config, flying.estimated, registers, spills)
        outcome = self.search.measure(flying.candidate, flying.cost, compiled, self._fill)
        self.measuring = 0
        if outcome is None and config is not None:
            self.elsewhere.add(config)
        self._tell(flying.trial, outcome or Rejected(ELSEWHERE))

    def _is_good_enough(self) -> bool:
        """Whether the search ends early: fast enough, and no faster for a while."""
        best = self.search.found.best_s
        return (
            best is not None
            and best <= self.floor_s * NEAR_FLOOR
            and self.search.since_better >= PATIENCE
        )

    # Optuna. Numbers are asked for by their place in the dimension, so that neighbours are near.

    def _values(self, trial: optuna.trial.Trial) -> dict[str, Any]:
        return {
            d.name: d.values[trial.suggest_int(d.name, 0, len(d.values) - 1)]
            for d in self.space.dimensions
        }

    def _indices(self, config: Config) -> dict[str, int] | None:
        choice = self.space.choice(config)
        indices = {}
        for dimension in self.space.dimensions:
            value = choice.get(dimension.name, dimension.values[0])
            if value not in dimension.values:
                return None
            indices[dimension.name] = dimension.values.index(value)
        return indices

    def _tell(self, trial: optuna.trial.Trial, outcome: Outcome) -> None:
        if isinstance(outcome, Timed):
            self.study.tell(trial, outcome.seconds)
        else:
            pruned = isinstance(outcome, Rejected)
            state = TrialState.PRUNED if pruned else TrialState.FAIL
            self.study.tell(trial, state=state)

    def _tell_known(self) -> None:
        for candidate, outcome in self.search.outcomes.items():
            if candidate.config is not None:
                self.asked.add(candidate.config)
                self._learn(candidate.config, outcome)

    def _learn(self, config: Config, outcome: Outcome) -> None:
        """Tell the study what it did not ask for."""
        indices = self._indices(config)
        if indices is None or not isinstance(outcome, Timed):
            return
        self.study.add_trial(
            create_trial(
                params=indices,
                distributions={
                    d.name: IntDistribution(0, len(d.values) - 1) for d in self.space.dimensions
                },
                value=outcome.seconds,
            )
        )


def new_study(seed: int) -> optuna.Study:
    """A seeded study in memory that expects several trials to be under way."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(
            seed=seed, n_startup_trials=SEEDS, multivariate=True, constant_liar=True
        )
    return optuna.create_study(direction="minimize", sampler=sampler)
