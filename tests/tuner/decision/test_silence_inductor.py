"""Inductor's autotuning says nothing within a tune, and as much as before after it."""

import logging

import pytest
from fusionplan.tuner.decision.silence_inductor import quiet_autotuning
from torch._inductor import select_algorithm

LOG = logging.getLogger(select_algorithm.__name__)


def state():
    return LOG.level, select_algorithm.PRINT_AUTOTUNE, LOG.isEnabledFor(logging.ERROR)


def test_it_is_quiet_and_as_before_afterwards(monkeypatch):
    monkeypatch.delenv("TORCH_LOGS", raising=False)
    before = state()
    with pytest.raises(KeyError), quiet_autotuning():
        _fail_within()
    assert state() == before
    assert before[1:] == (True, True)


def _fail_within():
    assert state() == (logging.CRITICAL, False, False)
    raise KeyError


def test_who_asks_for_logs_gets_them(monkeypatch):
    monkeypatch.setenv("TORCH_LOGS", "inductor")
    before = state()
    with quiet_autotuning():
        assert state() == before
