"""One lab for all graphs of a model: it starts once, and keeps nothing on the device in between."""

from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from fusionplan.db import Store
from fusionplan.planner.costs.device import builtin
from fusionplan.planner.graph.graph import to_json
from fusionplan.tuner.measure.measure_role import MeasureRole
from fusionplan.tuner.measure.timing import Timer
from fusionplan.tuner.progress.progress import Silent
from fusionplan.tuner.session.effort import TuneLimits
from fusionplan.tuner.session.session import Session
from fusionplan.tuner.session.tune_site import TuneSite
from fusionplan.tuner.trial.outcome import Candidate
from fusionplan.tuner.workers.lab import Group, WorkerLab
from fusionplan.tuner.workers.shared_lab import SharedLab
from tuner_fakes import FakeLab, FakeStopwatch, OpenLab, baselines, captured
from tuner_graphs import softmax

H200 = builtin("h200")


class Counted(FakeLab):
    opened = closed = released = 0

    def release(self) -> None:
        self.released += 1

    def __enter__(self) -> "Counted":
        self.opened += 1
        return self

    def __exit__(self, *error: object) -> None:
        self.closed += 1


def test_it_is_opened_once_and_released_after_each():
    lab, given = Counted(lambda group, candidate: 1e-3), []

    def make(*args: object, **options: object) -> Counted:
        given.append((args, options))
        return lab

    with ExitStack() as stack:
        shared = SharedLab(stack, make)
        assert lab.opened == 0
        for count in (1, 2):
            with shared("cpu", 90, seed=3) as found:
                assert found is lab
                assert lab.released == count - 1
            assert lab.released == count
        with pytest.raises(KeyboardInterrupt), shared("cpu", 90):
            raise KeyboardInterrupt
        assert (lab.opened, lab.closed, lab.released) == (1, 0, 3)
    assert lab.closed == 1
    assert given == [(("cpu", 90), {"seed": 3})]


def test_a_measuring_worker_lets_go_of_its_inputs():
    bench = MeasureRole(torch.device("cpu"), Timer(FakeStopwatch(), 1, 1), 1 << 30)
    bench.prepare(to_json(softmax(4, 8)))
    assert bench._prepared
    assert bench.handle({"do": "release"}) == {}
    assert not bench._prepared


@pytest.mark.process
def test_a_real_lab_is_released_where_it_was_asked_for_something():
    group = Group.of(softmax(4, 8), "softmax")
    with WorkerLab("cpu", 90, compilers=1, interpret=True) as lab:
        asked: list[str] = []
        submit = lab.pool.submit
        lab.pool.submit = lambda role, message, *more, **options: (
            asked.append(message.get("do")) or submit(role, message, *more, **options)
        )
        lab.release()
        assert asked == []
        lab.check(group, Candidate("aten"))
        lab.release()
        assert asked == ["check", "release"]


@pytest.mark.interpreter
def test_kernels_that_nobody_asked_for_are_cancelled(tmp_path: Path):
    """The next graph finds idle compilers."""
    x, begun = torch.randn(4, 32), []
    lab = Counted(lambda group, candidate: 1e-3)
    compile_one = lab.compile
    lab.compile = lambda group, config: begun.append(compile_one(group, config)) or begun[-1]
    with Store.open(tmp_path / "plans.db") as store:
        site = TuneSite(OpenLab(lab), lambda device, l2: FakeStopwatch())
        graph = captured(lambda x: torch.softmax(x, -1), x)
        tuning = Session(graph, (x,), store, TuneLimits(8, 1e-6), Silent(), "m", site=site)
        tuning.measured(H200, baselines(eager=3.0))
    assert begun
    assert all(pending.cancelled for pending in begun)
