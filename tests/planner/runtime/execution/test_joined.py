"""Small kernels beside each other in one launch."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from fusionplan.planner.capture.capture import Captured, capture, decompositions
from fusionplan.planner.codegen.source import Buffer, KernelSource, Program
from fusionplan.planner.costs.device import H200
from fusionplan.planner.covers.cover import modelled_plan
from fusionplan.planner.graph.graph import TensorType
from fusionplan.planner.runtime.execution.executor import Executor
from fusionplan.planner.runtime.execution.joined import joined
from fusionplan.planner.runtime.execution.units import ScheduledUnit
from torch.fx.experimental.proxy_tensor import make_fx

pytestmark = pytest.mark.interpreter

X, Y = torch.randn(6, 40), torch.randn(3, 7)
X_TYPE = TensorType((6, 40), (40, 1), "float32")


def executor(
    function: Callable[..., Any], *inputs: torch.Tensor, overlaps: bool = True
) -> Executor:
    captured = _captured(function, *inputs)
    plan = replace(modelled_plan(captured.graph, H200), overlaps=overlaps)
    return Executor(captured, plan, captured.device, updates=True)


def _captured(function: Callable[..., Any], *inputs: torch.Tensor) -> Captured:
    def functional(*given: torch.Tensor) -> Any:
        return torch.func.functionalize(function, remove="mutations_and_views")(*given)

    with torch.no_grad():
        traced = make_fx(functional, decomposition_table=decompositions(), tracing_mode="fake")
        return capture(traced(*inputs))


@pytest.fixture(autouse=True)
def interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")


def apart(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    return [(x * 2).relu(), torch.softmax(y, -1), y.exp().sum(0)]


@pytest.mark.parametrize("overlaps", [True, False])
def test_what_reads_nothing_of_the_other_is_one_launch(overlaps: bool) -> None:
    run = executor(apart, X, Y, overlaps=overlaps)
    assert (run.kernels_per_call == 1) == overlaps
    torch.testing.assert_close(run(X, Y), apart(X, Y))


def unit(group: int, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> ScheduledUnit:
    return ScheduledUnit(group, inputs, outputs)


def program(name: str, grid: int = 4, helper: str = "return x", **more: Any) -> Program:
    text = (
        "import triton\nimport triton.language as tl\n\n\n"
        f"@triton.jit\ndef helper(x):\n    {helper}\n\n\n"
        f"@triton.jit\ndef {name}(in0, out0):\n    pid = tl.program_id(0)\n"
    )
    buffers = Buffer("in", 0, "float32"), Buffer("out", 0, "float32")
    return Program((KernelSource(name, text, buffers, grid, 4, 1),), **more)


APART = unit(0, (0,), (2,)), unit(1, (1,), (3,))


def test_programs_of_one_launch_go_one_after_the_other() -> None:
    ((whole, made),) = joined(APART, {0: program("one"), 1: program("two", grid=3)})
    assert made is not None
    assert (whole.inputs, whole.outputs) == ((0, 1), (2, 3))
    (kernel,) = made.kernels
    assert kernel.grid == 7
    assert [(b.kind, b.index) for b in kernel.buffers] == [
        (k, i) for i in (0, 1) for k in ("in", "out")
    ]
    assert kernel.text.count("def helper(") == 1
    assert "pid = tl.program_id(0) - 4" in kernel.text


@pytest.mark.parametrize(
    "units, programs",
    [
        ((APART[0], unit(1, (2,), (3,))), (program("one"), program("two"))),
        ((APART[0], unit(1, (0,), (3,))), (program("one", written=((0, 0),)), program("two"))),
        (
            (unit(0, (0,), (2,)), unit(1, (0,), (3,))),
            (program("one"), program("two", written=((0, 0),))),
        ),
        ((APART[0], unit(1, (1,), (2,))), (program("one"), program("two"))),
        (APART, (program("one"), program("two", helper="return -x"))),
        (APART, (program("one"), program("two", grid=1 << 12))),
        (APART, (program("one"), replace(program("two"), temporaries=(X_TYPE,)))),
    ],
    ids=["reads", "written before", "written after", "twice", "helpers", "large", "temporaries"],
)
def test_others_stay_apart(units: tuple[ScheduledUnit, ...], programs: tuple[Program, ...]) -> None:
    assert [*joined(units, dict(enumerate(programs)))] == [(u, None) for u in units]


def test_a_row_is_written_beside_others() -> None:
    def function(
        cache: torch.Tensor, position: torch.Tensor, x: torch.Tensor, y: torch.Tensor
    ) -> list[torch.Tensor]:
        cache[:, position] = x[:, None] * 2
        return [y + 1]

    given = [torch.randn(6, 9, 40), torch.tensor([4]), X, Y]
    run = executor(function, *given)
    assert run.kernels_per_call == 1
    theirs = [g.clone() for g in given]
    expected = function(*theirs)
    torch.testing.assert_close(run(*given), expected)
    torch.testing.assert_close(given[0], theirs[0])


def test_large_kernels_stay_apart() -> None:
    x, y = torch.randn(1 << 10, 256), torch.randn(1 << 10, 300)
    run = executor(lambda x, y: [x * 2, y + 1], x, y)
    assert run.kernels_per_call == 2
