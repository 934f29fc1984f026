"""A server that lets go of whoever opens a store."""

import psycopg.errors
import pytest
from fusionplan.db import Store, store
from fusionplan.db.errors import StoreLost
from fusionplan.db.opening import opened
from sqlalchemy.exc import OperationalError


def loses(monkeypatch, *errors):
    """Opening fails in these ways, one after the other, and then works; how often it was tried."""
    left, tried = list(errors), []

    def attempt(*given, **options):
        tried.append(given)
        if left:
            raise OperationalError("SELECT 1", {}, left.pop(0))
        return opened(*given, **options)

    monkeypatch.setattr(store, "opened", attempt)
    monkeypatch.setattr("time.sleep", lambda _: None)
    return tried


STOPPING = psycopg.errors.AdminShutdown("terminating connection")
STARTING = psycopg.OperationalError("FATAL:  the database system is starting up")
REFUSED = psycopg.OperationalError("connection refused")


def test_a_server_that_is_stopped_while_a_store_is_opened_is_waited_for(monkeypatch, tmp_path):
    for first in (STOPPING, STARTING, psycopg.errors.CannotConnectNow("starting")):
        tried = loses(monkeypatch, first, REFUSED, STARTING)
        with Store.open(tmp_path / "plans.db") as opened_store:
            assert opened_store.problems() == []
        assert len(tried) == 4


def test_one_that_never_answered_is_an_error_at_once(monkeypatch, tmp_path):
    tried = loses(monkeypatch, REFUSED)
    with pytest.raises(StoreLost, match="does not answer \\(connection refused\\)"):
        Store.open(tmp_path / "plans.db")
    assert len(tried) == 1


def test_a_reader_does_not_wait(monkeypatch, tmp_path):
    with Store.open(tmp_path / "plans.db"):
        pass
    tried = loses(monkeypatch, STOPPING)
    with pytest.raises(StoreLost, match="terminating"):
        Store.open(tmp_path / "plans.db", read_only=True)
    assert len(tried) == 1
