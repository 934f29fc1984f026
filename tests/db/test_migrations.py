"""The schema's revisions, alone and with Optuna in the same database."""

import subprocess
import sys

import alembic.command
import optuna
import pytest
import quick_store
from fusionplan.db import Store, StoreUnavailable, schema
from fusionplan.db.migrate import check, current, downgrade, heads, upgrade
from fusionplan.db.models import TABLES, Base
from optuna.storages import RDBStorage
from sqlalchemy import create_engine, inspect, text

pytestmark = pytest.mark.process

optuna.logging.set_verbosity(optuna.logging.WARNING)


@pytest.fixture(autouse=True)
def migrated(monkeypatch):
    """As in a process of its own: tables are made by the migrations. Gives the other tests' way."""
    quick = schema.upgrade
    monkeypatch.setattr(schema, "upgrade", quick.__wrapped__)
    return quick


@pytest.fixture
def database(location):
    url = location if "://" in location else f"sqlite:///{location}"
    engine = create_engine(url)
    yield engine
    engine.dispose()


def tables(database):
    return set(inspect(database).get_table_names())


def test_up_down_up(database):
    assert current(database) is None
    upgrade(database)
    assert (current(database),) == heads()
    assert tables(database) == TABLES | {schema.VERSION_TABLE}
    assert schema.differences(database) == []
    downgrade(database)
    assert current(database) is None
    assert not TABLES & tables(database)
    upgrade(database)
    assert schema.differences(database) == []


def test_a_schema_that_departs_from_the_models_is_seen(database):
    upgrade(database)
    with database.begin() as connection:
        connection.execute(text("ALTER TABLE trial DROP COLUMN compile_s"))
        connection.execute(text("DROP INDEX ix_plan_name"))
    assert len(schema.differences(database)) == 2


def test_stores_of_other_tests_have_the_same_tables(tmp_path, monkeypatch, migrated):
    made = []
    for name, way in (("migrated", schema.upgrade), ("first", migrated), ("later", migrated)):
        monkeypatch.setattr(schema, "upgrade", way)
        Store.open(tmp_path / name).close()
        engine = create_engine(f"sqlite:///{tmp_path / name}")
        with engine.connect() as connection:
            found = quick_store.statements(connection)
        # Alembic names constraints and makes indices in no order.
        lines = ([line.strip(" ,\t") for line in each.splitlines()] for each in found)
        made.append(sorted(sorted(each) for each in lines))
        assert len(found) > len(TABLES)
        assert (current(engine),) == heads()
        engine.dispose()
    assert made[0] == made[1] == made[2]


def test_every_payload_has_its_digest():
    for table in Base.metadata.tables.values():
        for name in ("payload", "profile", "config", "versions"):
            assert (name in table.c) == (f"{name}_sha256" in table.c)


def test_a_store_of_the_first_revision_keeps_what_it_holds(location, database, fill, trial):
    with Store.open(location) as store:
        fill(store).add_trial(trial())
    downgrade(database, "0001")
    assert "calibration" not in tables(database)
    with Store.open(location) as store:
        assert store.problems() == []
        assert len(store.trials()) == 1
        assert store.calibration(trial().device_key) is None


def test_a_store_taken_down_is_brought_up_again(location, database):
    Store.open(location).close()
    downgrade(database)
    with pytest.raises(StoreUnavailable, match="no store"):
        Store.open(location, read_only=True)
    with Store.open(location) as store:
        assert store.problems() == []


def test_an_older_store_is_migrated_by_a_writer_only(location, monkeypatch):
    Store.open(location).close()
    asked = []
    monkeypatch.setattr(schema, "newest", lambda: "later")
    monkeypatch.setattr(schema, "upgrade", asked.append)
    with pytest.raises(StoreUnavailable, match="older schema revision 0"):
        Store.open(location, read_only=True)
    assert asked == []
    with Store.open(location) as store:
        assert len(asked) == 1
        assert store.problems() == [f"schema revision is {schema.revisions()[-1]}, not later"]


def test_plans_outlive_the_bucket(location, database, fill, plan):
    with Store.open(location) as store:
        fill(store).save_plan(plan(bucket_key="bucket"))
    downgrade(database, "0001")
    assert current(database) == "0001"
    columns = {c["name"] for c in inspect(database).get_columns("plan")}
    assert "bucket_key" not in columns
    with Store.open(location) as store:  # which migrates it
        assert store.plans() == [plan()]
        assert store.problems() == []
    assert schema.differences(database) == []


def test_a_migration_that_fails_leaves_nothing(location, database, monkeypatch):
    def fail(*arguments):
        command(*arguments)
        raise KeyboardInterrupt

    command = alembic.command.upgrade
    with monkeypatch.context() as patch:
        patch.setattr(alembic.command, "upgrade", fail)
        with pytest.raises(KeyboardInterrupt):
            Store.open(location)
    assert tables(database) == set()
    with Store.open(location) as store:
        assert store.problems() == []


def test_the_check_for_developers():
    assert check() == []


def test_the_check_from_the_command_line():
    command = [sys.executable, "-m", "fusionplan.db.migrate", "--check"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": ":".join(filter(None, sys.path))},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "agree" in done.stdout


def study_runs(url):
    """A study in the store's own database, as the tuner keeps it."""
    storage = RDBStorage(url)
    study = optuna.create_study(storage=storage, study_name="tiles", load_if_exists=True)
    study.optimize(lambda trial: trial.suggest_int("x", 0, 9) ** 2, n_trials=2)
    storage.remove_session()
    storage.engine.dispose()
    return len(study.trials)


def revisions(database):
    with database.connect() as connection:
        return tuple(
            connection.execute(text(f"SELECT version_num FROM {table}")).scalars().all()
            for table in ("alembic_version", "fusionplan_version")
        )


@pytest.mark.parametrize("first", ["optuna", "store"])
def test_optuna_lives_in_the_same_database(location, database, fill, trial, first):
    url = database.url.render_as_string(hide_password=False)
    runs = study_runs(url) if first == "optuna" else 0
    with Store.open(location) as store:
        assert store.url == url
        fill(store).add_trial(trial())
        assert study_runs(store.url) == runs + 2
        assert store.add_trial(trial(1)) == 2
        assert store.problems() == []
    theirs, ours = revisions(database)
    assert ours == list(heads())
    assert len(theirs) == 1
    assert theirs != ours
    assert schema.differences(database) == []
    others = tables(database) - TABLES

    downgrade(database)
    assert tables(database) == others
    assert revisions(database) == (theirs, [])
    assert study_runs(url) == runs + 4
    upgrade(database)
    assert study_runs(url) == runs + 6
    assert revisions(database) == (theirs, ours)
