"""A store as years of tuning leave it: no question reads it whole."""

import importlib.util
from pathlib import Path

import pytest
from fusionplan.db import About, Store
from sqlalchemy import event

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def large():
    """scripts/large_store.py, which the tests use with fewer rows."""
    spec = importlib.util.spec_from_file_location("large_store", ROOT / "scripts/large_store.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def filled(large, tmp_path_factory):
    path = tmp_path_factory.mktemp("large") / "plans.db"
    large.fill(path, 2000, 40)
    with Store.open(path, read_only=True) as store:
        yield store


def plans_of(store: Store, ask) -> list[str]:
    """How SQLite goes about the statements of a question."""
    asked: list[tuple[str, object]] = []

    def remember(connection, cursor, statement, parameters, context, many):
        asked.append((statement, parameters))

    event.listen(store._engine, "before_cursor_execute", remember)
    try:
        ask(store)
    finally:
        event.remove(store._engine, "before_cursor_execute", remember)
    with store._engine.connect() as connection:
        return [
            row[3]
            for statement, parameters in asked
            for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
        ]


def relatives(store: Store) -> object:
    return store.relatives(store.kernel("kernel-00007"), 64)


@pytest.mark.parametrize(
    "ask",
    [
        lambda s: s.plan("graph-00001", "device-0", {}),
        lambda s: s.plans(bucket_key="bucket-00001", device_key="device-0", versions={}),
        lambda s: s.plans(limit=1),
        lambda s: s.trials(subject="kernel-00001", device_key="device-0", versions={}),
        lambda s: s.studies(limit=50),
        lambda s: s.count_studies(),
        lambda s: s.count_trials(level="kernel", device_key="device-0", outcome="timed"),
        relatives,
        lambda s: s.best_so_far([1, 2, 3]),
    ],
    ids=["plan", "bucket", "newest", "trials", "studies", "count", "due", "relatives", "best"],
)
def test_an_index_answers(filled, ask):
    steps = plans_of(filled, ask)
    assert any("INDEX" in step for step in steps), steps
    tables = [s for s in steps if s.startswith("SCAN") and "INDEX" not in s and "(sub" not in s]
    assert not [s for s in tables if s.split()[1] in ("trial", "plan", "kernel", "graph")], steps


def test_the_answers_are_right(filled, large):
    assert len(filled.studies()) == filled.count_studies() == 32
    (latest,) = filled.studies(limit=1)
    assert latest == filled.studies()[0]
    every = filled.trials()
    assert len(every) == 2000
    timed = [t for t in every if t.outcome == "timed"]
    assert filled.count_trials(outcome="timed") == len(timed)
    for study in filled.studies(about=About(study="fused_3")):
        own = [t for t in timed if t.study == study.study]
        assert study.best_s == min(t.measured_s for t in own)
    kernel = [t for t in timed if t.subject == "kernel-00003"]
    least, better = 1.0, []
    for trial in kernel:
        if trial.measured_s < least:
            least = trial.measured_s
            better.append(trial)
    assert filled.trials(about=About(kernel="kernel-00003"), best=True) == better
    assert filled.best_so_far([kernel[-1].id]) == {kernel[-1].id: least}
    assert filled.trials(about=About(graph="graph-00003"), outcome="timed") == kernel
    assert [t.id for t in filled.trials(after=1990)] == list(range(1991, 2001))
    assert filled.problems() == []


def test_relatives_are_the_winners_of_other_sizes(large, tmp_path):
    path = tmp_path / "plans.db"
    large.fill(path, large.EACH * (large.FORMS + 3), 4)
    with Store.open(path, read_only=True) as store:
        own = store.kernel("kernel-00001")
        (winner,) = store.relatives(own, 64)
        assert winner.subject == f"kernel-{large.FORMS + 1:05}"
        times = [t.measured_s for t in store.trials(subject=winner.subject, outcome="timed")]
        assert winner.measured_s == min(times)
        assert store.relatives(own, 0) == []
