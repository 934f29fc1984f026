"""The search for a group's config: on times from a formula, with a real store."""

import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from config_tunes import GRAPH, H200, VERSIONS, shared_space, tune, warps
from fusionplan.db import Store
from fusionplan.planner.config import Config
from fusionplan.planner.errors import Refusal
from fusionplan.planner.graph.graph import key
from fusionplan.tuner.progress.progress import RecordedProgress
from fusionplan.tuner.records import optuna_export
from fusionplan.tuner.records.findings import Findings
from fusionplan.tuner.records.ledger import Ledger, device_record, graph_record
from fusionplan.tuner.records.machine_code import GroupMachineCode
from fusionplan.tuner.records.optuna_export import mirror
from fusionplan.tuner.search.config_search import tune_group
from fusionplan.tuner.search.group_trials import Budget
from fusionplan.tuner.search.runoff import SharedSearch
from fusionplan.tuner.trial.outcome import (
    ATEN,
    Candidate,
    Crashed,
    Failure,
    Miscompiled,
    ProgramResources,
    Wrong,
)
from fusionplan.tuner.workers.lab import Group
from tuner_fakes import FakeLab
from tuner_graphs import attention, pointwise, softmax


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


def test_one_tuner_at_a_time_makes_optunas_tables(store: Store, monkeypatch: pytest.MonkeyPatch):
    """Optuna finds a table missing, and another tuner makes it before Optuna does."""
    ledger = Ledger(store, H200.key, VERSIONS, key(GRAPH), studies={"config"})
    assert store.claim_name("mirror tables", "another tuner", 60.0)
    monkeypatch.setattr(optuna_export, "WAIT_S", 0.0)
    made: list[str] = []
    monkeypatch.setattr(optuna_export.optuna.storages, "RDBStorage", made.append)
    assert mirror(store, ledger) is None
    assert not made
    store.release("another tuner")
    assert mirror(store, ledger) is None
    assert made == [store.url]
