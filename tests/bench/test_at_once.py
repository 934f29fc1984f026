"""Cases that share a GPU: all tuned before any is measured, and only one timed at a time."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from fusionplan.bench.at_once import LARGE_AT_ONCE, AtOnce

pytestmark = pytest.mark.process

CHILD = """
import json, sys, time
from pathlib import Path
log, step, name, waits = sys.argv[1:]
def note(what):
    with open(log, "a") as file:
        file.write(json.dumps([step, name, what, time.monotonic()]) + chr(10))
note("begin")
if name.startswith("large") or "slow" in name and step == "--measure":
    time.sleep(0.5 if waits else 0.1)
if name == "late" and step == "--measure":
    time.sleep(60)
if waits:
    sys.path.insert(0, waits)
    from at_once_alone import wait_for_the_others
    with wait_for_the_others():
        note("alone")
        time.sleep(0.02)
        note("done")
if name == "bad" and step == "--tune":
    sys.exit("no such thing")
note("end")
"""


def run(
    tmp_path: Path, names: Sequence[str], count: int, until: float = math.inf, patient_s: float = 20
) -> list[str]:
    """What was told: the steps that ended, in order."""
    told = []

    def tell(step: str, name: str, wrong: str) -> bool:
        told.append(f"{step} {name} {wrong}".strip())
        return not wrong

    log = tmp_path / "log"
    waits = str(alone(tmp_path))

    def command(step: str, name: str) -> list[str]:
        given = waits if step == "--measure" and count > 1 else ""
        return [sys.executable, "-c", CHILD, str(log), step, name, given]

    work = AtOnce(
        *(["0", "1"], count, until, command, tell, lambda step, name: tmp_path / f"{name}"),
        large=lambda name: name.startswith("large"),
        patient_s=patient_s,
    )
    (work.together if count > 1 else work.one_by_one)(names)
    return told


def alone(tmp_path: Path) -> Path:
    """A folder with what a child imports, without torch."""
    from fusionplan.bench import at_once
    from fusionplan.tuner.measure import fair_lock, turns

    text = Path(at_once.__file__ or "").read_text()
    text = text.replace("from ..tuner.measure.turns", "from turns_alone")
    (tmp_path / "at_once_alone.py").write_text(text)
    text = Path(turns.__file__ or "").read_text().replace("from .fair_lock", "from fair_lock")
    (tmp_path / "turns_alone.py").write_text(text)
    (tmp_path / "fair_lock.py").write_text(Path(fair_lock.__file__ or "").read_text())
    return tmp_path


def logged(tmp_path: Path) -> list[tuple[str, str, str, float]]:
    lines = (tmp_path / "log").read_text().splitlines()
    return sorted((tuple(json.loads(line)) for line in lines), key=lambda each: each[3])


def test_all_are_tuned_before_any_is_measured(tmp_path: Path) -> None:
    names = ["a", "b", "c", "bad", "e"]
    told = run(tmp_path, names, 2)
    assert sorted(told) == [
        *(f"--measure {name}" for name in ("a", "b", "c", "e")),
        *("--tune a", "--tune b", "--tune bad no such thing", "--tune c", "--tune e"),
    ]
    steps = [step for step, *_ in logged(tmp_path)]
    assert "--tune" not in steps[steps.index("--measure") :]


def test_those_that_share_a_gpu_are_timed_alone_when_all_are_ready(tmp_path: Path) -> None:
    run(tmp_path, ["a", "x", "b", "y", "c", "z"], 3)
    for gpu in ("abc", "xyz"):
        events = [(n, w) for s, n, w, _ in logged(tmp_path) if s == "--measure" and n in gpu]
        assert [what for _, what in events[:3]] == ["begin"] * 3
        timed = [(name, what) for name, what in events if what in ("alone", "done")]
        assert [what for _, what in timed] == ["alone", "done"] * 3
        assert all(a[0] == b[0] for a, b in zip(timed[::2], timed[1::2], strict=True))


def test_one_at_a_time_measures_each_after_its_tune(tmp_path: Path) -> None:
    told = run(tmp_path, ["a", "bad"], 1)
    assert sorted(told) == ["--measure a", "--tune a", "--tune bad no such thing"]


def test_after_the_limit_nothing_begins(tmp_path: Path) -> None:
    assert run(tmp_path, ["a"], 1, time.monotonic() - 1) == []


def test_one_that_straggles_leaves_the_others_their_time(tmp_path: Path) -> None:
    told = run(tmp_path, ["late", "x", "b"], 2, time.monotonic() + 40.0, patient_s=0.5)
    assert "--measure late it was not ready when the others of its GPU were measured" in told
    assert {"--measure b", "--measure x"} < {*told}
    assert not [event for event in logged(tmp_path) if event[1:3] == ("late", "alone")]


def test_none_is_given_up_where_half_take_as_long(tmp_path: Path) -> None:
    """Three of four take long to be ready; the one that does not waits for them."""
    names = ["a", *(f"slow {number}" for number in range(3))]
    told = run(
        tmp_path,
        [n for name in names for n in (name, f"gpu 1 {name}")],
        4,
        time.monotonic() + 60.0,
        patient_s=0.0,
    )
    assert sorted(told) == sorted(
        f"--{step} {name}"
        for step in ("tune", "measure")
        for n in names
        for name in (n, f"gpu 1 {n}")
    )


def test_one_that_takes_much_memory_is_tuned_at_a_time(tmp_path: Path) -> None:
    run(tmp_path, [f"large {number}" for number in range(6)] + ["small"], 7)
    events = [(name, what) for step, name, what, _ in logged(tmp_path) if step == "--tune"]
    running = most = 0
    for name, what in events:
        running += {"begin": 1, "end": -1}[what] if name != "small" else 0
        most = max(most, running)
    assert most <= LARGE_AT_ONCE * 2  # of two GPUs; else all six would be at it
    assert len(events) == 2 * 7
