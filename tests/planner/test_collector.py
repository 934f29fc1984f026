"""The collector of cycles waits while a plan is made, and then goes on as it was."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import fusionplan
import pytest
import torch
from fusionplan.planner.collector import paused
from fusionplan.planner.runtime.dispatch.dispatch import Dispatcher
from fusionplan.planner.runtime.dispatch.plan_runners import OnMiss, Policy, Sources


@pytest.fixture(autouse=True)
def collecting() -> Iterator[None]:
    """As in a process of its own."""
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


def alone(text: str) -> None:
    """Runs in a process that has few objects to look through."""
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-P", "-c", IMPORTS + textwrap.dedent(text)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


IMPORTS = """
import gc, weakref
from fusionplan.planner.collector import paused
"""


@pytest.mark.process
@pytest.mark.parametrize("lasting", [True, False])
def test_what_lasts_is_not_looked_through_when_it_goes_on(lasting: bool) -> None:
    alone(f"""
        def collections():
            return sum(each["collections"] for each in gc.get_stats())

        gc.collect()
        with paused({lasting}):
            made = [set() for _ in range(10_000)]
            made.append(made)  # a cycle
            before = collections()
        for _ in range(9):
            made.append(set())
        assert (collections() == before) is {lasting}
        assert gc.get_freeze_count() == 0
    """)


@pytest.mark.process
def test_cycles_among_what_lasts_are_found_later() -> None:
    alone("""
        class Node:
            pass

        with paused(lasting=True):
            node = Node()
            node.own = node
            gone = weakref.ref(node)
            del node
        assert gone() is not None
        gc.collect()
        assert gone() is None
    """)


@pytest.mark.process
def test_what_the_user_has_frozen_stays_so() -> None:
    alone("""
        gc.freeze()
        count = gc.get_freeze_count()
        with paused(lasting=True):
            pass
        # Fewer where one of them is not needed any more.
        assert 0 < 0.9 * count < gc.get_freeze_count() <= count
    """)


@pytest.mark.process
def test_what_is_frozen_is_counted_once() -> None:
    alone("""
        counted = []
        count = gc.get_freeze_count
        gc.get_freeze_count = lambda: counted.append(count()) or counted[-1]
        with paused(lasting=True):
            pass
        gc.freeze()
        for _ in range(3):
            with paused(lasting=True):
                pass
        assert counted[0] == 0
        assert len(counted) == 2
        assert count() > 0
    """)


def test_it_waits_while_a_name_of_the_package_is_imported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "asked_of_gc.py").write_text("import gc\nenabled = gc.isenabled()\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(fusionplan._HOME, "enabled", "asked_of_gc")
    assert not fusionplan.enabled
    assert gc.isenabled()
    monkeypatch.delitem(vars(fusionplan), "enabled")
    del sys.modules["asked_of_gc"]


@pytest.mark.dynamo
@pytest.mark.parametrize("on_miss, waits", [("baseline", True), ("tune", False)])
def test_it_waits_while_a_graph_is_traced_but_for_a_tune(on_miss: OnMiss, waits: bool) -> None:
    asked: list[bool] = []

    def find(captured: object) -> str:
        asked.append(gc.isenabled())
        return "nothing is stored"

    fast = torch.compile(lambda x: x.relu() + 1, backend=Dispatcher(Policy(on_miss), Sources(find)))
    with pytest.warns(UserWarning, match="nothing is stored"):
        fast(torch.ones(8))
    assert asked == [not waits]
    assert gc.isenabled()
