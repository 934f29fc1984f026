"""Jobs: open while their tune renews them and before their deadline, by the database's clock."""

from dataclasses import replace

import pytest
from fusionplan.db import JobRecord, StoreCorrupt, StoreRefused
from sqlalchemy import create_engine, text

pytestmark = pytest.mark.process


@pytest.fixture
def job(device, graph, plan):
    return JobRecord(
        key="job-1",
        tune="tune-1",
        name="bert",
        graph_key=graph.key,
        device_key=device.key,
        versions=plan().versions,
        payload={"graph": {"nodes": []}, "trials": 64},
    )


def keys(store, tune=None):
    return [each.job.key for each in store.jobs.open(tune)]


def test_a_job_is_open_until_it_is_ended(store, job):
    store.jobs.offer(job, 100, 60)
    store.jobs.offer(replace(job, key="job-2", tune="tune-2"), 100, 60)
    (first, second) = store.jobs.open()
    assert first.job == job
    assert 90 < first.left_s <= 100
    assert keys(store, "tune-2") == [second.job.key] == ["job-2"]
    store.jobs.end(key=job.key)
    assert not store.jobs.is_open(job.key)
    assert keys(store) == ["job-2"]
    store.jobs.end(tune="tune-2")
    assert store.jobs.open() == []
    assert store.counts()["job"] == 0


def test_the_job_of_a_dead_tune_is_closed_and_goes_with_the_next(store, job):
    store.jobs.offer(job, 1000, 30)
    assert store.jobs.is_open(job.key)
    store.jobs.renew(job.tune, 600)
    engine = create_engine(store.url)
    with engine.begin() as connection:  # as if a minute had passed
        connection.execute(text("UPDATE job SET expires_at = expires_at - 60"))
    engine.dispose()
    assert store.jobs.is_open(job.key)
    store.jobs.renew(job.tune, 0.0)
    assert not store.jobs.is_open(job.key)
    assert store.jobs.open() == []
    assert store.claim_name("lost", "dead", 0.0)
    assert store.claim_name("kept", "alive", 60)
    store.jobs.offer(replace(job, key="job-2"), 100, 60)
    assert (store.counts()["job"], store.counts()["claim"]) == (1, 1)


def test_no_job_is_open_after_its_deadline(store, job):
    store.jobs.offer(job, 0.0, 60)
    assert not store.jobs.is_open(job.key)
    assert store.jobs.open() == []


def test_a_job_is_told_more(store, job):
    store.jobs.offer(job, 100, 60)
    store.jobs.add(job.key, {"covering": None})
    assert store.jobs.payload(job.key) == {**job.payload, "covering": None}
    store.jobs.end(key=job.key)
    store.jobs.add(job.key, {"covering": None})
    assert store.jobs.payload(job.key) is None


def test_a_job_names_a_device_of_the_store(store, job):
    with pytest.raises(StoreRefused):
        store.jobs.offer(replace(job, device_key="unknown"), 100, 60)


def test_a_job_that_was_changed_is_not_read(store, job):
    store.jobs.offer(job, 100, 60)
    engine = create_engine(store.url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE job SET payload = '{}'"))
    engine.dispose()
    with pytest.raises(StoreCorrupt, match="table job, key job-1"):
        store.jobs.open()
    assert any("table job" in problem for problem in store.problems())
