"""The sample of trials in the tree, and how it is written and read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fusionplan.db import GraphRecord, KernelRecord, Snapshot, Store, TrialRecord
from fusionplan.planner.costs.device import H100, shipped
from fusionplan.planner.graph.graph import to_json
from fusionplan.planner.space.space import Space, space_of
from fusionplan.tuner.model_fit.accuracy import FAMILIES, samples_of
from fusionplan.tuner.records import trial_sample
from fusionplan.tuner.records.ledger import device_record
from fusionplan.tuner.trial.outcome import Candidate
from fusionplan.tuner.workers.lab import Group
from tuner_graphs import pointwise, softmax

SAMPLE = Path(__file__).parents[3] / "scripts" / "trials" / "h100.jsonl"
MOST_BYTES = 2_000_000


@pytest.fixture
def tuned() -> Snapshot:
    """Two models, a group each, some configs of both."""
    graphs, kernels, trials = [], [], []
    for model, graph in (("rows", softmax(512, 1024)), ("points", pointwise(256, 1024))):
        space = space_of(graph, H100)
        assert isinstance(space, Space)
        group = Group.of(graph, "group")
        graphs.append(GraphRecord(f"key of {model}", model, 3, {}))
        kernels.append(KernelRecord(group.key, f"key of {model}", "any", {"graph": to_json(graph)}))
        trials += [
            TrialRecord(
                study="s",
                level="kernel",
                subject=group.key,
                device_key=H100.key,
                versions={"codegen": "1"},
                config=Candidate.generated(config).to_json(),
                outcome="timed",
                timing="cold",
                measured_s=(20 + number) * 1e-6,
                registers=32 + number,
                spill_bytes=0,
            )
            for number, config in enumerate(list(space.enumerate())[:5])
        ]
    return Snapshot((device_record(H100),), tuple(graphs), tuple(kernels), tuple(trials), ())


def samples(snapshot: Snapshot, folder: Path):
    with Store.open(folder / "s.db") as store:
        store.merge(snapshot)
        read = samples_of(store, H100.key, H100)
        assert read.unread == 0
        return {(s.kernel, s.config): s for s in read.samples}


def test_a_sample_says_of_kernels_what_the_store_says(tuned, tmp_path):
    (tmp_path / "other").mkdir()
    before = samples(tuned, tmp_path)
    read = trial_sample.read(trial_sample.written([tuned], H100.key))
    after = samples(read, tmp_path / "other")
    assert len(before) == 10
    assert after.keys() == before.keys()
    for place, sample in after.items():
        assert sample.workload in ("rows", "points")
        assert sample.measured_s == pytest.approx(before[place].measured_s, rel=1e-4)
        assert replace(sample, workload="", measured_s=0.0) == replace(
            before[place], workload="", measured_s=0.0
        )


def test_a_sample_is_written_again_as_it_was(tuned):
    lines = list(trial_sample.written([tuned], H100.key))
    assert len(lines) == 3
    assert list(trial_sample.written([trial_sample.read(lines)], H100.key)) == lines


def test_of_a_config_tried_twice_the_later_time_counts(tuned):
    first = tuned.trials[0]
    later = replace(first, measured_s=1.0, created_at=first.created_at.replace(year=2999))
    found = trial_sample.read(
        trial_sample.written([replace(tuned, trials=(later, *tuned.trials))], H100.key)
    )
    assert len(found.trials) == 10
    assert max(trial.measured_s for trial in found.trials) == 1.0


def test_what_failed_or_ran_elsewhere_is_left_out(tuned):
    first, second, *_ = tuned.trials
    trials = (replace(first, outcome="wrong"), replace(second, device_key="another"))
    assert len(list(trial_sample.written([replace(tuned, trials=trials)], H100.key))) == 1


def test_a_file_that_is_no_sample_is_said_to_be_none():
    with pytest.raises(ValueError, match="names no device"):
        trial_sample.read(['{"model": "x"}'])


def test_the_sample_of_the_tree_is_small_and_can_be_read(tmp_path):
    assert SAMPLE.stat().st_size <= MOST_BYTES
    given = trial_sample.read(SAMPLE.read_text().splitlines())
    assert len(given.graphs) >= 4
    with Store.open(tmp_path / "s.db") as store:
        store.merge(given)
        read = samples_of(store, given.devices[0].key, shipped(given.devices[0].profile), 60)
    assert len(read.samples) >= 50
    assert {sample.family for sample in read.samples} <= {*FAMILIES}
