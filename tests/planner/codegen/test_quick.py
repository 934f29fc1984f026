"""The cheaper forms of functions in float32, and what else stands as text in `intrinsics.py`,
against float64 over dense grids."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from fusionplan.planner.codegen.emit import called
from fusionplan.planner.codegen.intrinsics import GPU, STAND_INS
from fusionplan.planner.codegen.source import Buffer, KernelSource
from fusionplan.planner.graph import library
from fusionplan.planner.graph.op import Accuracy, Op
from fusionplan.planner.graph.texts import FORMS, text_of
from fusionplan.planner.runtime.machine_code.compile import interpreted
from fusionplan.planner.runtime.machine_code.launch import Launcher
from oracle import DEVICE
from test_losses import verify

pytestmark = pytest.mark.interpreter

BLOCK = 1024

LIBDEVICE = (
    "import fusionplan.planner.codegen.numpy_functions as libdevice"
    if interpreted()
    else "from triton.language.extra import libdevice"
)

KERNEL = """
@triton.jit
def apply({arguments}, result):
    place = tl.program_id(0) * {block} + tl.arange(0, {block})
    tl.store(result + place, {expr})
"""


def apply(expr: str, dtype: torch.dtype, **operands: torch.Tensor) -> torch.Tensor:
    """An expression over the fields of operands, computed by one kernel."""
    needed = called(expr, interpreted())
    own = [name for name in needed if interpreted() and name in STAND_INS]
    helpers = "".join(f"{name} = libdevice.{name}\n" for name in own)
    helpers += "".join(GPU[name] for name in needed if name not in own)
    loads = {name: f"tl.load({name} + place)" for name in operands}
    kernel = KERNEL.format(arguments=", ".join(operands), block=BLOCK, expr=expr.format(**loads))
    text = f"import triton\nimport triton.language as tl\n{LIBDEVICE}\n\n{helpers}\n{kernel}"
    size = next(iter(operands.values())).numel()
    padded = [F.pad(x.to(DEVICE), (0, -size % BLOCK)) for x in operands.values()]
    result = torch.empty_like(padded[0], dtype=dtype)
    buffers = [Buffer("in", i, str(x.dtype).removeprefix("torch.")) for i, x in enumerate(padded)]
    buffers.append(Buffer("out", 0, str(dtype).removeprefix("torch.")))
    grid = padded[0].numel() // BLOCK
    source = KernelSource("apply", text, tuple(buffers), grid, 4, 1)
    launcher, tensors = Launcher(source, torch.device(DEVICE)), [*padded, result]
    if launcher.takes_tensors:
        launcher.aligned(0, *tensors)
    else:
        launcher.aligned(torch.cuda.current_stream().cuda_stream, *[t.data_ptr() for t in tensors])
    return result[:size].cpu()


def around(*points: float, reach: float = 4.0) -> torch.Tensor:
    """Numbers of both signs in every scale, densest about these points."""
    steps = torch.logspace(-30, 0, 4000, base=2.0, dtype=torch.float64) * reach
    parts = [torch.linspace(-reach, reach, 20000, dtype=torch.float64)]
    parts += [p + sign * steps for p in (0.0, *points) for sign in (1, -1)]
    return torch.cat(parts).float()


SPECIAL = torch.tensor([float("inf"), float("-inf"), float("nan"), 0.0])

GRIDS = {
    "tanh": around(0.45, -0.45, reach=12.0),
    "tanh_plus_one": around(reach=12.0),
    "erf": around(0.9, -0.9, reach=6.0),
    "log1p": torch.cat([around(0.25, -0.25, -1.0, reach=0.99), torch.logspace(0, 30, 3000)]),
    "expm1": torch.cat([around(0.5, -0.5), torch.linspace(-30, 30, 5000)]),
    "sigmoid": around(reach=30.0),
    "log": torch.cat([around(1.0, 0.75, 1.25).abs(), torch.logspace(-37, 37, 5000)]),
    "exp": around(reach=15.0),
    "sqrt": around(reach=100.0).abs(),
    "reciprocal": around(reach=100.0),
}
EXACT = {
    "erf": torch.special.erf,
    "log1p": torch.log1p,
    "expm1": torch.expm1,
    "tanh_plus_one": lambda x: 2 * torch.sigmoid(2 * x),
}


def quick(op: Op) -> str:
    return text_of(op, Accuracy.QUICK, "float32")


def test_every_quick_function_of_one_argument_has_a_grid() -> None:
    found = {op.value for op, forms in FORMS.items() if Accuracy.QUICK in forms}
    assert found == {*GRIDS, "div"}


def relative_error(name: str, x: torch.Tensor) -> torch.Tensor:
    mine = apply(quick(Op(name)), torch.float32, self=x).double()
    exact = EXACT.get(name, getattr(torch, name, None))(x.double())
    regular = exact.isfinite() & (exact.float().abs() >= torch.finfo(torch.float32).tiny)
    assert regular.sum() > 0.9 * len(x)
    return ((mine - exact) / exact)[regular].abs()


@pytest.mark.parametrize("name", GRIDS)
def test_quick_functions_are_accurate(name: str) -> None:
    assert relative_error(name, GRIDS[name]).max() < 2.0**-18


@pytest.mark.parametrize("name", GRIDS)
def test_quick_functions_keep_what_is_special(name: str) -> None:
    mine = apply(quick(Op(name)), torch.float32, self=SPECIAL)
    exact = EXACT.get(name, getattr(torch, name, None))(SPECIAL)
    assert torch.equal(mine.isnan(), exact.isnan())
    assert torch.equal(mine[~mine.isnan()], exact[~exact.isnan()])


def test_the_tail_that_gelu_cancels_is_accurate() -> None:
    x = torch.linspace(0.9, 3.5, 20000)
    mine = 1 - apply("quick_erf({self})", torch.float32, self=x).double()
    exact = torch.special.erfc(x.double())
    assert ((mine - exact).abs() < exact * 2.0**-12 + 2.0**-23).all()


def test_one_and_erf_is_accurate_where_it_nearly_cancels() -> None:
    """Of itself for bfloat16, and where it is small as erf in float32 is."""
    x = torch.cat([around(reach=3.5), torch.linspace(-40, 40, 4000), torch.tensor([1e20, -1e20])])
    text = text_of(Op.ERF_PLUS_ONE, Accuracy.RELAXED, "float32")
    mine = apply(text, torch.float32, self=x).double()
    exact = torch.special.erfc(-x.double())
    assert ((mine - exact).abs() < exact * 2.0**-12 + 2.0**-24).all()
    assert apply(text, torch.float32, self=SPECIAL).nan_to_num(9).tolist() == [2.0, 0.0, 9.0, 1.0]


def test_gelu_of_every_bfloat16_is_as_accurate_as_eagers() -> None:
    """Element by element, also where it nearly vanishes: no error is more than twice eager's and
    half a unit in the last place."""
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    x = every[every.isfinite() & (every.abs() < 2.0**120)]
    text = text_of(Op.ERF_PLUS_ONE, Accuracy.RELAXED, "float32")
    one = apply(text, torch.float32, self=x.float() * 0.7071067811865476)
    mine = (x.float() * 0.5 * one).bfloat16().double()
    exact = x.double() * 0.5 * torch.special.erfc(-x.double() * 0.5**0.5)
    eager = (torch.nn.functional.gelu(x).double() - exact).abs()
    unit = torch.exp2(torch.frexp(exact.abs().clamp_min(2.0**-126)).exponent.double() - 8)
    assert len(x) > 60_000
    assert ((mine - exact).abs() <= 2 * eager + 0.5 * unit).all()


def test_the_ends_of_the_exponentials_range() -> None:
    x = torch.linspace(-87, 88, 20001)
    for name in ("exp", "sigmoid", "expm1"):
        assert relative_error(name, x).max() < 2.0**-17


def test_divisions() -> None:
    x, y = around(reach=100.0), around(reach=100.0).flip(0)
    mine = apply(quick(Op.DIV), torch.float32, self=x, other=y).double()
    exact = x.double() / y.double()
    usual = exact.isfinite() & (exact.abs() > 1e-30) & (exact.abs() < 1e30)
    assert (mine / exact - 1)[usual].abs().max() < 2.0**-20


# --- integers ---


def test_bits_read_as_another_type() -> None:
    # No NaN: which of its bits are set is the hardware's choice.
    x = torch.tensor([[1.0, -0.0, -2.5, float("inf"), 3e38]] * 3, device=DEVICE)
    verify(lambda x: (x * 1).view(torch.int32) + 1, [x])
    verify(lambda i: (i ^ 255).view(torch.float32), [x[:, :4].view(torch.int32)])
    verify(lambda x: (x * 1).view(torch.int64) + 1, [x[:, :4].double()])


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.int64])
def test_shifts(dtype: torch.dtype) -> None:
    bits = torch.iinfo(dtype).bits
    x = torch.arange(-8, 8, device=DEVICE).repeat(bits, 1).to(dtype)
    n = torch.arange(bits, device=DEVICE)[:, None].to(dtype)
    verify(lambda x, n: ((x * 1) << n, (x * 1) >> n), [x, n])
    verify(lambda x: ((x * 1) << 3, (x + 1) >> 2), [x])


# --- random numbers ---


@pytest.mark.parametrize("seed", [0, -1, 2**62 + 12345, -(2**40) + 7])
def test_random_numbers_are_the_same_in_kernels_and_in_eager(seed: int) -> None:
    index = torch.cat([torch.arange(5000), torch.arange(2**32 - 1000, 2**32)])
    seeds = torch.full_like(index, seed)
    mine = apply("uniform({seed}, {index})", torch.float32, seed=seeds, index=index)
    assert torch.equal(mine, library.uniform(torch.tensor(seed), index))


def test_random_numbers_are_uniform_and_independent() -> None:
    index = torch.arange(1 << 18)
    rows = torch.stack([library.uniform(torch.tensor(s), index) for s in (1, 2, 3, 1 << 32)])
    assert rows.min() >= 0
    assert rows.max() < 1
    counts = np.stack([np.histogram(row, 64, (0, 1))[0] for row in rows.numpy()])
    expected = len(index) / 64
    chi_squared = ((counts - expected) ** 2 / expected).sum(1)
    # 63 degrees of freedom: mean 63, deviation 11.2.
    assert (chi_squared < 63 + 5 * 11.2).all()
    neighbours = torch.corrcoef(torch.cat([rows[:, :-1], rows[:, 1:]]).double())
    assert (neighbours - torch.eye(8)).abs().max() < 5 / len(index) ** 0.5
