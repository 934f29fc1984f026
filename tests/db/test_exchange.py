"""Records from one store into another: nothing is lost, nothing is there twice."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from fusionplan.db import Counts, Merged, Snapshot, Store, StoreError

pytestmark = pytest.mark.process

MODELLED = {"evidence": "modelled", "speedup": None}


@pytest.fixture
def given(device, graph, kernel, trial, plan):
    """A plan with all that belongs to it."""
    return Snapshot((device,), (graph,), (kernel,), (trial(1), trial(2)), (plan(),))


@pytest.fixture
def empty(location):
    with Store.open(location) as store:
        yield store


def untold(snapshot):
    """Without what only a store gives."""
    return replace(snapshot, trials=tuple(replace(t, id=None) for t in snapshot.trials))


def test_all_of_a_store_is_given_and_taken(empty, given, tmp_path):
    one = Counts(added=1)
    assert empty.merge(given) == Merged(one, one, one, Counts(added=2), one)
    found = empty.snapshot()
    assert untold(found) == given
    with Store.open(tmp_path / "second.db") as second:
        second.merge(found)
        assert untold(second.snapshot()) == given
        assert second.problems() == []


def test_a_second_time_changes_nothing(empty, given):
    empty.merge(given)
    before = empty.snapshot()
    one = Counts(kept=1)
    assert empty.merge(given) == Merged(one, one, one, Counts(kept=2), one)
    assert empty.snapshot() == before
    assert empty.count_trials() == 2


def test_what_the_store_has_stays(empty, given, device, trial):
    """Its device's calibration, its own measurement of the same candidate, its other trials."""
    own = replace(device, profile={"hbm": [1.0, 2]})
    empty.merge(replace(given, devices=(own,), trials=(trial(1, measured_s=7.0), trial(9))))
    merged = empty.merge(given)
    assert (merged.devices, merged.trials) == (Counts(kept=1), Counts(added=1, kept=1))
    assert empty.device(device.key).profile == own.profile
    assert sorted(t.config["BLOCK_M"] for t in empty.trials()) == [1, 2, 9]
    assert {t.measured_s for t in empty.trials() if t.config["BLOCK_M"] == 1} == {7.0}


def test_a_transient_trial_gives_way(empty, given, trial):
    empty.merge(replace(given, trials=(trial(1, outcome="timed_out", transient=True),)))
    (before,) = empty.trials()
    assert empty.merge(given).trials == Counts(added=1, replaced=1)
    (after,) = [t for t in empty.trials() if t.id == before.id]
    assert (after.outcome, after.transient) == ("timed", False)


@pytest.mark.parametrize("stored, better", [("measured", False), ("modelled", True)])
def test_the_better_plan_is_kept(empty, given, plan, stored, better):
    first = plan(**(MODELLED if stored == "modelled" else {}))
    empty.merge(replace(given, plans=(first,)))
    other = plan(name="other") if better else plan(name="other", **MODELLED)
    merged = empty.merge(replace(given, plans=(other,)))
    assert merged.plans == (Counts(replaced=1) if better else Counts(kept=1))
    assert [p.name for p in empty.plans()] == ["other" if better else "bert"]


def test_what_stays_of_a_plan_that_gives_way(empty, given, plan):
    """When it was first made, and its bucket: as where a tune replaces it."""
    first = plan(bucket_key="bucket-1", created_at=datetime(2025, 1, 2, tzinfo=UTC), **MODELLED)
    empty.merge(replace(given, plans=(first,)))
    other = plan(bucket_key=None, created_at=datetime(2026, 1, 2, tzinfo=UTC))
    assert empty.merge(replace(given, plans=(other,))).plans == Counts(replaced=1)
    (found,) = empty.plans()
    assert found.evidence == other.evidence
    assert (found.bucket_key, found.created_at) == ("bucket-1", first.created_at)


def test_a_fault_undoes_all_of_it(empty, given, trial):
    """A trial of a device that is nowhere: neither it nor what came before it is kept."""
    with pytest.raises(StoreError):
        empty.merge(replace(given, trials=(trial(1, device_key="nowhere"),)))
    assert empty.snapshot() == Snapshot()


def test_only_what_belongs_to_the_chosen_plans(empty, given, device, graph, kernel, trial, plan):
    """Another graph's kernel is taken along where a plan names it; trials of other devices not."""
    others = replace(device, key="dev-2"), replace(graph, key="graph-2")
    shared = replace(kernel, key="kernel-2", graph_key="graph-2")
    lone = replace(kernel, key="kernel-3", graph_key="graph-2")
    more = Snapshot(
        (others[0],),
        (others[1],),
        (shared, lone),
        (
            trial(4, subject="kernel-2"),
            trial(5, subject="kernel-3"),
            trial(6, subject="kernel-2", device_key="dev-2"),
            trial(7, subject="kernel-2", transient=True, outcome="crashed"),
        ),
        (plan(key="c0ffee02", graph_key="graph-2", name="second"),),
    )
    empty.merge(given)
    empty.merge(more)
    found = empty.snapshot(["c0ffee01"], ["kernel-2"])
    assert [d.key for d in found.devices] == ["dev-1"]
    assert [g.key for g in found.graphs] == ["graph-1", "graph-2"]
    assert sorted(k.key for k in found.kernels) == ["kernel-1", "kernel-2"]
    assert sorted(t.config["BLOCK_M"] for t in found.trials) == [1, 2, 4]
    assert [p.name for p in found.plans] == ["bert"]
