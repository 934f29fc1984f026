"""Elementwise operations are opened to what eager computes on the device, to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fusionplan.planner.capture.capture import decompositions
from torch.fx.experimental.proxy_tensor import make_fx

pytestmark = pytest.mark.dynamo


def opened(function: Callable[[torch.Tensor], Any], x: torch.Tensor) -> list[tuple[str, Any]]:
    """Name and second argument of each operation in the traced function."""
    gm = make_fx(lambda x: [function(x)], decomposition_table=decompositions())(x)
    called = (n for n in gm.graph.nodes if n.op == "call_function")
    return [(str(n.target).split(".")[1], n.args[1:2]) for n in called]


@pytest.mark.parametrize("exponent", [1, 1.0])
def test_a_power_of_1_is_a_copy(exponent: float) -> None:
    """A GPU's general function gives 7.0000005 for 7."""
    assert opened(lambda x: x**exponent, torch.ones(4)) == [("clone", ())]


def test_other_powers_stay() -> None:
    assert opened(lambda x: x**1.5, torch.ones(4)) == [("pow", (1.5,))]
    assert opened(lambda x: x**1, torch.arange(4)) == [("pow", (1,))]


def test_the_fraction_of_a_negative_zero_is_0() -> None:
    """x - floor(|x|) * sign(x), torch 2.11's formula, gives -0.0."""
    assert [name for name, _ in opened(torch.frac, torch.ones(4))] == ["trunc", "sub"]


def test_hardsigmoid_is_eagers_on_its_device() -> None:
    """ATen divides by 6 on CPUs, and multiplies by 1 / 6 of float32 on GPUs."""
    assert opened(F.hardsigmoid, torch.ones(4))[-1] == ("div", (6,))
    sixth = torch.tensor(1 / 6, dtype=torch.float32).item()
    for dtype in (torch.float32, torch.float64):
        x = torch.ones(4, dtype=dtype, device="meta")
        assert opened(F.hardsigmoid, x)[-1] == ("mul", (sixth,))
