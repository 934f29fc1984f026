"""Failures that may be no fault of the config's: what is tried again, and when."""

from collections.abc import Sequence

from config_tunes import GRAPH, H200, VERSIONS, shared_space, tune, warps
from fusionplan.db import Store
from fusionplan.planner.config import Config
from fusionplan.planner.graph.graph import key
from fusionplan.tuner.progress.progress import RecordedProgress
from fusionplan.tuner.records.findings import Findings
from fusionplan.tuner.records.ledger import Ledger, graph_record
from fusionplan.tuner.search.config_search import tune_group
from fusionplan.tuner.search.config_study import AGAIN
from fusionplan.tuner.search.group_trials import Budget
from fusionplan.tuner.search.runoff import SharedSearch
from fusionplan.tuner.trial.outcome import (
    ATEN,
    Candidate,
    Crashed,
    Failure,
    Miscompiled,
    Timed,
    TimedOut,
)
from fusionplan.tuner.workers.lab import Duel, Group
from tuner_fakes import Done, FakeLab


def failing(times: int, outcome: Failure, which: int = 8) -> tuple[FakeLab, list[Candidate]]:
    """A lab in which kernels of so many warps fail that often, and what it was asked of them."""
    asked: list[Candidate] = []

    def formula(group: Group, candidate: Candidate) -> float | Failure:
        if candidate.config and candidate.config.num_warps == which:
            asked.append(candidate)
            if asked.count(candidate) <= times:
                return outcome
        return warps(group, candidate)

    return FakeLab(formula), asked


LATE = TimedOut("no answer within 30 s", transient=True)


def test_a_failure_that_may_be_the_machines_is_tried_once_more(store: Store):
    lab, asked = failing(1, LATE)
    found, progress = tune(store, lab, trials=12)
    assert found.best.candidate.config.num_warps == 8
    measured = [candidate for _, candidate in lab.measured]
    again = [c for c in asked if measured.count(c) > 1]
    assert again
    assert max(map(measured.count, measured)) == 2
    assert found.trials == 12  # another try is no other trial
    assert len([note for note in progress.of("note") if "tried again" in note]) == 1
    kept = {Candidate.from_json(t.config): t.outcome for t in store.trials(subject=key(GRAPH))}
    assert all(kept[c] == "timed" for c in again)


def test_on_a_machine_where_all_fail_few_are_tried_again(store: Store):
    lab = FakeLab(lambda g, c: LATE if c.config else 1.0)
    found, _ = tune(store, lab, trials=12)
    assert len(lab.measured) == 1 + 12 + AGAIN
    assert found.failures == 12


def test_a_later_run_tries_them_again_and_then_they_are_the_candidates_own(store: Store):
    runs = []
    for _ in range(3):
        lab, _ = failing(99, LATE)
        tune(store, lab, trials=6)
        runs.append([c for _, c in lab.measured if c.config and c.config.num_warps == 8])
    first, second, third = runs
    assert first
    assert set(first) & set(second)
    condemned = {c for c in second if second.count(c) == 2 and c in first}
    assert condemned
    assert not condemned & set(third)


def test_a_compilation_ended_for_want_of_memory_is_tried_in_a_later_run(store: Store):
    killed = Miscompiled("compiling: the worker died with signal SIGKILL", transient=True)
    tune(store, FakeLab(warps, refuse=lambda c: killed), trials=3)
    lost = [t for t in store.trials(subject=key(GRAPH)) if t.transient]
    assert len(lost) == 3
    tune(store, FakeLab(warps), trials=6)
    found = {t.id: t for t in store.trials(subject=key(GRAPH))}
    assert all(found[t.id].outcome == "timed" and not found[t.id].transient for t in lost)


def test_the_framework_is_tried_again_too(store: Store):
    asked = []

    def formula(group: Group, candidate: Candidate) -> float | Failure:
        if candidate == ATEN:
            asked.append(candidate)
            return Crashed("a neighbour", transient=True) if len(asked) == 1 else 1e-3
        return 1.0

    found, _ = tune(store, FakeLab(formula), trials=3)
    assert found.best.candidate == ATEN
    assert len(asked) == 2


def test_a_crash_in_the_last_comparison_drops_only_whom_it_is_the_fault_of(store: Store):
    guilty: list[Candidate] = []

    def formula(group: Group, candidate: Candidate) -> float | Failure:
        if candidate in guilty:
            return Crashed("illegal address")
        return 1.0 + 1e-6 * candidate.config.num_warps if candidate.config else 2.0

    lab = FakeLab(formula, duel_ends=[Crashed("the worker died")])
    real = lab.duel

    def duel(group: Group, candidates: list[Candidate]) -> Duel:
        guilty[:] = guilty or [candidates[0]]
        return real(group, candidates)

    lab.duel = duel  # type: ignore[method-assign]
    found, progress = tune(store, lab, trials=8)
    first, second = lab.duels
    assert len(first) == 4
    assert second == [c for c in first if c not in guilty]
    assert found.settled is not None
    assert found.settled.candidate in second
    assert len([note for note in progress.of("note") if "dropped" in note]) == 1


def test_comparisons_that_always_crash_leave_the_fastest(store: Store):
    crash = Crashed("the worker died")
    lab = FakeLab(warps, duel_ends=[crash, crash])
    found, _ = tune(store, lab, trials=8)
    assert found.settled is None
    assert found.best.candidate.config.num_warps == 8


def test_known_outcomes_survive_the_store(store: Store):
    tune(store, FakeLab(lambda g, c: Crashed("x") if c.config else 1.0), trials=4)
    ledger = Ledger(store, H200.key, VERSIONS, key(GRAPH))
    known = ledger.open(Group.of(GRAPH, "g"))
    assert [type(k.outcome) for k in known] == [Timed, *[Crashed] * 4]


def test_a_kernel_that_compiles_for_long_is_not_waited_for_beyond_the_time(store: Store):
    now, waited = [0.0], []

    class Stuck(FakeLab):
        """Its compiler never ends."""

        def compile(self, group: Group, config: Config) -> Done:
            pending = super().compile(group, config)
            pending.done = lambda: False
            return pending

        def wait(self, pending: Sequence[Done], timeout_s: float | None = None) -> None:
            waited.append(timeout_s)
            now[0] += timeout_s or 1e9

    group = Group.of(GRAPH, "softmax")
    store.put_graph(graph_record(GRAPH, key(GRAPH), "test"))
    ledger = Ledger(store, H200.key, VERSIONS, key(GRAPH))
    shared = SharedSearch(lab := Stuck(warps), ledger, Findings(), RecordedProgress())
    found = tune_group(group, shared_space(), shared, Budget(8, 5.0, lambda: now[0]))
    assert waited == [5.0]
    assert [candidate for _, candidate in lab.measured] == [ATEN]
    assert found.best is not None
