"""Kernels that do the same to many tensors, as one launch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from compiling import by_compiler
from fusionplan.api import executors, load
from fusionplan.planner.capture.capture import capture
from fusionplan.planner.costs.device import H200
from fusionplan.planner.covers.cover import modelled_plan
from fusionplan.planner.runtime.execution import batched
from fusionplan.planner.runtime.execution.executor import Executor
from oracle import DEVICE
from torch.fx.experimental.proxy_tensor import make_fx

pytestmark = [pytest.mark.dynamo, pytest.mark.interpreter]

Tensors = list[torch.Tensor]
SHAPES = [(64, 32), (64,), (33, 7), (48,), (100, 64), (4999,), (7,)]
"""Four of them multiples of 16 elements."""


def adam(params: Tensors, grads: Tensors, means: Tensors, squares: Tensors) -> None:
    for p, g, m, v in zip(params, grads, means, squares, strict=True):
        m.mul_(0.9).add_(g, alpha=0.1)
        v.mul_(0.999).addcmul_(g, g, value=1e-3)
        p.addcdiv_(m, v.sqrt().add_(1e-8), value=-1e-3)


def scaled(params: Tensors, grads: Tensors, means: Tensors, squares: Tensors) -> list[torch.Tensor]:
    """By a number that all read; no result goes in place."""
    return [g * params[0] for g in grads[1:]]


def read_again(params: Tensors, grads: Tensors, means: Tensors, squares: Tensors) -> Any:
    """What the kernels give is read by a product."""
    given = [torch.tanh(g) for g in (*grads[:1], *means[:1], *squares[:1], *params[:1])]
    return [*given, *(g @ g.t() for g in given)]


def run(function: Any, tmp_path: Path, shapes: Any = SHAPES) -> tuple[Any, Any, Any, Any]:
    torch.manual_seed(0)
    lists = [[torch.rand(s, device=DEVICE) for s in shapes] for _ in range(4)]
    copies = [[[t.clone() for t in some] for some in lists] for _ in range(2)]
    fast = load(function, store=str(tmp_path / "none.db"), on_miss="model", dynamic=False)
    with torch.no_grad():
        wanted, got = function(*copies[0]), fast(*copies[1])
    (executor,) = executors(fast)
    return wanted, got, copies, executor


def test_an_optimiser_is_two_kernels_for_each_alignment(tmp_path: Path) -> None:
    """One writes the addresses, the other does the work; all results go where the inputs are."""
    _, _, (wanted, got), executor = run(adam, tmp_path)
    torch.testing.assert_close(got, wanted)
    names = [launcher.source.name for launcher in executor.launchers]
    assert executor.kernels_per_call == len(names) == 4
    assert [name.rpartition("_of_")[2] for name in names] == ["28", "4", "21", "3"]
    assert executor.text.count("empty(") == 2, "the tables alone"
    assert "copy_all" not in executor.text


def test_a_number_that_all_read(tmp_path: Path) -> None:
    wanted, got, _, executor = run(scaled, tmp_path, [(), *SHAPES])
    torch.testing.assert_close(got, wanted)
    assert executor.kernels_per_call == 4


def test_what_others_read_is_not_put_off(tmp_path: Path) -> None:
    wanted, got, _, executor = run(read_again, tmp_path, [(64, 32)])
    torch.testing.assert_close(got, wanted)
    assert not any("_of_" in each.source.name for each in executor.launchers)


def test_numbers_of_several_types() -> None:
    """Their kernels have the same text."""

    def scaled(x: torch.Tensor, *numbers: torch.Tensor) -> Tensors:
        return [x * number for number in numbers]

    kinds = (torch.bool, torch.float64, torch.int64, torch.int64, torch.int8, torch.float16)
    numbers = [torch.tensor(n, device=DEVICE).to(k) for n, k in enumerate(kinds, 2)]
    given = (torch.rand(5, device=DEVICE), *numbers)
    whole = capture(make_fx(scaled)(*given))
    executor = Executor(whole, modelled_plan(whole.graph, H200), torch.device(DEVICE))
    torch.testing.assert_close(executor(*given), scaled(*given))
    assert executor.kernels_per_call == 6, "two of one type are too few"


def test_few_tensors_stay_apart(tmp_path: Path) -> None:
    _, _, (wanted, got), executor = run(adam, tmp_path, SHAPES[:3])
    torch.testing.assert_close(got, wanted)
    assert executor.kernels_per_call == 3


def test_many_tensors_are_several_launches(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(batched, "MOST_ARGUMENTS", 21)
    _, _, (wanted, got), executor = run(adam, tmp_path, [(n, 16) for n in range(1, 8)])
    torch.testing.assert_close(got, wanted)
    names = [each.source.name.rpartition("_of_")[2] for each in executor.launchers]
    assert names == ["21", "3", "14", "2", "14", "2"]


def test_launches_that_overlap() -> None:
    """Both kernels of a batch wait for the one before."""
    given = [torch.rand(shape, device=DEVICE) for shape in SHAPES]
    whole = capture(make_fx(lambda *some: [torch.tanh(x) * 2 for x in some])(*given))
    plan = replace(modelled_plan(whole.graph, H200), overlaps=True)
    executor = Executor(whole, plan, torch.device(DEVICE))
    torch.testing.assert_close(executor(*given), [torch.tanh(x) * 2 for x in given])
    assert executor.kernels_per_call == len(executor.launchers) == 4
    assert [each.source.dependent for each in executor.launchers] == [False, True, True, True]


@pytest.mark.process
def test_programs_move_whole_vectors_in_few_registers() -> None:
    found = by_compiler(Path(__file__).with_name("batched_cubins.py"))
    assert found["wide loads"] == 16
    assert found["wide stores"] == 12
    assert found["stores"] == 0
    assert found["registers"] <= 80
    assert found["spill_bytes"] == 0
