"""The ledger read back, the fit of a profile to it, and its place in the store."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from fusionplan.db import CalibrationRecord, GraphRecord, KernelRecord, Store, TrialRecord
from fusionplan.planner.costs.cost import Cost
from fusionplan.planner.costs.device import H100, H200, DeviceProfile, shipped
from fusionplan.planner.graph.graph import to_json
from fusionplan.planner.space.space import Space, space_of
from fusionplan.tuner.model_fit import accuracy, refit
from fusionplan.tuner.model_fit.accuracy import Sample, predicted_s, samples_of, spearman
from fusionplan.tuner.records.ledger import device_record
from fusionplan.tuner.trial.outcome import Candidate
from fusionplan.tuner.workers.lab import Group
from tuner_graphs import pointwise, softmax

VERSIONS = {"torch": "2.11.0", "triton": "3.6.0", "cuda": "13.0", "codegen": "3"}
TRUE = refit.with_factors(H200, {"bandwidth": 0.6, "latency_s": 1.5, "launch_s": 1.4})
"""A device that is not what its profile says."""


GRAPHS = (
    pointwise(8192, 4096),
    pointwise(256, 1024),
    softmax(8192, 4096, "bfloat16"),
    softmax(4096, 32768),
    softmax(512, 1024),
    softmax(65536, 512),
)


def noise(number: int) -> float:
    return 1.0 + 0.04 * math.sin(7.0 * number)


def fill(store: Store, truth: DeviceProfile, each: int = 32) -> int:
    """Trials of several workloads, timed by the model with the true profile; how many."""
    store.put_device(device_record(H200))
    count = 0
    for number, graph in enumerate(GRAPHS):
        group = Group.of(graph, f"group {number}")
        space = space_of(graph, truth)
        assert isinstance(space, Space)
        store.put_graph(GraphRecord(f"graph-{number}", f"workload {number}", 3, {"x": number}))
        payload = {"graph": to_json(graph), "form": []}
        store.put_kernel(KernelRecord(group.key, f"graph-{number}", "pointwise", payload))
        configs = list(space.enumerate())
        for config in configs[:: max(1, len(configs) // each)]:
            cost = space.judge(config)
            if isinstance(cost, Cost):
                count += 1
                store.add_trial(trial(group.key, config, cost.seconds * noise(count), cost))
    return count


def trial(kernel, config, seconds, cost):
    return TrialRecord(
        study="s",
        level="kernel",
        subject=kernel,
        device_key=H200.key,
        versions=VERSIONS,
        config=Candidate("triton", config).to_json(),
        outcome="timed",
        timing="cold",
        measured_s=seconds,
        registers=cost.registers + 4,
        spill_bytes=0,
    )


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "s.db") as opened:
        yield opened


@pytest.fixture(scope="module")
def known(tmp_path_factory) -> tuple[Sample, ...]:
    with Store.open(tmp_path_factory.mktemp("known") / "s.db") as opened:
        fill(opened, TRUE)
        return samples_of(opened, H200.key, H200).samples


# --- reading ---


def test_every_timed_kernel_is_estimated_again(store):
    count = fill(store, H200)
    read = samples_of(store, H200.key, H200)
    assert (len(read.samples), read.unread) == (count, 0)
    assert {s.family for s in read.samples} >= {"pointwise", "held reduction", "looped reduction"}
    for number, sample in enumerate(read.samples, 1):
        expected = predicted_s(sample, H200)
        assert sample.measured_s == pytest.approx(expected * noise(number), rel=1e-9)


def test_the_last_version_of_a_trial_counts_and_damage_is_counted(store):
    count = fill(store, H200)
    first = store.trials()[0]
    store.add_trial(replace(first, id=None, versions=VERSIONS | {"codegen": "9"}, measured_s=1.0))
    store.add_trial(replace(first, id=None, config={"lowering": "triton", "blocks": "?"}))
    odd = Candidate.from_json(first.config).config
    store.put_graph(GraphRecord("g", "g", 1, {}))
    store.put_kernel(KernelRecord("broken", "g", "pointwise", {"graph": {"nodes": 7}}))
    store.add_trial(replace(first, id=None, subject="broken"))
    store.add_trial(replace(first, id=None, config=Candidate("aten").to_json()))
    read = samples_of(store, H200.key, H200)
    assert (len(read.samples), read.unread) == (count, 2)
    (found,) = [s for s in read.samples if s.config == odd and s.kernel == first.subject]
    assert found.measured_s == 1.0


# --- figures ---


def test_ranks_and_regrets(known):
    kernel = known[0].kernel
    some = [s for s in known if s.kernel == kernel][:6]
    made = [replace(s, measured_s=float(i)) for i, s in enumerate(some, 1)]
    (every, family) = accuracy.accuracy(made, [2.0, 1.0, 3.0, 4.0, 5.0, 6.0])
    assert (every.family, family.family) == ("all", made[0].family)
    assert family.spearman == pytest.approx(1 - 6 * 2 / (6 * 35))
    assert family.within == family.spearman
    assert family.regret == family.mean_regret == 1.0
    assert family.recall == 1.0
    assert family.mape == pytest.approx((1.0 + 0.5) / 6)
    assert family.registers == 1.0
    worst = accuracy.accuracy(made, [6.0, 5.0, 4.0, 3.0, 2.0, 1.0])[0]
    assert (worst.spearman, worst.regret, worst.recall) == (-1.0, 5.0, 0.0)


def test_too_few_trials_have_no_rank(known):
    (found, _) = accuracy.accuracy(known[:2], [1.0, 2.0])
    assert (found.spearman, found.within, found.regret, found.recall) == (None,) * 4
    assert accuracy.accuracy([], []) == []
    assert spearman([1, 1, 2], [5, 5, 9]) == pytest.approx(1.0)
    assert spearman([1, 1, 1], [1, 2, 3]) is None


def test_hopeless_kernels_and_those_foreseen(known):
    made = [replace(s, kernel="k", measured_s=float(i)) for i, s in enumerate(known[:5], 1)]
    made[4] = replace(made[4], spill_bytes=600)
    found = accuracy.hopeless(made, [1.0, 1.0, 1.0, 9.0, 1.0])
    assert (found.spilled, found.foreseen) == (1, 0)
    assert (found.slow, found.foreseen_slow) == (3, 1)


# --- the fit ---


def test_a_fit_finds_what_the_device_is(known):
    found = refit.refit(known, H200)
    assert found is not None
    assert found.is_better
    assert found.factors["bandwidth"] == pytest.approx(0.6, rel=0.08)
    error = [abs(p / s.measured_s - 1) for s, p in zip(known, found.unseen_s, strict=True)]
    before = [abs(p / s.measured_s - 1) for s, p in zip(known, found.before_s, strict=True)]
    assert sum(error) < 0.35 * sum(before)
    assert DeviceProfile.from_json(found.profile.to_json()) == found.profile


@pytest.mark.slow
def test_a_fit_that_does_not_help_unseen_trials_is_not_used(known):
    right = tuple(replace(s, measured_s=predicted_s(s, H200)) for s in known)
    found = refit.refit(right, H200)
    assert found is not None
    assert not found.is_better
    # Each workload errs in another way, of which the others say nothing.
    kernels = sorted({s.workload for s in right})
    odd = [
        replace(s, measured_s=s.measured_s * (3.0 if kernels.index(s.workload) % 2 else 0.4))
        for s in right
    ]
    strange = refit.refit(odd, H200)
    assert strange is not None
    assert not strange.is_better


def test_too_few_trials_or_workloads_are_not_fitted(known):
    assert refit.refit(known[: refit.ENOUGH - 1], H200) is None
    one = [replace(s, workload="one") for s in known]
    assert refit.refit(one, H200) is None


def test_factors_scale_what_they_name():
    half = refit.with_factors(H200, {"bandwidth": 0.5})
    for size, seconds in H200.copy_s:
        assert half.stream_s(size) - half.launch_s == pytest.approx(2 * (seconds - H200.launch_s))
    late = refit.with_factors(H200, {"launch_s": 2.0})
    assert late.stream_s(0) == pytest.approx(2 * H200.launch_s)
    assert late.stream_s(1e9) - late.launch_s == pytest.approx(H200.stream_s(1e9) - H200.launch_s)
    assert refit.with_factors(H200, {"sfu_rate": 3.0}).sfu_rate == 48.0


# --- in the store ---


@pytest.mark.slow
def test_a_profile_is_fitted_once_enough_trials_are_new_and_can_be_undone(store):
    assert refit.refitted_after_tune(store, H200) is None
    count = fill(store, TRUE)
    assert refit.calibrated(store, H200) == H200
    said = refit.refitted_after_tune(store, H200)
    assert said == f"the cost model's profile is fitted to {count} trials"
    record = store.calibration(H200.key)
    assert record.source == "refitted"
    assert record.evidence["trials"] == count
    assert record.evidence["mape"][1] < record.evidence["mape"][0]
    used = refit.calibrated(store, H200)
    assert used.key == H200.key
    assert used.bandwidth == pytest.approx(0.6 * H200.bandwidth, rel=0.08)
    assert refit.refitted_after_tune(store, H200) is None  # no new trials
    store.undo_calibration(H200.key)
    assert refit.calibrated(store, H200) == H200


@pytest.mark.slow
def test_a_fit_begins_with_what_was_measured(store):
    fill(store, TRUE)
    measured = replace(H200, launch_s=3e-6)
    store.add_calibration(
        CalibrationRecord(
            device_key=H200.key, source="measured", profile=measured.to_json(), evidence={}
        )
    )
    assert refit.calibrated(store, H200) == measured
    assert refit.start_of(store, H200) == measured
    refit.refitted_after_tune(store, H200)
    assert store.calibration(H200.key).source == "refitted"
    assert refit.start_of(store, H200) == measured  # never factors on factors


@pytest.mark.parametrize(
    "change",
    [
        {"launch_s": -1.0},
        {"launch_s": "soon"},
        {"copy_s": []},
        {"copy_s": [[2.0, 1.0], [1.0, 2.0]]},
        {"name": "another"},
        {"fma_rate": 0.0},
    ],
)
def test_a_record_that_is_no_profile_of_the_device_is_as_good_as_none(store, change):
    store.put_device(device_record(H200))
    store.add_calibration(
        CalibrationRecord(
            device_key=H200.key, source="measured", profile=H200.to_json() | change, evidence={}
        )
    )
    assert refit.calibrated(store, H200) == H200


def test_the_shipped_profile_keeps_a_devices_own_sizes():
    odd = replace(H200, sm_count=100, launch_s=9e-6)
    assert shipped(odd.to_json()) == replace(H200, sm_count=100)
    other = replace(H100, name="NVIDIA L40S", sm_count=142)
    assert shipped(other.to_json()) == replace(other, estimated=True)
    old = {k: v for k, v in H200.to_json().items() if k not in ("div_rate", "generated")}
    assert shipped(old | {"gone": 1}) == H200
