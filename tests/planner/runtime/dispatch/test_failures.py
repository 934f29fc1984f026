"""Whatever goes wrong in planner, the user's model runs: with a warning, by the baseline."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from fusionplan.planner.capture import aot_front
from fusionplan.planner.costs.device import CPU
from fusionplan.planner.covers.cover import modelled_plan
from fusionplan.planner.cures import FusionplanWarning
from fusionplan.planner.errors import PlanError
from fusionplan.planner.runtime.dispatch import dispatch, plan_runners
from fusionplan.planner.runtime.dispatch.dispatch import Dispatcher
from fusionplan.planner.runtime.dispatch.plan_runners import Policy, Sources

pytestmark = pytest.mark.dynamo

ERRORS = [
    RecursionError("maximum recursion depth exceeded"),
    MemoryError(),
    OSError(28, "No space left on device"),
    ValueError("no number"),
    AssertionError(),
    torch.OutOfMemoryError("CUDA out of memory"),
]


@dataclass
class Failing:
    """Raises at one place of the way from a graph to what runs; counts how often it was met."""

    error: BaseException
    met: int = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.met += 1
        raise self.error


@dataclass
class Faults:
    """Places where the error is put; `sources` finds modelled plans else."""

    monkeypatch: pytest.MonkeyPatch
    failing: Failing
    find: Callable[..., Any] = lambda captured: modelled_plan(captured.graph, CPU)
    model: Callable[..., Any] | None = None
    policy: dict[str, Any] = field(default_factory=dict)

    def look_up(self) -> None:
        self.find = self.failing

    def make(self) -> None:
        self.find, self.model = (lambda _: "nothing is stored"), self.failing
        self.policy["on_miss"] = "model"

    def build(self) -> None:
        self.monkeypatch.setattr(plan_runners, "Executor", self.failing)

    def capture(self) -> None:
        self.monkeypatch.setattr(aot_front, "capture", self.failing)

    def key(self) -> None:
        self.monkeypatch.setattr(dispatch, "key", self.failing)

    def decompose(self) -> None:
        table = {torch.ops.aten.add.Tensor: self.failing}
        self.monkeypatch.setattr(aot_front, "decompositions", lambda: table)

    def dispatcher(self) -> Dispatcher:
        return Dispatcher(Policy(**self.policy), Sources(self.find, model=self.model))


PLACES = ["look_up", "make", "build", "capture", "key", "decompose"]


def function(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x + 1) * 3


def faults(monkeypatch: pytest.MonkeyPatch, place: str, error: BaseException) -> Faults:
    torch._dynamo.reset()
    found = Faults(monkeypatch, Failing(error))
    getattr(found, place)()
    return found


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
def test_the_baseline_runs_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, place: str, error: Exception
) -> None:
    met = faults(monkeypatch, place, error)
    x = torch.randn(3, 5)
    fast = torch.compile(function, backend=met.dispatcher())
    with torch.no_grad():
        with pytest.warns(FusionplanWarning, match=type(error).__name__) as told:
            first = fast(x)
        torch.testing.assert_close([first, fast(x)], [function(x)] * 2)
    assert met.failing.met == len(told) == 1


@pytest.mark.parametrize("place", PLACES)
def test_a_training_step_goes_on(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    met = faults(monkeypatch, place, RecursionError())
    fast = torch.compile(function, backend=met.dispatcher())
    x, y = (torch.linspace(-2, 2, 7).requires_grad_() for _ in range(2))
    with pytest.warns(FusionplanWarning, match="RecursionError"):
        fast(x).sum().backward()
    function(y).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
    assert met.failing.met >= 1


def test_a_backward_graph_alone_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    met = faults(monkeypatch, "look_up", MemoryError())
    dispatcher = met.dispatcher()
    whole, capture = Faults.find, aot_front.capture
    dispatcher.sources = Sources(whole)

    def failing(gm: torch.fx.GraphModule, *more: Any) -> Any:
        backward = any("tangents" in n.name for n in gm.graph.nodes)
        return met.failing(gm) if backward else capture(gm, *more)

    monkeypatch.setattr(aot_front, "capture", failing)
    fast = torch.compile(function, backend=dispatcher)
    x, y = (torch.linspace(-2, 2, 7).requires_grad_() for _ in range(2))
    with pytest.warns(FusionplanWarning, match="MemoryError"):
        fast(x).sum().backward()
    function(y).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
    assert met.failing.met == 1
    assert [stage for _, stage in dispatcher.live] == ["forward"]
    assert all(live.runner and live.runner.kernels_per_call for live in dispatcher.live.values())


def test_sizes_that_come_later_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    met = faults(monkeypatch, "key", OSError(28, "No space left on device"))
    monkeypatch.undo()
    fast = torch.compile(function, backend=met.dispatcher(), dynamic=True)
    with torch.no_grad():
        fast(torch.randn(3, 5))
        monkeypatch.setattr(dispatch, "key", met.failing)
        with pytest.warns(FusionplanWarning, match="No space left"):
            torch.testing.assert_close(fast(x := torch.randn(6, 7)), function(x))
    assert met.failing.met == 1


@pytest.mark.parametrize("place", ["look_up", "capture"])
def test_who_wants_an_error_gets_one(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    met = faults(monkeypatch, place, RecursionError())
    met.policy["on_miss"] = "error"
    fast = torch.compile(function, backend=met.dispatcher())
    with torch.no_grad(), pytest.raises(PlanError, match="RecursionError"):
        fast(torch.randn(3))
    assert met.failing.met == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_the_user_may_leave(monkeypatch: pytest.MonkeyPatch, error: type[BaseException]) -> None:
    met = faults(monkeypatch, "look_up", error())
    fast = torch.compile(function, backend=met.dispatcher())
    with torch.no_grad(), pytest.raises(error):
        fast(torch.randn(3))


def test_the_model_s_own_error_is_the_model_s(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] == 3:
            raise ValueError("three rows")
        return x + 1

    fast = torch.compile(wrong, backend=Dispatcher(Policy(), Sources(Faults.find)))
    with pytest.raises(ValueError, match="three rows"):
        fast(torch.randn(3))


def test_ahead_of_time(tmp_path: Any) -> None:
    fast = torch.compile(
        function,
        backend="planner",
        fullgraph=True,
        options={"on_miss": "model", "store": tmp_path / "plans.db"},
    )
    x = torch.randn(4, 4)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", FusionplanWarning)
        ahead = fast.aot_compile(((x,), {}))
        torch.testing.assert_close(ahead(x), function(x))
    with pytest.raises(PlanError, match=r"fusionplan\.load"):
        ahead.save_compiled_function(tmp_path / "function")
