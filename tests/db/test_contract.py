"""What every store does, whatever lies under it."""

import threading
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from fusionplan.db import (
    CalibrationRecord,
    KernelRecord,
    PlanNotFound,
    Store,
    StoreCorrupt,
    StoreNewer,
    StoreReadOnly,
    StoreRefused,
    StoreUnavailable,
)
from fusionplan.db.schema import newest
from sqlalchemy import create_engine, event, text

pytestmark = pytest.mark.process


def change(store, statement, **values):
    """Changes the database behind the store's back."""
    engine = create_engine(store.url)
    with engine.begin() as connection:
        connection.execute(text(statement), values)
    engine.dispose()


def test_records_come_back_as_they_went_in(store, device, graph, kernel, trial, plan):
    full = trial(
        outcome="wrong",
        reason="max error 3.0",
        measured_s=0.1 + 0.2,
        spread_s=1e-9,
        predicted_s=5e-324,
        registers=255,
        predicted_registers=240,
        spill_bytes=8,
        predicted_spills=0,
        shared_bytes=232_448,
        hbm_bytes=2**40,
        compile_s=317.0,
        timing="graph+warm",
    )
    number = store.add_trial(full)
    bare = trial(1, measured_s=None, outcome="crashed", level="partition", subject=graph.key)
    second = store.add_trial(bare)
    store.save_plan(plan())
    assert store.device(device.key) == device
    assert store.devices() == [device]
    assert store.graph(graph.key) == graph
    assert store.kernel(kernel.key) == kernel
    assert store.trials() == [replace(full, id=number), replace(bare, id=second)]
    assert store.plans() == [plan()]
    assert store.plan(graph.key, device.key, plan().versions) == plan()
    assert store.problems() == []


def calibration(device, number, source="refitted"):
    profile = {"name": device.name, "launch_s": number * 1e-6}
    return CalibrationRecord(
        device_key=device.key, source=source, profile=profile, evidence={"trials": number}
    )


def test_the_last_calibration_counts_until_it_is_undone(store, device):
    assert store.calibration(device.key) is None
    assert store.undo_calibration(device.key) is None
    first, second = calibration(device, 2, "measured"), calibration(device, 3)
    ids = [store.add_calibration(each) for each in (first, second)]
    assert store.calibration(device.key) == replace(second, id=ids[1])
    assert store.undo_calibration(device.key) == replace(second, id=ids[1])
    assert store.calibration(device.key) == replace(first, id=ids[0])
    assert [c.undone_at is None for c in store.calibrations(device.key)] == [False, True]
    store.undo_calibration(device.key)
    assert store.calibration(device.key) is None
    assert store.calibration("another") is None
    third = store.add_calibration(calibration(device, 4))
    assert store.calibration(device.key).id == third > ids[1]


def test_a_calibration_that_was_changed_is_damage(store, device):
    store.add_calibration(calibration(device, 2))
    change(store, "UPDATE calibration SET profile = '{}'")
    with pytest.raises(StoreCorrupt, match="table calibration, key 1: profile"):
        store.calibration(device.key)
    assert any("table calibration" in problem for problem in store.problems())


def test_a_calibration_of_an_unknown_device_is_refused(store, device):
    with pytest.raises(StoreRefused):
        store.add_calibration(replace(calibration(device, 2), device_key="another"))


def test_what_is_not_there_is_none(store, plan):
    assert store.device("x") is None
    assert store.graph("x") is None
    assert store.kernel("x") is None
    assert store.plan(plan().graph_key, plan().device_key, plan().versions) is None
    assert store.trials() == []
    assert store.studies() == []
    assert store.plans() == []


def test_putting_again_replaces(store, device, graph):
    store.put_device(replace(device, profile={"hbm": 4.3e12}))
    store.put_graph(replace(graph, name="renamed"))
    assert store.device(device.key).profile == {"hbm": 4.3e12}
    assert store.graph(graph.key).name == "renamed"
    assert len(store.devices()) == 1


def test_a_trial_is_added_once(store, trial):
    first = store.add_trial(trial())
    again = trial(study="another", measured_s=9.0, outcome="crashed", reason="later")
    assert store.add_trial(again) == first
    assert store.trials() == [replace(trial(), id=first)]


@pytest.mark.parametrize(
    "changes",
    [
        {"config": {"BLOCK_M": 0}},
        {"versions": {"torch": "2.12"}},
        {"timing": "graph"},
        {"subject": "kernel-2"},
        {"level": "partition"},
    ],
)
def test_a_trial_of_another_identity_is_another(store, trial, changes):
    assert store.add_trial(trial()) != store.add_trial(trial(**changes))


def test_the_order_of_keys_in_a_config_is_not_part_of_it(store, trial):
    first = store.add_trial(trial(config={"a": 1, "b": 2}))
    assert store.add_trial(trial(config={"b": 2, "a": 1})) == first


def test_a_resumed_run_finds_its_trials(location, fill, trial):
    with Store.open(location) as store:
        ids = [fill(store).add_trial(trial(number)) for number in range(3)]
    with Store.open(location) as store:
        assert [store.add_trial(trial(number)) for number in range(3)] == ids
        assert store.add_trial(trial(3)) not in ids
        assert len(store.trials()) == 4


def test_trials_are_chosen_and_ordered(store, trial, device):
    store.add_trial(trial(0))
    store.add_trial(trial(1, outcome="crashed", measured_s=None))
    store.add_trial(trial(2, level="partition", subject="graph-1", study="cuts"))
    store.add_trial(trial(3, versions={"torch": "2.12"}))

    def numbers(**wanted):
        return [found.config["BLOCK_M"] for found in store.trials(**wanted)]

    assert numbers() == [0, 1, 2, 3]
    assert numbers(newest_first=True, limit=2) == [3, 2]
    assert numbers(level="kernel") == [0, 1, 3]
    assert numbers(subject="graph-1") == [2]
    assert numbers(device_key=device.key, outcome="crashed") == [1]
    assert numbers(device_key="other") == []
    assert numbers(versions={"torch": "2.12"}) == [3]
    assert numbers(study="cuts") == [2]
    assert numbers(limit=0) == []


def test_studies_are_summed_up(store, trial):
    for number in range(3):
        store.add_trial(trial(number))
    store.add_trial(trial(2, config={"BLOCK_M": 99}))  # as fast as the best, but later
    store.add_trial(trial(4, outcome="wrong", measured_s=1e-9))
    store.add_trial(trial(5, outcome="timed_out", measured_s=None, study="hopeless"))
    hopeless, config = store.studies()
    assert (config.study, config.trials, config.failures) == ("config", 5, 1)
    assert config.best_s == trial(2).measured_s
    assert config.best_config == trial(2).config
    assert config.started == trial(0).created_at
    assert config.finished == trial(4).created_at
    assert (hopeless.trials, hopeless.failures) == (1, 1)
    assert hopeless.best_s is hopeless.best_config is None


def test_saving_a_plan_again_replaces_it(store, plan):
    store.save_plan(plan())
    later = plan().updated_at + timedelta(days=1)
    better = plan(key="beef", speedup=2.0, payload={"groups": []}, updated_at=later)
    store.save_plan(replace(better, created_at=later))
    assert store.plans() == [better]


def test_plans_of_a_bucket_come_newest_first(store, graph, plan):
    other = replace(graph, key="other-sizes")
    store.put_graph(other)
    later = plan().updated_at + timedelta(days=1)
    first = plan(bucket_key="bucket")
    second = plan(key="beef", graph_key=other.key, bucket_key="bucket", updated_at=later)
    store.save_plan(second)
    store.save_plan(first)
    wanted = {"bucket_key": "bucket", "device_key": first.device_key}
    assert store.plans(**wanted, versions=first.versions) == [second, first]
    assert store.plans(**wanted, versions={"torch": "2.12"}) == []
    assert store.plans(bucket_key="none") == []
    # Tuned again for these sizes alone, it still holds for its bucket.
    store.save_plan(plan(speedup=3.0))
    assert store.plan(first.graph_key, first.device_key, first.versions) == replace(
        first, speedup=3.0
    )


def test_plans_of_other_versions_stand_beside_it(store, plan):
    store.save_plan(plan())
    later = plan().updated_at + timedelta(days=1)
    other = plan(key="beef", versions={"torch": "2.12"}, name="gpt", updated_at=later)
    store.save_plan(other)
    assert store.plans() == [other, plan()]
    assert store.plans(name="bert") == [plan()]
    assert store.plans(graph_key="none") == []
    assert store.plan(other.graph_key, other.device_key, {"torch": "2.12"}) == other


def test_a_plan_is_found_by_name_or_the_start_of_its_key(store, plan):
    store.save_plan(plan())
    store.save_plan(plan(key="c0ff0000", versions={"torch": "2.12"}, name="bert-large"))
    assert store.find_plan("c0ffee").key == "c0ffee01"
    assert store.find_plan("bert").key == "c0ffee01"
    assert store.find_plan("bert-large").key == "c0ff0000"
    for prefix, named in [("c0ff", "c0ff0000"), ("bret", "bert"), ("", "bert"), ("zzz", "bert")]:
        with pytest.raises(PlanNotFound, match=named):
            store.find_plan(prefix)


def test_two_plans_of_one_name_are_told_apart_by_key(store, plan):
    store.save_plan(plan())
    store.save_plan(plan(key="beef", versions={"torch": "2.12"}))
    with pytest.raises(PlanNotFound, match=r"2 plans.*beef"):
        store.find_plan("bert")


def test_no_plan_at_all(store):
    with pytest.raises(PlanNotFound, match="tune something first"):
        store.find_plan("bert")


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_what_cannot_be_written_down_is_refused(store, trial, plan, number):
    for bad in (trial(config={"x": [number]}), trial(measured_s=number)):
        with pytest.raises(ValueError, match=r"JSON|finite"):
            store.add_trial(bad)
    with pytest.raises(ValueError, match="JSON"):
        store.save_plan(plan(payload={"x": number}))
    with pytest.raises(ValueError, match="64 bits"):
        store.add_trial(trial(hbm_bytes=2**63))
    with pytest.raises(ValueError, match="time zone"):
        store.add_trial(trial(created_at=datetime(2025, 1, 1)))
    assert store.trials() == []


def test_a_record_that_names_the_unknown_is_refused(store, trial, plan):
    with pytest.raises(StoreRefused, match="first"):
        store.add_trial(trial(device_key="never put"))
    with pytest.raises(StoreRefused, match="first"):
        store.save_plan(plan(graph_key="never put"))
    with pytest.raises(StoreRefused, match="first"):
        store.put_kernel(KernelRecord("k", "never put", "pointwise", {}))
    with pytest.raises(StoreRefused):
        store.add_trial(trial(outcome="fine"))
    assert store.trials() == []


def test_a_changed_payload_is_corrupt(store, trial, plan):
    store.add_trial(trial())
    store.save_plan(plan())
    change(store, "UPDATE plan SET payload = '{}'")
    change(store, "UPDATE trial SET config = :text", text='{"BLOCK_M":1,"num_warps":4}')
    change(store, "UPDATE graph SET payload = 'not JSON'")
    reads = [
        lambda: store.plan(plan().graph_key, plan().device_key, plan().versions),
        store.plans,
        lambda: store.find_plan("bert"),
    ]
    for read in reads:
        with pytest.raises(StoreCorrupt, match="table plan, key c0ffee01: payload"):
            read()
    with pytest.raises(StoreCorrupt, match="table trial, key 1: config"):
        store.trials()
    with pytest.raises(StoreCorrupt, match="table graph, key graph-1: payload"):
        store.graph("graph-1")
    assert len(store.problems()) == 3
    store.save_plan(plan())
    assert store.plans() == [plan()]


def test_a_newer_revision_is_left_alone(location, fill, plan):
    with Store.open(location) as store:
        fill(store).save_plan(plan())
        change(store, "UPDATE fusionplan_version SET version_num = '9999'")
    for read_only in (False, True):
        with pytest.raises(StoreNewer, match="9999"):
            Store.open(location, read_only=read_only)
    change(store, f"UPDATE fusionplan_version SET version_num = '{newest()}'")
    with Store.open(location) as store:
        assert store.plans() == [plan()]


def test_read_only_reads_and_never_writes(location, fill, plan, trial):
    with Store.open(location) as store:
        fill(store).save_plan(plan())
    with Store.open(location, read_only=True) as store:
        assert store.read_only
        assert store.plans() == [plan()]
        assert store.problems() == []
        for write in (lambda: store.save_plan(plan()), lambda: store.add_trial(trial())):
            with pytest.raises(StoreReadOnly):
                write()


def test_a_write_into_a_store_opened_to_be_read_asks_no_database(location, fill, trial):
    """A server that refuses it may be far, or be one that lets it through."""
    with Store.open(location) as store:
        fill(store)
    with Store.open(location, read_only=True) as store:
        asked = []
        event.listen(store._engine, "begin", asked.append)
        assert store.trials() == []
        assert asked
        asked.clear()
        with pytest.raises(StoreReadOnly):
            store.add_trial(trial())
        assert asked == []


@pytest.mark.parametrize("how", [{"create": False}, {"read_only": True}])
def test_a_store_that_is_not_there_is_not_made(location, how):
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="no store"):
            Store.open(location, **how)


def test_a_database_of_another_program_is_left_alone(location):
    engine = create_engine(location if "://" in location else f"sqlite:///{location}")
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE plan (price integer)"))
    with pytest.raises(StoreUnavailable, match="another program"):
        Store.open(location)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT price FROM plan")).all() == []
    engine.dispose()


def test_a_missing_table_is_corrupt(location):
    with Store.open(location) as store:
        change(store, "DROP TABLE plan")
    with pytest.raises(StoreCorrupt, match="table plan is missing"):
        Store.open(location)


def test_a_closed_store_says_so(location):
    with Store.open(location) as store:
        pass
    store.close()
    for use in (store.plans, store.problems):
        with pytest.raises(StoreUnavailable, match="closed"):
            use()


def test_threads_share_a_store(store, trial):
    ids = [[] for _ in range(4)]

    def work(mine):
        mine.extend(store.add_trial(trial(number)) for number in range(15))

    threads = [threading.Thread(target=work, args=(mine,)) for mine in ids]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ids[0] == ids[1] == ids[2] == ids[3]
    assert len(store.trials()) == len(set(ids[0])) == 15


def test_processes_share_a_store_from_its_first_moment(location, start_writer):
    """Both create and migrate it; where they overlap, both are told the same id."""
    writers = [start_writer(location, 0, 90), start_writer(location, 45, 90)]
    outputs = [writer.communicate(timeout=60)[0] for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0]
    told = [dict(map(int, line.split()) for line in output.splitlines()) for output in outputs]
    assert [len(each) for each in told] == [90, 90]
    with Store.open(location) as store:
        kept = {trial.config["BLOCK_M"]: trial.id for trial in store.trials()}
        assert len(store.trials()) == len(kept) == 135
        assert store.problems() == []
    assert told[0] | told[1] == kept
    assert all(told[0][number] == told[1][number] for number in range(45, 90))


def test_kill_loses_no_acknowledged_trial(location, start_writer):
    writer = start_writer(location, 0, 1_000_000)
    told = [writer.stdout.readline() for _ in range(40)]
    writer.kill()
    told += writer.communicate()[0].splitlines(keepends=True)
    # A line cut short by the kill acknowledges nothing.
    acknowledged = dict(map(int, line.split()) for line in told if line.endswith("\n"))
    assert len(acknowledged) >= 40
    with Store.open(location) as store:
        kept = {trial.config["BLOCK_M"]: trial.id for trial in store.trials()}
        assert store.problems() == []
    assert acknowledged.items() <= kept.items()
    assert len(kept) <= len(acknowledged) + 1
