"""Seconds by phase: what is done within another phase counts once."""

import pytest
from fusionplan.planner.runtime import phases
from fusionplan.planner.runtime.phases import phase


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(phases.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(phases, "SECONDS", dict.fromkeys(phases.PHASES, 0.0))
    return now


def test_each_phase_is_without_those_within(clock):
    with phase("trace"):
        clock[0] += 1
        with phase("build"):
            clock[0] += 10
            with phase("compile"):
                clock[0] += 100
            with phase("compile"):
                clock[0] += 200
        with phase("lookup"):
            clock[0] += 1000
    told = {name: seconds for name, seconds in phases.SECONDS.items() if seconds}
    assert told == {"trace": 1, "build": 10, "compile": 300, "lookup": 1000}
    assert "compile 300.000 s" in phases.told()


def test_what_fails_is_counted_too(clock):
    def fails():
        clock[0] += 2
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"), phase("lookup"):
        fails()
    with phase("load"):
        clock[0] += 3
    assert (phases.SECONDS["lookup"], phases.SECONDS["load"]) == (2, 3)
