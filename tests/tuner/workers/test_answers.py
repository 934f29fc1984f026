"""What a worker answers, read: nothing that it may say ends a tune."""

import sys
from typing import Any

import pytest
from fusionplan.planner.config import Config
from fusionplan.planner.costs.device import builtin
from fusionplan.tuner.trial.outcome import (
    ATEN,
    Candidate,
    Crashed,
    Miscompiled,
    ProgramResources,
    Timed,
)
from fusionplan.tuner.workers.first_kernels import FirstKernels
from fusionplan.tuner.workers.lab import Duel, Group, WorkerLab
from fusionplan.tuner.workers.pool import Pool, WorkerRole
from tuner_graphs import pointwise

GROUP = Group.of(pointwise(), "g")
TIMED = {"outcome": "timed", "seconds": 1e-5, "spread_s": 0.0, "laps": 3, "stopped": False}
FINE = {"registers": 8, "spill_bytes": 0, "shared_bytes": 0, "compile_s": 0.1}
SCRIPT = """
import json, sys
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    answer = {"lost": None} if asked.get("do") == "probe" else %r
    print(json.dumps({"id": asked["id"], **answer}), flush=True)
"""


def lab(answer: dict[str, Any]) -> WorkerLab:
    """A lab whose workers give one answer, whatever they are asked; their device works."""
    opened = WorkerLab.__new__(WorkerLab)
    role = WorkerRole([sys.executable, "-S", "-c", SCRIPT % answer], 1, 10.0)
    opened._capability, opened._suspects = 90, set()
    opened._is_over = lambda: False
    opened.pool = Pool({"compile": role, "measure": role})
    opened._first = FirstKernels(opened.pool, 90)
    return opened


ODD: list[dict[str, Any]] = [
    {},
    {"outcome": "timed"},
    {"outcome": "marvellous", "reason": ""},
    {"outcome": ["timed"], "reason": ""},
    {**TIMED, "seconds": "fast"},
    {**TIMED, "seconds": -1.0},
    {**TIMED, "seconds": None},
    {"outcomes": [TIMED]},
    {"outcomes": [TIMED, TIMED], "best": 7, "conditions": {}},
    {"outcomes": None, "best": 0, "conditions": {}},
    {"registers": "many"},
    {"error": "Traceback\nZeroDivisionError: what nobody foresaw"},
]


@pytest.mark.process
@pytest.mark.parametrize("answer", ODD, ids=str)
def test_an_odd_answer_is_a_failed_candidate(answer: dict[str, Any]):
    with lab(answer) as opened:
        measured = opened.measure(GROUP, ATEN)
        compiled = opened.compile(GROUP, Config((("x0", 16),))).result()
        duel = opened.duel(GROUP, [ATEN, Candidate("inductor")])
        checked = opened.check(GROUP, ATEN)
        ranked = opened.rank(GROUP, builtin("h200")).result()
    assert isinstance(measured, Crashed)
    assert isinstance(compiled, Miscompiled)
    assert (duel.best, duel.whole, len(duel.outcomes)) == (None, True, 2)
    assert isinstance(checked, Crashed)
    assert ranked is None


@pytest.mark.process
def test_good_answers_are_what_they_say():
    with lab(TIMED) as opened:
        assert opened.measure(GROUP, ATEN) == Timed(1e-5, 0.0, 3)
        assert isinstance(opened.check(GROUP, ATEN), Crashed)  # no time was asked for
    with lab(FINE) as opened:
        compiled = opened.compile(GROUP, Config((("x0", 16),))).result()
        assert compiled == ProgramResources(8, 0, 0, 0.1)
    with lab({"outcomes": [TIMED], "best": 0, "conditions": {}}) as opened:
        assert opened.duel(GROUP, [ATEN]) == Duel((Timed(1e-5, 0.0, 3),), 0, {})
