"""Kernels of integers and booleans: their numbers are eager's, and they compile."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from compiling import by_compiler
from fusionplan.planner.config import Config
from integer_kernels import INTEGERS, OF_ONE, OF_TWO, Function
from oracle import DEVICE, check

pytestmark = pytest.mark.dynamo

BLOCKS = [Config((("x0", 128),))]


def verify(function: Function, inputs: list[torch.Tensor]) -> None:
    assert check(function, inputs, BLOCKS) == 1


def test_they_compile() -> None:
    found = by_compiler(Path(__file__).with_name("integer_kernels.py"))
    assert found["fmod int64"] == ""
    assert not {name: why for name, why in found.items() if why}


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("name", ["fmod", "remainder", "floor_divide", "div_trunc"])
def test_division_rounds_as_eagers(name: str, dtype: str) -> None:
    """With all signs of both operands, as far as the dtype has them."""
    numbers = torch.arange(-40, 41, device=DEVICE).to(getattr(torch, dtype))
    divisors = torch.tensor([-7, -3, -1, 1, 2, 5, 9], device=DEVICE).to(numbers.dtype)
    verify(OF_TWO[name], [numbers.repeat(7), divisors.repeat_interleave(81)])
    if f"{name}_number" in OF_ONE:
        verify(OF_ONE[f"{name}_number"], [numbers])


@pytest.mark.parametrize("alpha", [True, False, 2, 0])
def test_a_sum_of_booleans_has_a_factor(alpha: float) -> None:
    x = torch.tensor([False, False, True, True], device=DEVICE)
    y = torch.tensor([False, True, False, True], device=DEVICE)
    verify(lambda x, y: torch.add(x, y, alpha=alpha), [x, y])
    verify(lambda x: torch.add(x, True, alpha=alpha), [x])
