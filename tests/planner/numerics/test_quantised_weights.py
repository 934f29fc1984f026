"""Weights of 8 and 4 bits, which the model turns into bfloat16 before it multiplies by them: for
one row that is one kernel, and the weights are read in their own size."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fusionplan.planner.capture.capture import capture, decompositions
from fusionplan.planner.costs.device import H200
from fusionplan.planner.covers.cover import modelled_plan
from fusionplan.planner.runtime.execution.executor import Executor
from torch.fx.experimental.proxy_tensor import make_fx

pytestmark = pytest.mark.interpreter

ROWS, COLUMNS, GROUP = 256, 512, 64


def scaled(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> list[torch.Tensor]:
    return [x @ (w.to(x.dtype) * scale[:, None]).t()]


def scaled_after(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> list[torch.Tensor]:
    return [F.linear(x, w.to(x.dtype)) * scale]


def packed(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> list[torch.Tensor]:
    """Two numbers of -8 to 7 in each byte, a scale for 64 of them."""
    low, high = ((part.to(torch.int8) - 8) for part in (w & 15, w >> 4))
    whole = torch.stack((low, high), -1).reshape(len(w), -1, GROUP)
    return [x @ (whole.to(x.dtype) * scale[..., None]).reshape(len(w), -1).t()]


def weights(dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    if dtype == torch.uint8:
        return torch.randint(256, (ROWS, COLUMNS // 2), generator=generator, dtype=dtype)
    if dtype == torch.int8:
        return torch.randint(-128, 128, (ROWS, COLUMNS), generator=generator, dtype=dtype)
    return torch.randn(ROWS, COLUMNS, generator=generator).to(dtype)


CASES: dict[str, tuple[Callable[..., Any], torch.dtype, tuple[int, ...]]] = {
    "int8": (scaled, torch.int8, (ROWS,)),
    "int8, scaled after": (scaled_after, torch.int8, (ROWS,)),
    "int4": (packed, torch.uint8, (ROWS, COLUMNS // GROUP)),
    "float8": (scaled, torch.float8_e4m3fn, (ROWS,)),
}


@pytest.mark.parametrize("name", CASES)
def test_they_are_turned_into_floats_where_they_are_read(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    function, dtype, shape = CASES[name]
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(1, COLUMNS, generator=generator).bfloat16()
    scale = (torch.rand(shape, generator=generator) + 0.5).bfloat16() / 64
    given = [x, weights(dtype), scale]
    with torch.no_grad():
        traced = make_fx(function, decomposition_table=decompositions(), tracing_mode="fake")
        captured = capture(traced(*given))
    (group,) = modelled_plan(captured.graph, H200).groups
    assert group.lowering == "triton"
    run = Executor(captured, modelled_plan(captured.graph, H200), captured.device)
    assert run.kernels_per_call == 1
    wide = [x.double(), given[1] if dtype == torch.uint8 else given[1].double(), scale.double()]
    (exact,), (eager,), (found,) = function(*wide), function(*given), run(*given)
    error, own = ((value.double() - exact).abs().max() for value in (found, eager))
    assert error <= 2 * own + 2**-8 * exact.abs().max() / 2
