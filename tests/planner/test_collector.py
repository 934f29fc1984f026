"""The collector of cycles waits while a plan is made, and then goes on as it was."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from fusionplan.planner.collector import paused


@pytest.fixture(autouse=True)
def collecting() -> Iterator[None]:
    before = gc.isenabled()
    gc.enable()
    yield
    (gc.enable if before else gc.disable)()


def test_it_waits_till_the_outermost_block_ends() -> None:
    with paused():
        with paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_goes_on_after_an_error() -> None:
    with pytest.raises(KeyError, match="gone"), paused():
        raise KeyError("gone")
    assert gc.isenabled()


def test_what_the_user_has_stopped_stays_so() -> None:
    gc.disable()
    with paused():
        pass
    assert not gc.isenabled()
