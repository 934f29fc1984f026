"""The search for a group's config: on times from a formula, with a real store."""

import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from functools import cache
from pathlib import Path

import pytest
from fusionplan.db import Store
from fusionplan.planner.config import Config
from fusionplan.planner.costs.device import builtin
from fusionplan.planner.errors import Refusal
from fusionplan.planner.graph.graph import Graph, key
from fusionplan.planner.space.space import Space, space_of
from fusionplan.tuner.progress.progress import RecordedProgress
from fusionplan.tuner.records.findings import Findings, GroupFindings
from fusionplan.tuner.records.ledger import Ledger, device_record, graph_record
from fusionplan.tuner.records.machine_code import GroupMachineCode
from fusionplan.tuner.records.optuna_export import mirror
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
    ProgramResources,
    Timed,
    TimedOut,
    Wrong,
)
from fusionplan.tuner.workers.lab import Duel, Group
from tuner_fakes import Done, FakeLab
from tuner_graphs import attention, pointwise, softmax

H200 = builtin("h200")
VERSIONS = {"torch": "2", "codegen": "1"}
GRAPH = softmax(512, 1000)


@cache
def shared_space(graph: Graph = GRAPH) -> Space:
    """The same for all tests, with its configs ranked."""
    found = space_of(graph, H200)
    assert isinstance(found, Space)
    return found


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "plans.db") as opened:
        opened.put_device(device_record(H200))
        yield opened


def warps(group: Group, candidate: Candidate) -> float:
    """The best is 8 warps with small blocks; the framework is slow."""
    if candidate.config is None:
        return 1.0
    off = abs(candidate.config.num_warps.bit_length() - 4)
    blocks = sum(size for _, size in candidate.config.blocks)
    return 0.1 + 0.02 * off + 1e-6 * blocks


def tune(
    store: Store, lab: FakeLab, trials: int = 20, graph=GRAPH, seed: int = 0, findings=None
) -> tuple[GroupFindings, RecordedProgress]:
    progress = RecordedProgress()
    store.put_graph(graph_record(graph, key(graph), "test"))
    ledger = Ledger(store, H200.key, VERSIONS, key(graph))
    shared = SharedSearch(lab, ledger, Findings() if findings is None else findings, progress, seed)
    found = tune_group(Group.of(graph, "g"), shared_space(graph), shared, Budget(trials))
    return found, progress


def test_finds_what_the_formula_likes(store: Store):
    found, _ = tune(store, FakeLab(warps), trials=40)
    assert found.best.candidate.config.num_warps == 8
    assert found.trials == 40


def test_every_trial_is_on_disk_with_prediction_and_registers(store: Store):
    _found, progress = tune(store, FakeLab(warps), trials=12)
    trials = store.trials(level="kernel", subject=key(GRAPH))
    assert len(trials) == 13 == len(progress.of("trial"))
    ours = [t for t in trials if t.config["lowering"] == "triton"]
    assert all(t.predicted_s and t.predicted_registers and t.hbm_bytes for t in ours)
    assert all(t.registers == 32 and t.timing == "cold" for t in ours)


def test_registers_are_expected_as_the_compiler_gave_them_before(store: Store):
    """The model is wrong by the same factor for all kernels of this group."""
    lab = FakeLab(warps, resources=lambda config: ProgramResources(120, 0, 0, 0.1))
    tune(store, lab, trials=12)
    trials = [t for t in store.trials(level="kernel", subject=key(GRAPH)) if t.registers]
    expected = [t.predicted_registers for t in trials]
    assert expected[0] < 80
    assert max(expected) > 100


@pytest.mark.slow
def test_what_is_like_a_kernel_that_spilled_is_not_compiled(tmp_path: Path):
    def spilling(config: Config) -> ProgramResources:
        return (
            ProgramResources(32, 9000, 0, 0.1)
            if config.num_warps == 4
            else ProgramResources(40, 0, 0, 0.1)
        )

    of_four = []
    for resources in (lambda config: ProgramResources(40, 0, 0, 0.1), spilling):
        with Store.open(tmp_path / f"{len(of_four)}.db") as own:
            own.put_device(device_record(H200))
            lab = FakeLab(warps, resources=resources)
            tune(own, lab, trials=40)
        of_four.append(sum(c.num_warps == 4 for c in lab.compiled))
    assert of_four[1] < of_four[0]


@pytest.mark.slow
def test_where_all_spill_none_like_another_is_compiled(store: Store):
    lab = FakeLab(warps, resources=lambda config: ProgramResources(32, 9000, 0, 0.1))
    found, _ = tune(store, lab, trials=40)
    known = found.compiled
    estimated = {c: k.estimated for c, k in known.kernels.items()}
    first = 2 + lab.compilers  # Those were under way before the first was known.
    for number, config in enumerate(lab.compiled[first:], first):
        earlier = GroupMachineCode(
            {c: known.kernels[c] for c in lab.compiled[: number - first + 1]}
        )
        assert not earlier.spilled(config, estimated[config])


def test_nothing_is_tried_twice(store: Store):
    lab = FakeLab(warps)
    tune(store, lab, trials=40)
    assert len(lab.compiled) == len(set(lab.compiled))


def test_a_second_run_repeats_nothing(store: Store):
    first, _ = tune(store, FakeLab(warps), trials=16)
    lab = FakeLab(warps)
    second, progress = tune(store, lab, trials=16)
    assert lab.compiled == lab.measured == []
    assert second.best.candidate == first.best.candidate
    assert all(done.reused for done in progress.of("trial"))
    more = FakeLab(warps)
    tune(store, more, trials=20)
    assert len(more.compiled) == 4


def test_ctrl_c_keeps_what_is_found_in_memory_and_on_disk(store: Store):
    findings = Findings()
    lab = FakeLab(warps, interrupt_at=6)
    with pytest.raises(KeyboardInterrupt):
        tune(store, lab, findings=findings)
    assert findings.best(key(GRAPH)).candidate.config is not None
    assert len(store.trials(subject=key(GRAPH))) == 6
    resumed = FakeLab(warps)
    tune(store, resumed, trials=8)
    assert len(resumed.measured) == 3


def test_failures_are_trials_and_do_not_win(store: Store):
    def formula(group: Group, candidate: Candidate) -> float | Failure:
        if candidate.config and candidate.config.num_warps == 8:
            return Wrong("output 0 ...")
        if candidate.config and candidate.config.num_warps == 2:
            return Crashed("illegal address")
        return warps(group, candidate)

    def refuse(config: Config) -> Failure | None:
        return Miscompiled("out of resources") if config.num_warps == 1 else None

    found, _ = tune(store, FakeLab(formula, refuse=refuse), trials=30)
    outcomes = {t.outcome for t in store.trials(subject=key(GRAPH))}
    assert {"timed", "wrong", "crashed", "miscompiled"} <= outcomes
    assert found.best.candidate.config.num_warps not in (1, 2, 8)
    assert found.failures


def test_the_framework_wins_where_it_is_faster(store: Store):
    found, _ = tune(store, FakeLab(lambda g, c: 0.01 if c.config is None else warps(g, c)))
    assert found.best.candidate == ATEN


CALL = Candidate("vendor", options="attention")


def test_a_vendors_call_is_tried_early_and_may_win(store: Store):
    lab = FakeLab(lambda g, c: 0.01 if c == CALL else warps(g, c))
    found, _ = tune(store, lab, trials=6, graph=attention())
    assert [c for _, c in lab.measured[:2]] == [ATEN, CALL]
    assert lab.incumbents[:3] == [None, 1.0, 0.01]
    assert found.best.candidate == CALL
    assert found.trials == 6
    (trial,) = [t for t in store.trials(subject=key(attention())) if t.config == CALL.to_json()]
    assert (trial.outcome, trial.measured_s, trial.predicted_s) == ("timed", 0.01, None)
    again = FakeLab(warps)
    found, _ = tune(store, again, trials=6, graph=attention())
    assert (found.best.candidate, again.measured) == (CALL, [])


def test_a_vendors_call_with_other_numbers_does_not_win(store: Store):
    lab = FakeLab(lambda g, c: Wrong("output 0 ...") if c == CALL else warps(g, c))
    found, _ = tune(store, lab, trials=3, graph=attention())
    assert isinstance(found.outcomes[CALL], Wrong)
    assert found.best.candidate.lowering == "triton"


def test_a_group_without_kernel_may_have_a_vendors_call(store: Store):
    graph, lab = attention(), FakeLab(lambda g, c: 0.5 if c == CALL else 1.0)
    store.put_graph(graph_record(graph, key(graph), "test"))
    shared = SharedSearch(
        lab, Ledger(store, H200.key, VERSIONS, key(graph)), Findings(), RecordedProgress()
    )
    found = tune_group(Group.of(graph, "g"), Refusal("held", "too large"), shared, Budget(9))
    assert found.best.candidate == CALL


def test_a_group_without_kernel_has_the_framework_only(store: Store):
    lab, progress = FakeLab(warps), RecordedProgress()
    store.put_graph(graph_record(GRAPH, key(GRAPH), "test"))
    shared = SharedSearch(lab, Ledger(store, H200.key, VERSIONS, key(GRAPH)), Findings(), progress)
    found = tune_group(Group.of(GRAPH, "g"), Refusal("held", "too large"), shared, Budget(9))
    assert found.best.candidate == ATEN
    assert not lab.compiled


@pytest.mark.parametrize("ours, measured", [(0.1, False), (2.0, True)])
def test_a_framework_that_cannot_win_is_not_measured(store: Store, ours: float, measured: bool):
    """It takes 1.0 or more: where a kernel takes longer than that, it is measured after all."""
    lab = FakeLab(lambda g, c: 1.5 if c.config is None else ours)
    store.put_graph(graph_record(GRAPH, key(GRAPH), "test"))
    shared = SharedSearch(
        lab, Ledger(store, H200.key, VERSIONS, key(GRAPH)), Findings(), RecordedProgress()
    )
    group, space = Group.of(GRAPH, "g"), shared_space()
    found = tune_group(group, space, shared, Budget(3), framework_s=1.0)
    assert found.trials == 3
    assert (ATEN in found.outcomes) == measured
    assert (found.best.candidate == ATEN) == measured


def test_the_framework_is_measured_when_the_kernels_are_dropped(store: Store):
    class Strict(FakeLab):
        def duel(self, group, candidates):
            self.formula = lambda g, c: Wrong("fresh") if c.config else 1.5
            return super().duel(group, candidates)

    store.put_graph(graph_record(GRAPH, key(GRAPH), "test"))
    ledger = Ledger(store, H200.key, VERSIONS, key(GRAPH))
    lab = Strict(lambda g, c: 0.1 if c.config else 1.5)
    shared = SharedSearch(lab, ledger, Findings(), RecordedProgress())
    group, space = Group.of(GRAPH, "g"), shared_space()
    found = tune_group(group, space, shared, Budget(3), framework_s=1.0)
    assert found.best.candidate == ATEN


def test_a_kernel_under_way_is_tried_when_time_is_over(store: Store):
    store.put_graph(graph_record(GRAPH, key(GRAPH), "test"))
    ledger = Ledger(store, H200.key, VERSIONS, key(GRAPH))
    shared = SharedSearch(FakeLab(warps), ledger, Findings(), RecordedProgress())
    times = iter([0, 0])
    budget = Budget(500, until=1, clock=lambda: next(times, 1))
    group, space = Group.of(GRAPH, "g"), shared_space()
    found = tune_group(group, space, shared, budget, framework_s=1.0)
    assert found.trials == 1
    assert ATEN not in found.outcomes


def test_finalists_are_timed_again_and_near_ties_go_to_the_earlier(store: Store):
    lab = FakeLab(lambda g, c: 1.0 if c.config is None else 0.1 + 1e-5 * c.config.num_warps)
    found, _ = tune(store, lab, trials=20)
    assert len(lab.duels[0]) > 1
    assert found.best.candidate == lab.duels[0][0]


def test_a_finalist_that_fails_on_fresh_inputs_is_dropped(store: Store):
    class Strict(FakeLab):
        def duel(self, group, candidates):
            self.strict = min(candidates, key=lambda c: warps(group, c))
            self.formula = lambda g, c: Wrong("fresh") if c == self.strict else warps(g, c)
            return super().duel(group, candidates)

    lab = Strict(warps)
    found, progress = tune(store, lab)
    assert found.best.candidate != lab.strict
    assert any("dropped" in note for note in progress.of("note"))


def test_the_incumbent_is_told_so_that_slow_ones_stop_early(store: Store):
    lab = FakeLab(warps)
    tune(store, lab)
    assert lab.incumbents[0] is None
    assert min(i for i in lab.incumbents if i is not None) < 0.2


def test_stops_at_the_floor_when_nothing_improves(store: Store):
    floor = shared_space().floor_s()
    lab = FakeLab(lambda g, c: floor * 1.01)
    found, _ = tune(store, lab, trials=200)
    assert found.trials < 30


def test_stops_when_time_is_over(store: Store):
    clock = iter(range(1000))
    store.put_graph(graph_record(GRAPH, key(GRAPH), "test"))
    shared = SharedSearch(
        FakeLab(warps),
        Ledger(store, H200.key, VERSIONS, key(GRAPH)),
        Findings(),
        RecordedProgress(),
    )
    budget = Budget(500, until=30, clock=lambda: next(clock))
    found = tune_group(Group.of(GRAPH, "g"), shared_space(), shared, budget)
    assert 0 < found.trials < 40


@pytest.mark.slow
def test_a_small_space_is_tried_whole_and_no_more(store: Store):
    lab = FakeLab(warps)
    found, _ = tune(store, lab, trials=5000, graph=pointwise(1, 2))
    assert found.trials == len(set(lab.compiled)) < 5000


@pytest.mark.slow
def test_winners_of_other_sizes_come_first(store: Store):
    first, _ = tune(store, FakeLab(warps), trials=40, graph=softmax(512, 1000))
    lab = FakeLab(warps)
    tune(store, lab, trials=4, graph=softmax(1024, 1000))
    winner = first.best.candidate.config
    assert winner.num_warps == 8
    # Only what the model likes best may come before it.
    assert winner in lab.compiled[:2]


@pytest.mark.slow
def test_equal_seeds_try_equal_configs(tmp_path: Path):
    tried = []
    for name in "ab":
        with Store.open(tmp_path / f"{name}.db") as store:
            store.put_device(device_record(H200))
            lab = FakeLab(warps)
            tune(store, lab, trials=25)
            tried.append(lab.compiled)
    assert tried[0] == tried[1]


@pytest.mark.slow
def test_trials_appear_in_optunas_tables(store: Store):
    import optuna

    store.put_graph(graph_record(GRAPH, key(GRAPH), "test"))
    ledger = Ledger(store, H200.key, VERSIONS, key(GRAPH))
    shared = SharedSearch(
        FakeLab(warps, refuse=lambda c: Miscompiled("no") if c.num_warps == 4 else None),
        ledger,
        Findings(),
        RecordedProgress(),
    )
    tune_group(Group.of(GRAPH, "g"), shared_space(), shared, Budget(12))
    assert mirror(store, ledger) is None
    study = optuna.load_study(study_name=None, storage=store.url)
    states = {t.state.name for t in study.trials}
    assert states == {"COMPLETE", "FAIL"}
    assert len(study.trials) == len(store.trials())
    assert sum(t.user_attrs["lowering"] == "triton" for t in study.trials) == 12
    (summary,) = store.studies()
    assert study.best_value == summary.best_s  # that of `planner history`, whatever runs it
    assert store.problems() == []
    # When each was tried and how long it took, by the store; not the moment of the export.
    kept = {t.id: t for t in store.trials()}
    for trial in study.trials:
        record = kept[trial.user_attrs["trial"]]
        took = timedelta(seconds=record.compile_s or 0.0)
        assert abs(trial.duration - took) < timedelta(milliseconds=1)
        assert trial.datetime_complete.timestamp() == pytest.approx(
            record.created_at.timestamp(), abs=1e-3
        )
    # A later tune may try what this one did not.
    (first, *_) = (r for r in ledger.written if r.config["lowering"] == "triton")
    config = {**first.config, "reduction": "nested", "programs": 264, "access": "descriptor"}
    store.add_trial(replace(first, config=config))
    # Of several tuners that end together, or one that ends twice, each trial is there once.
    ends = [mirror] * 3
    with ThreadPoolExecutor(3) as pool:
        said = pool.map(lambda end: end(store, replace(ledger, holder=uuid.uuid4().hex)), ends)
        assert list(said) == [None] * 3
    found = optuna.load_study(study_name=None, storage=store.url).trials
    ids = [t.user_attrs["trial"] for t in found]
    assert sorted(ids) == [t.id for t in store.trials()]
    assert sum(t.user_attrs["lowering"] == "triton" for t in found) == 13
    assert store.counts()["claim"] == 0


# --- what may be no fault of the candidate's ------------------------------------------------------


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
