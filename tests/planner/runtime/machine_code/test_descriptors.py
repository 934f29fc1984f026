"""Tensor descriptors as kernel arguments: what a kernel reads and writes through them, and the
machine code of one. Run as a program, with the real compiler, it prints that machine code's marks.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fusionplan.planner.codegen.source import Buffer, KernelSource, Program
from fusionplan.planner.config import Config
from fusionplan.planner.graph.graph import key
from fusionplan.planner.plan import GroupPlan, Plan
from fusionplan.planner.runtime.execution.executor import Executor
from fusionplan.planner.runtime.machine_code.compile import (
    CompileFailed,
    Target,
    compile_kernel,
    interpreted,
    resources,
)
from fusionplan.planner.runtime.machine_code.launch import Launcher, arguments
from fusionplan.planner.tiles.descriptors import Descriptor

pytestmark = pytest.mark.interpreter

DEVICE = torch.device("cpu" if interpreted() else "cuda")

MATMUL = """
import triton
import triton.language as tl


@triton.jit
def matmul(a, bias_ptr, b, c):
    m = tl.program_id(0) // {columns} * {bm}
    n = tl.program_id(0) % {columns} * {bn}
    total = tl.zeros([{bm}, {bn}], tl.float32)
    for k in range(0, {k}, {bk}):
        total = tl.dot(a.load([m, k]){cast}, b.load([n, k]){cast}.T, total)
    i = n + tl.arange(0, {bn})
    bias = tl.load(bias_ptr + i, mask=i < {n}, other=0.0)
    c.store([m, n], (total + bias[None, :]).to(tl.{dtype}))
"""
PLAIN = """
import triton
import triton.language as tl


@triton.jit
def plain(c_ptr, a_ptr, b_ptr, bias_ptr):
    m = tl.program_id(0) // {columns} * {bm} + tl.arange(0, {bm})
    n = tl.program_id(0) % {columns} * {bn} + tl.arange(0, {bn})
    total = tl.zeros([{bm}, {bn}], tl.float32)
    for k0 in range(0, {k}, {bk}):
        k = k0 + tl.arange(0, {bk})
        a_mask = (m < {m})[:, None] & (k < {k})[None, :]
        b_mask = (n < {n})[:, None] & (k < {k})[None, :]
        a = tl.load(a_ptr + {a} + m[:, None] * {a_row} + k[None, :], mask=a_mask, other=0.0)
        b = tl.load(b_ptr + {b} + n[:, None] * {b_row} + k[None, :], mask=b_mask, other=0.0)
        total = tl.dot(a{cast}, b{cast}.T, total)
    bias = tl.load(bias_ptr + n, mask=n < {n}, other=0.0)
    c_mask = (m < {m})[:, None] & (n < {n})[None, :]
    value = (total + bias[None, :]).to(tl.{dtype})
    tl.store(c_ptr + {c} + m[:, None] * {c_row} + n[None, :], value, mask=c_mask)
"""
BORDER = 8
"""Rows before and columns after each matrix, which nobody may touch; a multiple of 16 bytes."""


def matmul(m, n, k, block=(64, 64, 32), dtype="bfloat16", border=BORDER, stages=3):
    """C = A B^T + bias over matrices that lie inside of wider buffers."""
    bm, bn, bk = block
    sizes = {"a": (m, k, bm, bk), "b": (n, k, bn, bk), "c": (m, n, bm, bn)}
    whole = {
        name: Descriptor((r, c), (c + border, 1), (br, bc), border * (c + border))
        for name, (r, c, br, bc) in sizes.items()
    }
    columns = -(-n // bn)
    names = {"m": m, "n": n, "k": k, "bm": bm, "bn": bn, "bk": bk, "columns": columns}
    names |= {name: d.offset for name, d in whole.items()}
    names |= {f"{name}_row": d.stride[0] for name, d in whole.items()}
    # Triton's interpreter multiplies the bits of a bfloat16.
    names |= {"dtype": dtype, "cast": ".to(tl.float32)" if interpreted() else ""}
    a, b, bias = (Buffer("in", i, dtype) for i in range(3))
    c = Buffer("out", 0, dtype)
    described = {"a": a, "b": b, "c": c}
    described = {name: replace(own, descriptor=whole[name]) for name, own in described.items()}
    buffers = (described["a"], bias, described["b"], described["c"])
    grid = -(-m // bm) * columns
    plain = KernelSource("plain", PLAIN.format(**names), (c, a, b, bias), grid, 4, stages)
    return KernelSource("matmul", MATMUL.format(**names), buffers, grid, 4, stages, plain)


def memory(rows, columns, dtype, skew):
    """A buffer of NaN that begins `skew` elements into its storage, with the matrix inside."""
    size = (rows + BORDER) * (columns + BORDER)
    flat = torch.full((skew + size,), float("nan"), dtype=dtype, device=DEVICE)[skew:]
    whole = flat.view(rows + BORDER, columns + BORDER)
    inside = whole[BORDER:, :columns]
    inside.copy_(torch.randint(-1, 2, (rows, columns)))
    return whole, inside


def launched(source, pools, aligned=True):
    launcher = Launcher(source, DEVICE)
    given = [pools[b.kind, b.index] for b in source.buffers]
    stream = 0 if launcher.takes_tensors else torch.cuda.current_stream().cuda_stream
    if not launcher.takes_tensors:
        given = [t.data_ptr() for t in given]
    (launcher.aligned if aligned else launcher.unaligned)(stream, *given)


def check_matmul(m, n, k, dtype, skew=0, aligned=True, change=lambda source: source):
    """Sums of few products of -1, 0 and 1 are exact, and so is the comparison."""
    kind = getattr(torch, dtype)
    (a, inner_a), (b, inner_b) = memory(m, k, kind, skew), memory(n, k, kind, skew)
    c, inner_c = memory(m, n, kind, 0)
    bias = torch.randint(-3, 4, (n,), device=DEVICE).to(kind)
    pools = {("in", 0): a, ("in", 1): b, ("in", 2): bias, ("out", 0): c}
    launched(change(matmul(m, n, k, dtype=dtype)), pools, aligned)
    assert torch.equal(inner_c, (inner_a.double() @ inner_b.double().T + bias.double()).to(kind))
    inner_c.fill_(float("nan"))
    assert c.isnan().all(), "it wrote outside of the matrix"


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float16"])
@pytest.mark.parametrize("m, n, k", [(128, 64, 64), (70, 88, 72), (8, 8, 8)])
def test_blocks_are_read_and_written_and_zero_outside(m, n, k, dtype):
    check_matmul(m, n, k, dtype)


@pytest.mark.parametrize("aligned", [True, False] if interpreted() else [False])
def test_buffers_that_are_not_aligned_take_the_plain_kernel(aligned):
    # The interpreter looks for itself: with tensors, nobody compares addresses before.
    check_matmul(70, 88, 72, "bfloat16", skew=1, aligned=aligned)


def test_without_a_plain_kernel_such_buffers_are_refused():
    with pytest.raises(CompileFailed, match="matmul: takes tensor descriptors"):
        check_matmul(
            8, 8, 8, "bfloat16", skew=1, aligned=False, change=lambda s: replace(s, plain=None)
        )


def test_a_launch_by_triton_itself_takes_the_same_arguments():
    source = matmul(70, 88, 72)
    sizes = ((70, 72), (88, 72), (70, 88))
    a, b, c = (memory(*size, torch.bfloat16, 0)[0] for size in sizes)
    bias = torch.zeros(88, dtype=torch.bfloat16, device=DEVICE)
    found = arguments(source, (a, bias, b, c))
    assert found[1] is bias
    assert [tuple(f.shape) for f in (found[0], found[2], found[3])] == [*sizes]
    assert found[0].base.data_ptr() == a.data_ptr() + 2 * BORDER * (72 + BORDER)
    assert list(found[0].strides) == [72 + BORDER, 1]
    assert list(found[0].block_shape) == [64, 32]


TWICE = """
import triton
import triton.language as tl


@triton.jit
def twice(x, x_ptr, out_ptr):
    i, j = tl.arange(0, 16), tl.arange(0, 32)
    place = i[:, None] * 32 + j[None, :]
    tl.store(out_ptr + place, x.load([0, 0]) * 3 - tl.load(x_ptr + place))
"""
ROWS = Descriptor((16, 32), (32, 1), (16, 32))
TWICE_SOURCE = KernelSource(
    "twice",
    TWICE,
    (Buffer("in", 0, "float32", ROWS), Buffer("in", 0, "float32"), Buffer("out", 0, "float32")),
    1,
    4,
    2,
)


def planned(captured, x, **options):
    """An executor of x * 2, by the kernel that takes x twice."""
    found = captured(lambda x: x * 2, x)
    plan = Plan(
        key(found.graph), "cpu", (), "modelled", (GroupPlan((1,), "triton", "", Config(())),)
    )
    return Executor(
        found,
        plan,
        x.device,
        lower=lambda group, config, interpreted: Program((TWICE_SOURCE,)),
        **options,
    )


def test_an_executor_passes_one_buffer_both_ways(captured):
    x = torch.randn(16, 32, device=DEVICE)
    executor = planned(captured, x)
    assert executor.kernels_per_call == 1
    (found,) = executor(x)
    torch.testing.assert_close(found, x * 2)


def test_an_executor_asks_for_each_address_once(captured):
    calls = []

    class Recorded:
        takes_tensors = False

        def __init__(self, source, device):
            self.aligned = lambda stream, *pointers: calls.append(("aligned", *pointers))
            self.unaligned = lambda stream, *pointers: calls.append(("unaligned", *pointers))

    memory = torch.randn(16 * 32 + 1)
    x, skewed = memory[:-1].view(16, 32), memory[1:].view(16, 32)
    executor = planned(captured, x, load=Recorded)
    for given in (x, skewed):
        (out,) = executor(given)
        kind = "aligned" if given is x else "unaligned"
        assert calls.pop() == (kind, given.data_ptr(), given.data_ptr(), out.data_ptr())
    assert executor.text.count("data_ptr") == 2


@pytest.fixture(scope="module")
def compiled():
    from compiling import by_compiler  # not found where this file is run as a program

    return by_compiler(Path(__file__))


def test_descriptors_become_bulk_copies_into_tensor_core_operands(compiled):
    ptx = compiled["hopper"]
    # Three stages: two blocks of each operand before the loop, and one of each in it.
    assert ptx["loads"] == 6
    assert ptx["stores"] >= 1
    assert ptx["wgmma"]
    assert not ptx["cp.async"], "no operand is copied by threads"
    assert ptx["maps"] == 3
    assert ptx["spill_bytes"] == 0


def test_the_plain_kernel_copies_by_threads(compiled):
    ptx = compiled["plain"]
    assert ptx["loads"] == ptx["stores"] == ptx["maps"] == 0
    assert ptx["cp.async"]


def test_without_the_hardware_a_descriptor_is_addresses_and_sizes(compiled):
    ptx = compiled["ampere"]
    assert ptx["loads"] == ptx["stores"] == ptx["maps"] == 0


def test_what_cannot_be_described_is_a_failure(compiled):
    assert "bool" in compiled["bool"]
    assert "power of 2" in compiled["block"]


def _marks(source, target):
    made = compile_kernel(source, target)
    ptx = made.kernel.asm["ptx"]
    return {
        "loads": ptx.count("cp.async.bulk.tensor.2d.shared"),
        "stores": ptx.count("cp.async.bulk.tensor.2d.global"),
        "wgmma": "wgmma.mma_async" in ptx,
        "cp.async": "cp.async.cg" in ptx,
        "maps": len(made.kernel.metadata.tensordesc_meta or ()),
        "spill_bytes": resources(made).spill_bytes,
    }


def _failure(source):
    try:
        compile_kernel(source, Target())
    except CompileFailed as error:
        return str(error)
    return ""


def _main():
    source = matmul(1024, 1024, 1024, block=(128, 128, 64))
    a, bias, *rest = source.buffers
    odd = replace(a.descriptor, block=(96, 64))
    found = {
        "hopper": _marks(source, Target()),
        "plain": _marks(source.plain, Target()),
        "ampere": _marks(source, Target(capability=80)),
        "bool": _failure(replace(source, buffers=(replace(a, dtype="bool"), bias, *rest))),
        "block": _failure(replace(source, buffers=(replace(a, descriptor=odd), bias, *rest))),
    }
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    _main()
