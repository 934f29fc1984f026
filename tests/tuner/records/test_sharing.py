"""Several tuners of one model on one store: each candidate is measured by one of them."""

import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from fusionplan.db import Store
from fusionplan.planner.config import Config
from fusionplan.planner.costs.device import builtin
from fusionplan.planner.graph.graph import key
from fusionplan.planner.space.space import space_of
from fusionplan.tuner.progress.progress import RecordedProgress
from fusionplan.tuner.records import ledger as ledgers
from fusionplan.tuner.records.findings import Findings, GroupFindings
from fusionplan.tuner.records.ledger import Ledger, device_record, graph_record
from fusionplan.tuner.search.config_search import tune_group
from fusionplan.tuner.search.group_trials import Budget
from fusionplan.tuner.search.runoff import SharedSearch
from fusionplan.tuner.trial.outcome import (
    ATEN,
    Candidate,
    Crashed,
    Failure,
    ProgramResources,
    Timed,
)
from fusionplan.tuner.workers.lab import Group
from tuner_fakes import FINE, FakeLab
from tuner_graphs import pointwise

H200 = builtin("h200")
VERSIONS = {"torch": "2", "codegen": "1"}
GRAPH = pointwise(512, 1000)
GROUP = Group.of(GRAPH, "g")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    with Store.open(tmp_path / "plans.db") as store:
        store.put_device(device_record(H200))
        store.put_graph(graph_record(GRAPH, key(GRAPH), "test"))
    return tmp_path / "plans.db"


def slow(group: Group, candidate: Candidate) -> float | Failure:
    """A measurement takes a moment, so that the tuners meet."""
    time.sleep(0.01)
    if candidate.config is None:
        return 1.0
    return 0.1 + 0.01 * candidate.config.num_warps + 1e-6 * dict(candidate.config.blocks)["x0"]


def tune(store: Store, lab: FakeLab, trials: int, until: float = 60.0) -> GroupFindings:
    shared = SharedSearch(
        lab, Ledger(store, H200.key, VERSIONS, key(GRAPH)), Findings(), RecordedProgress(), seed=0
    )
    limit = time.monotonic() + until
    return tune_group(GROUP, space_of(GRAPH, H200), shared, Budget(trials, limit))


def test_tuners_share_the_candidates_out(place: Path):
    labs = [FakeLab(slow) for _ in range(4)]
    found: list[GroupFindings] = []

    def run(lab: FakeLab) -> None:
        with Store.open(place) as store:
            found.append(tune(store, lab, 24))

    threads = [threading.Thread(target=run, args=(lab,)) for lab in labs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    measured = Counter(candidate for lab in labs for _, candidate in lab.measured)
    assert max(measured.values()) == 1
    assert measured[ATEN] == 1
    assert sum(len(lab.measured) > 1 for lab in labs) > 1
    assert all(each.trials >= 24 for each in found)
    assert all(ATEN in each.outcomes for each in found)
    with Store.open(place) as store:
        assert len(store.trials(subject=key(GRAPH))) == len(measured)
        assert store.counts()["claim"] == 0


def claimed(store: Store, *candidates: Candidate) -> Ledger:
    """The ledger of a tuner that has claimed these and says no more."""
    dead = Ledger(store, H200.key, VERSIONS, key(GRAPH))
    for candidate in candidates:
        assert dead.claim(GROUP, candidate)
    assert dead._alive is not None
    dead._alive.stop()
    return dead


def test_what_a_dead_tuner_had_claimed_is_taken_over(place: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ledgers, "LEASE_S", 1.0)
    with Store.open(place) as store:
        begin = time.monotonic()
        claimed(store, ATEN)
        found = tune(store, FakeLab(slow), 4)
        assert time.monotonic() - begin > 0.5
        assert ATEN in found.outcomes


def test_what_was_made_is_nobodys_to_make_again(place: Path):
    with Store.open(place) as store:
        first, second = (Ledger(store, H200.key, VERSIONS, key(GRAPH)) for _ in range(2))
        store.put_kernel(first._record(GROUP))
        first.add(GROUP, ATEN, Timed(1.0, 0.0, 3))
        assert not second.claim(GROUP, ATEN)
        failed = Candidate("vendor", options="attention")
        first.add(GROUP, failed, Crashed("killed", transient=True))
        assert second.claim(GROUP, failed)
        second.let_go()
        assert [k.candidate for k in second.news(GROUP)] == [ATEN, failed]


def test_a_tuner_that_waits_long_is_still_alive(place: Path, monkeypatch: pytest.MonkeyPatch):
    beaten = threading.Semaphore(0)

    class Quick(ledgers.Heartbeat):
        def __init__(self, beat, every_s: float) -> None:
            def counted() -> None:
                beat()
                beaten.release()

            assert every_s <= ledgers.LEASE_S / 2
            super().__init__(counted, 0.01)

    monkeypatch.setattr(ledgers, "Heartbeat", Quick)
    with Store.open(place) as store:
        first, second = (Ledger(store, H200.key, VERSIONS, key(GRAPH)) for _ in range(2))
        assert first.claim(GROUP, ATEN)
        store.renew(first.holder, 0.0)  # as if it were over
        for _ in range(2):  # one may have been under way
            assert beaten.acquire(timeout=60)
        assert not second.claim(GROUP, ATEN)
        first.let_go()
        assert second.claim(GROUP, ATEN)
        second.let_go()


def test_a_claim_that_was_lost_is_not_measured(place: Path, monkeypatch: pytest.MonkeyPatch):
    """A database so busy that the heartbeat comes too late: what another took over is the other's,
    what nobody took is claimed again."""
    monkeypatch.setattr(ledgers, "LEASE_S", 0.2)
    monkeypatch.setattr(ledgers.Heartbeat, "_run", lambda self: None)
    taken: list[Candidate] = []

    def compiled(config: Config) -> ProgramResources:
        if len(taken) < 2:
            candidate = Candidate("triton", config)
            taken.append(candidate)
            time.sleep(0.3)
            if len(taken) == 1:
                with Store.open(place) as store:
                    other = Ledger(store, H200.key, VERSIONS, key(GRAPH))
                    assert other.claim(GROUP, candidate)
                    other.add(GROUP, candidate, Timed(7.0, 0.0, 3))
        return FINE

    lab = FakeLab(slow, resources=compiled)
    with Store.open(place) as store:
        found = tune(store, lab, 6)
    measured = [candidate for _, candidate in lab.measured]
    assert taken[0] not in measured
    assert found.outcomes[taken[0]] == Timed(7.0, 0.0, 0)
    assert measured.count(taken[1]) == 1


def test_ctrl_c_lets_go(place: Path):
    with Store.open(place) as store:
        with pytest.raises(KeyboardInterrupt):
            tune(store, FakeLab(slow, interrupt_at=3), 24)
        assert store.counts()["claim"] == 0


def test_a_candidate_that_others_are_at_is_passed_over(
    place: Path, monkeypatch: pytest.MonkeyPatch
):
    """And nobody waits for it once there have been trials enough."""
    ranked: list[Config] = [config for config, _ in space_of(GRAPH, H200).ranked(6)]
    with Store.open(place) as store:
        monkeypatch.setattr(ledgers, "LEASE_S", 600.0)
        busy = claimed(store, *(Candidate("triton", c) for c in ranked))
        begin = time.monotonic()
        found = tune(store, FakeLab(slow), 8, until=120.0)
        assert time.monotonic() - begin < 60
        assert not any(Candidate("triton", config) in found.outcomes for config in ranked)
        assert found.trials == 8
        busy.let_go()
