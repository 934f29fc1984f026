"""Scans against eager and float64: held whole and walked in a loop, in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from fusionplan.planner.config import LOOP, NATURAL, Config
from fusionplan.planner.errors import Refusal
from fusionplan.planner.lower import lower
from fusionplan.planner.nests.group_nests import schedule_group
from fusionplan.planner.nests.linear_forms import Role
from oracle import captured, check, whole_group
from test_numerics import DTYPES, configs, data

pytestmark = pytest.mark.dynamo


def verify(function, inputs) -> None:
    """As `test_numerics.verify`; all is one kernel, held, and in loops of several turns."""
    group = whole_group(captured(function, inputs)[0].graph).graph
    chosen = [c for c in configs(function, inputs) if c.layout == NATURAL]
    assert chosen
    found = schedule_group(group, LOOP)
    assert not isinstance(found, Refusal), found
    nest = found.kernels[0].nest
    for size in (1, 8):
        blocks = ((a.name, size if a.role is Role.LOOP else 4) for a in nest.axes)
        chosen.append(Config(tuple(blocks), num_warps=1, tiling="natural", reduction="loop"))
    assert check(function, inputs, chosen) >= len(chosen)


def turned(x, dim=-1):
    return x.flip(dim).cumsum(dim).flip(dim)


GATED = {
    "rows": lambda x, g: x.cumsum(-1) * torch.sigmoid(g),
    "columns": lambda x, g: (x * 2).cumsum(0) * torch.sigmoid(g),
    "middle": lambda x, g: (x.view(2, 3, 37) + 1).cumsum(1) * g.view(2, 3, 37),
    "turned rows": lambda x, g: turned(x * torch.sigmoid(g)) * g,
    "turned columns": lambda x, g: turned(x * torch.sigmoid(g), 0) + g,
    "exclusive": lambda x, g: x.cumsum(-1) - x + g,
    "beginning": lambda x, g: x.cumsum(-1)[:, :20] * g[:, :20],
    "of sums": lambda x, g: x.cumsum(-1).cumsum(-1) * g,
    "of a softmax": lambda x, g: x.softmax(-1).cumsum(-1) * g,
    "softmax of it": lambda x, g: (x.cumsum(-1) * g).softmax(-1),
    "then summed": lambda x, g: (x.cumsum(-1) * g).sum(-1),
    "products": lambda x, g: (x * 0.1 + 1).cumprod(-1) * g,
    "expanded": lambda x, g: x[:, :1].expand(-1, 37).cumsum(-1) * g,
    "exponentials": lambda x, g: (x * 4).logcumsumexp(-1) * g,
    "exponentials of columns": lambda x, g: (x - 1).logcumsumexp(0) * g,
    "exponentials from the end": lambda x, g: (x * 4).flip(-1).logcumsumexp(-1).flip(-1) + g,
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", GATED)
def test_gated_scan(name: str, dtype: torch.dtype) -> None:
    verify(GATED[name], [data(6, 37, dtype=dtype), data(6, 37, dtype=dtype, seed=1)])


WHOLE = {
    "int64": (torch.int64, lambda x: x.cumsum(-1) + 1),
    "int32": (torch.int32, lambda x: (x + 1).cumsum(0)),
    "uint8": (torch.uint8, lambda x: x.cumsum(-1) * 2),
    "bool": (torch.bool, lambda x: x.cumsum(-1) - 1),
    "in int32": (torch.int64, lambda x: x.cumsum(-1, dtype=torch.int32) + 1),
    "wrapping int8": (torch.int64, lambda x: x.cumsum(-1, dtype=torch.int8) + 1),
    "wrapping product": (torch.int64, lambda x: (x + 2).cumprod(-1)),
    "to floats": (torch.int32, lambda x: x.cumsum(-1, dtype=torch.float32) * 0.5),
}


@pytest.mark.parametrize("name", WHOLE)
def test_integers_are_exact(name: str) -> None:
    dtype, function = WHOLE[name]
    verify(function, [data(5, 37).mul(40).to(dtype)])


def test_a_strided_operand_with_nan_and_infinity() -> None:
    x = data(37, 12).t()[::2]
    x[0, 3], x[1, 5], x[2, 7], x[2, 20] = float("nan"), float("inf"), float("inf"), -float("inf")
    verify(lambda x: x.cumsum(-1) * 2, [x])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_gradient_of_sums_of_exponentials_is_one_kernel(dtype: torch.dtype) -> None:
    """It scans from the end what a scan from the beginning gives, so that rows are held."""

    def gradient(x, g):
        return torch.func.vjp(lambda x: x.logcumsumexp(-1), x)[1](g)[0]

    inputs = [data(6, 37, dtype=dtype), data(6, 37, dtype=dtype, seed=1)]
    chosen = [c for c in configs(gradient, inputs) if c.layout == NATURAL]
    assert chosen
    assert check(gradient, inputs, chosen) == len(chosen)


def test_sums_of_exponentials_of_infinities() -> None:
    inf = float("inf")
    x = data(6, 37)
    x[0, 0:3], x[1], x[2, 5], x[3, 7], x[4, 9:11] = -inf, -inf, inf, float("nan"), inf
    verify(lambda x: x.logcumsumexp(-1) + 1, [x])
    verify(lambda x: x.bfloat16().logcumsumexp(-1) + 1, [x])


def test_a_sum_of_exponentials_keeps_what_is_small() -> None:
    """log(1 + e) where e is far below the last digit of 1."""
    x = torch.cat((torch.zeros(4, 1), torch.full((4, 36), -25.0)), 1)
    verify(lambda x: x.logcumsumexp(-1) * 2, [x])


@pytest.mark.parametrize("shape", [(5, 1), (1, 1), ()])
def test_a_scan_of_one_element_is_that_element(shape: tuple[int, ...]) -> None:
    inputs = [data(5, 1)[:1, 0].view(shape) if not shape[1:] else data(*shape)]
    assert check(lambda x: x.cumsum(0 if not shape else 1) + 1, inputs, configs_of_one(inputs))


def configs_of_one(inputs) -> list[Config]:
    shape = inputs[0].shape
    return [Config((("x0", 1),) if shape.numel() > 1 else (), num_warps=1, num_stages=1)]


def test_float_to_16_bits_is_rounded_before_the_scan() -> None:
    verify(lambda x: x.cumsum(-1, dtype=torch.bfloat16) * 2, [data(5, 37)])


@pytest.mark.parametrize("columns", [333, 33])
@pytest.mark.parametrize("name", ["rows", "turned rows", "exclusive", "products"])
def test_rows_that_begin_anywhere(name: str, columns: int) -> None:
    """What lies before and behind a row in its windows of whole vectors takes no part."""
    function, dtype = GATED[name], torch.bfloat16
    inputs = [data(5, columns, dtype=dtype), data(5, columns, dtype=dtype, seed=1)]
    group = whole_group(captured(function, inputs)[0].graph).graph
    chosen = []
    for size, reduction in ((512, "held"), (64, "loop"), (16, "loop")):
        blocks = (("r0", size), ("x0", 1))
        chosen.append(Config(blocks, num_warps=1, tiling="natural", reduction=reduction))
        program = lower(group, chosen[-1], interpreted=True)
        assert not isinstance(program, Refusal), program
        assert ["r0_skip" in kernel.text for kernel in program.kernels] == [True]
    assert check(function, inputs, chosen) == len(chosen)
