"""Tensors of float8: read, written and cast as eager does, within the kernels around them."""

from __future__ import annotations

import math

import pytest
import torch
from fusionplan.planner.capture.capture import capture, decompositions
from fusionplan.planner.codegen.source import Program
from fusionplan.planner.lower import lower
from fusionplan.planner.runtime.machine_code.compile import interpreted
from numeric_check import config_of
from oracle import run_program, whole_group
from torch.fx.experimental.proxy_tensor import make_fx

pytestmark = pytest.mark.interpreter

DTYPES = (torch.float8_e4m3fn, torch.float8_e5m2)
NAMES = ("e4m3fn", "e5m2")
EDGES = (
    *(0.0, -0.0, 1.0, 1.0625, 1.125, 1.1875, 240.0, 448.0, 463.9, 464.0, 464.1, 480.0, 1e9),
    *(57344.0, 61439.0, 61440.0, 61441.0, 65536.0, math.inf, -math.inf, math.nan),
    *(2.0**-6, 2.0**-9, 2.0**-10, 1.5 * 2.0**-10, 2.0**-14, 2.0**-16, 2.0**-17, 1e-30, -480.0),
)


def kernels(function, *inputs: torch.Tensor) -> list[torch.Tensor]:
    """The function's results, all by one generated kernel."""
    with torch.device("cpu"):
        traced = make_fx(function, decomposition_table=decompositions(), tracing_mode="fake")
        found = capture(traced(*inputs))
    part = whole_group(found.graph)
    program = lower(part.graph, config_of(found), interpreted=interpreted())
    assert isinstance(program, Program), program
    assert len(program.kernels) == 1
    results = dict(zip(part.outputs, run_program(program, part, inputs), strict=True))
    return [results[output] for output in found.graph.outputs]


def assert_equal(got: torch.Tensor, wanted: torch.Tensor) -> None:
    assert got.dtype == wanted.dtype
    got, wanted = got.float(), wanted.float()
    assert torch.equal(got.isnan(), wanted.isnan())
    assert torch.equal(got.nan_to_num(), wanted.nan_to_num())
    assert torch.equal(got.signbit() & ~got.isnan(), wanted.signbit() & ~wanted.isnan())


@pytest.mark.parametrize("to", DTYPES, ids=NAMES)
@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16, torch.float16])
def test_a_cast_rounds_and_overflows_as_eagers(to: torch.dtype, source: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    spread = torch.randn(2000, generator=generator) * 10.0 ** torch.linspace(-6, 6, 2000)
    x = torch.cat([torch.tensor(EDGES), spread]).to(source)
    (got,) = kernels(lambda x: [x.to(to)], x)
    assert_equal(got, torch.stack([one.to(to) for one in x]))  # eager's vectors differ in 2.11


@pytest.mark.parametrize("dtype", DTYPES, ids=NAMES)
def test_each_of_the_256_numbers_is_read_and_written(dtype: torch.dtype) -> None:
    x = torch.arange(256, dtype=torch.uint8).view(dtype)
    for got, wanted in zip(
        kernels(lambda x: [x.float() * 2, x.to(torch.bfloat16), x.float().to(dtype)], x),
        [x.float() * 2, x.to(torch.bfloat16), x],
        strict=True,
    ):
        assert_equal(got, wanted)


def test_a_cast_is_seen_by_what_reads_it() -> None:
    x = torch.linspace(-30, 30, 501)
    (got,) = kernels(lambda x: [(x.to(torch.float8_e4m3fn).float() - x).abs()], x)
    assert_equal(got, (x.to(torch.float8_e4m3fn).float() - x).abs())


def test_integers_beyond_its_precision_are_rounded() -> None:
    x = torch.arange(-128, 128, dtype=torch.int8)
    (got,) = kernels(lambda x: [x.to(torch.float8_e5m2).float()], x)
    assert_equal(got, x.to(torch.float8_e5m2).float())


def quantised(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = x.float()
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6) * weight
    scale = y.abs().amax(-1, keepdim=True) / 448.0
    return (y / scale).clamp(-448.0, 448.0).to(torch.float8_e4m3fn), scale


def test_a_norm_and_its_quantisation_are_one_kernel() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(13, 96, generator=generator).to(torch.bfloat16)
    weight = torch.randn(96, generator=generator)
    got, scale = kernels(lambda *a: list(quantised(*a)), x, weight)
    wanted, wanted_scale = quantised(x, weight)
    torch.testing.assert_close(scale, wanted_scale, rtol=1e-6, atol=0)
    assert got.dtype == wanted.dtype
    assert float((got.float() != wanted.float()).float().mean()) < 0.01  # ties, by one step
    torch.testing.assert_close(got.float(), wanted.float(), rtol=0.13, atol=2.0**-9)
