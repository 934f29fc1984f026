"""Generated source, held as goldens in golden/. After a wanted change of the code generator:

    pytest tests/planner/codegen/test_source.py --accept-goldens

and read the difference before it is committed.
"""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from corpus import (
    BERT_EMBEDDINGS,
    HALF,
    Function,
    bert_embeddings,
    graph_of,
    group_norm_silu,
    layer_norm_residual,
    rotary,
    tensor,
)
from fusionplan.bench.contractions import DecodeAttention
from fusionplan.planner.codegen.source import Program
from fusionplan.planner.config import Config
from fusionplan.planner.costs.device import H200
from fusionplan.planner.lower import lower
from fusionplan.planner.space.space import Space, space_of
from fusionplan.planner.tiles import index_width
from graphs import Builder
from oracle import captured, check, whole_group

pytestmark = pytest.mark.dynamo

GOLDEN = Path(__file__).with_name("golden")


def blocks(**sizes: int) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(sizes.items()))


def attention(q, k, v):
    """A soft cap and a causal mask, from the formula."""
    scores = 30 * torch.tanh(q @ k.transpose(-1, -2) * 0.125 / 30)
    i = torch.arange(scores.shape[-1])
    return torch.softmax(scores.masked_fill(i > i[:, None], float("-inf")), -1) @ v


KERNELS: dict[str, tuple[Function, list[torch.Tensor], Config]] = {
    "pointwise_broadcast": (
        lambda x, b: torch.log(torch.relu(x + b)),
        [tensor(1000, 768, dtype=HALF), tensor(768, dtype=HALF)],
        Config(blocks(x0=4, x1=256), num_warps=4, num_stages=1),
    ),
    "pointwise_flat": (
        lambda x, b: torch.log(torch.relu(x + b)),
        [tensor(1000, 768, dtype=HALF), tensor(768, dtype=HALF)],
        Config(blocks(x0=1024), num_warps=4, num_stages=1, tiling="flat"),
    ),
    "softmax_held": (
        lambda x: torch.softmax(x, -1),
        [tensor(4096, 1000)],
        Config(blocks(x0=2), num_warps=4, num_stages=1),
    ),
    "softmax_loop": (
        lambda x: torch.softmax(x, -1),
        [tensor(4096, 1000)],
        Config(blocks(x0=2, r0=256), num_warps=4, num_stages=2, reduction="loop"),
    ),
    "layer_norm_residual": (
        layer_norm_residual,
        [tensor(*shape, dtype=HALF) for shape in ((4096, 1024), (4096, 1024), (1024,), (1024,))],
        Config(blocks(x0=1), num_warps=4, num_stages=1),
    ),
    "embeddings_layer_norm": (
        bert_embeddings,
        BERT_EMBEDDINGS,
        Config(blocks(x0=1, x1=1), num_warps=4, num_stages=1),
    ),
    "rotary": (
        rotary,
        [tensor(*shape, dtype=HALF) for shape in ((2, 8, 512, 64), (512, 64), (512, 64))],
        Config(blocks(x0=1, x1=16, x2=64), num_warps=4, num_stages=1),
    ),
    "split_sum": (
        lambda x: (x * x).sum(),
        [tensor(512, 2048)],
        Config(blocks(x0=1, r0=1024), num_warps=4, reduction="loop", num_stages=1, split=256),
    ),
    "group_norm_silu": (
        group_norm_silu,
        [tensor(4, 64, 16, 16), tensor(64), tensor(64)],
        Config(blocks(x0=1, x1=1), num_warps=8, num_stages=1),
    ),
    "linear_gelu": (
        lambda x, w, b: F.gelu(F.linear(x, w, b)),
        [tensor(*shape, dtype=HALF) for shape in ((4096, 128), (2048, 128), (2048,))],
        Config(
            blocks(x0=128, x1=128, r0=64),
            num_warps=8,
            num_stages=3,
            reduction="loop",
            group=8,
            access="descriptor",
        ),
    ),
    "attention": (
        attention,
        [tensor(2, 8, 1024, 64, dtype=HALF, device="cpu") for _ in range(3)],
        Config(blocks(x0=1, x1=128, r0=64), num_warps=4, num_stages=2, reduction="loop", group=8),
    ),
    "decode_attention": (
        DecodeAttention(),
        [tensor(*shape, dtype=HALF) for shape in ((2, 12, 1, 64), *[(2, 4, 1000, 64)] * 2)],
        Config(blocks(x0=1, x1=16, r0=64), num_warps=4, num_stages=3, reduction="loop", group=8),
    ),
}


def program(name: str) -> Program:
    function, inputs, config = KERNELS[name]
    found = lower(whole_group(graph_of(function, inputs)).graph, config)
    assert isinstance(found, Program), found
    return found


def text(found: Program) -> str:
    """All kernels of a program, with their launches."""
    parts = [f"# temporary: {kept}\n" for kept in found.temporaries]
    for kernel in found.kernels:
        buffers = ", ".join(f"{b.kind}{b.index}: {b.dtype}" for b in kernel.buffers)
        launch = f"grid {kernel.grid}, {kernel.num_warps} warps, {kernel.num_stages} stages"
        parts.append(f"# {kernel.name}: {launch}\n# {buffers}\n\n{kernel.text}")
    return "\n\n".join(parts)


@pytest.mark.parametrize("name", KERNELS)
def test_source_is_the_golden_one(name: str, request: pytest.FixtureRequest) -> None:
    found = text(program(name))
    golden = GOLDEN / f"{name}.py.txt"
    if request.config.getoption("--accept-goldens"):
        GOLDEN.mkdir(exist_ok=True)
        golden.write_text(found)
    assert golden.exists(), f"no {golden.name}: run with --accept-goldens"
    assert found == golden.read_text(), "changed: run with --accept-goldens when it is meant"


def test_there_is_no_golden_without_a_kernel() -> None:
    assert {path.name for path in GOLDEN.iterdir()} == {f"{name}.py.txt" for name in KERNELS}


@pytest.mark.parametrize("name", KERNELS)
def test_source_is_a_module_that_names_its_origins(name: str) -> None:
    for kernel in program(name).kernels:
        (function,) = [
            node
            for node in ast.parse(kernel.text).body
            if isinstance(node, ast.FunctionDef) and node.name == kernel.name
        ]
        assert len(function.args.args) == len(kernel.buffers)
        assert kernel.name.startswith("fused_")
        body = kernel.text[kernel.text.index(f"def {kernel.name}") :]
        assigned = [line for line in body.splitlines() if re.match(r"\s*v\d+ = ", line)]
        assert assigned
        # A running extremum stands under its value's name inside the loop as well.
        assert all("#" in line for line in assigned)


def test_a_split_sum_is_two_kernels_that_share_a_temporary() -> None:
    found = program("split_sum")
    assert [k.name for k in found.kernels] == ["fused_mul_sum_0", "fused_mul_sum_1"]
    assert [[b.kind for b in k.buffers] for k in found.kernels] == [["in", "tmp"], ["tmp", "out"]]
    assert [t.numel for t in found.temporaries] == [256]


def test_a_product_takes_its_bias_and_gelu_before_it_is_stored() -> None:
    (kernel,) = program("linear_gelu").kernels
    text = kernel.text[kernel.text.index("def fused_") :]
    assert text.count("tl.dot(") == text.count(".store(") == 1
    assert text.index("tl.dot(") < text.index("erf_plus_one(") < text.index(".store(")
    assert [b.descriptor is not None for b in kernel.buffers].count(True) == 3  # x, w, the result
    assert kernel.plain is not None
    assert "tl.load" in kernel.plain.text[kernel.plain.text.index("def fused_") :]


def test_attention_is_one_loop_that_ends_at_the_diagonal() -> None:
    found = program("attention")
    (kernel,) = found.kernels
    assert found.temporaries == ()
    text = kernel.text[kernel.text.index("def fused_") :]
    assert text.count("tl.range(") == 1
    assert text.count("tl.dot(") == 2
    assert "tl.range(0, r0_last" in text
    assert text.count("tl.store(") == 1


def test_a_product_is_rounded_before_a_fold_of_such_is_taken_from_it() -> None:
    """In one instruction with the difference, a gradient that vanishes would keep its rest; it may
    be written as a sum. So would the difference of a product and itself, which is 0, and of a mean
    of squares and the square of the mean."""

    def softmax_backward(dy, y):
        return dy * y - y * (dy * y).sum(-1, keepdim=True)

    def norm_backward(dy, x):
        norm = (x * x).sum(-1, keepdim=True)
        return dy / norm + x * (-(dy * x).sum(-1, keepdim=True) / norm)

    def with_itself(x, y):
        return (x * 1e4 - x * 1e4 + y).sum(-1)

    def differences(x, y):
        return (x * 1e4 - y * 1e4).sum(-1)

    def variance(squares, mean):
        return (squares - mean * mean).clamp(min=0).sqrt().sum(-1)

    inputs = [tensor(64, 100), tensor(64, 100)]
    held = Config(blocks(x0=1), num_warps=4, num_stages=1)
    cases = (softmax_backward, 2), (norm_backward, 1), (with_itself, 1), (differences, 0)
    cases += ((variance, 1),)
    for function, each in cases:
        part = whole_group(graph_of(function, inputs)).graph
        for interpreted, rounded in ((False, each), (True, 0)):
            found = lower(part, held, interpreted=interpreted)
            assert isinstance(found, Program)
            (kernel,) = found.kernels
            assert kernel.text.count("libdevice.mul_rn(") == rounded
    assert "mul_rn" not in text(program("layer_norm_residual"))


def summed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x[:, :, None] * y[None, :, :]).sum(2)


def multiplied_twice(x: torch.Tensor, weight: torch.Tensor, other: torch.Tensor) -> object:
    hidden = (x - x.sum(1, keepdim=True)) @ weight
    return hidden.relu() @ other, hidden.sum(0)


@pytest.mark.parametrize(
    "function, shapes, blocks",
    [
        (summed, [(16, 16), (16, 16)], (("x0", 16), ("x1", 16))),
        (multiplied_twice, [(16, 8), (8, 16), (16, 8)], ()),
    ],
)
def test_no_sum_of_products_is_written_as_triton_reads_a_product_of_matrices(
    function: Function, shapes: list[tuple[int, ...]], blocks: tuple[tuple[str, int], ...]
) -> None:
    """It would compute that in TF32, and along the middle axis, whichever is summed."""
    group = whole_group(graph_of(function, [tensor(*shape) for shape in shapes])).graph
    program = lower(group, Config(blocks, 1, 1))
    assert isinstance(program, Program)
    (kernel,) = program.kernels
    assert re.search(r"v\d+\[None, :, :\] \* v\d+\[:, :, None\]", kernel.text)
    assert not re.search(r"v\d+\[:, :, None\] \* v\d+\[None, :, :\]", kernel.text)


def test_a_joined_constant_is_stored_as_a_number() -> None:
    """Broadcast as if it had the joined dimension, it would not compile."""

    def joined(x):
        zeros = torch.zeros(20, 20, 20, device=x.device)
        return torch.slice_scatter(x, zeros, 1, 0, 20)

    part = whole_group(graph_of(joined, [tensor(20, 20, 20)])).graph
    found = lower(part, Config(blocks(x0=4, x1=4, x2=8), num_warps=1))
    assert isinstance(found, Program), found
    (kernel,) = found.kernels
    (store,) = re.findall(r"tl.store\((.*)\)", kernel.text)
    assert store.rpartition(" mask")[0].endswith(", v1,")


def test_the_same_plan_gives_the_same_text() -> None:
    assert text(program("rotary")) == text(program("rotary"))


def test_only_what_a_kernel_calls_is_pasted_above_it() -> None:
    kernel = program("softmax_held").kernels[0].text
    assert "def max_nan" in kernel
    assert "def fast_log" not in kernel
    assert "libdevice" not in kernel


@pytest.mark.parametrize("reduction", ["held", "loop"])
def test_no_index_overflows_in_a_tensor_of_more_than_2_to_the_31_elements(reduction: str) -> None:
    b = Builder()
    rows, columns = 4096, 2**20
    total = b.op("sum.dim_IntList", b.input(rows, columns), (0,), shape=(columns,))
    found = lower(b.graph(total), Config(blocks(x0=128, r0=64), 4, reduction=reduction))
    assert isinstance(found, Program)
    source = found.kernels[0].text
    assert "pid = tl.cast(tl.program_id(0), tl.int64)" in source
    (index,) = re.findall(r"^ +r0 = (.*?)  #", source, re.MULTILINE)
    widened = {"held": "tl.cast(tl.arange(", "loop": "tl.cast(r0_block0, tl.int64) * 64 + "}
    assert index.startswith(widened[reduction])


def test_no_index_overflows_where_what_small_tensors_broadcast_to_is_large() -> None:
    b = Builder()
    row, column = b.input(1, 2**16), b.input(2**16, 1)
    grid = b.op("add.Tensor", row, column, shape=(2**16, 2**16))
    graph = b.graph(b.op("sum.default", grid, shape=()))
    found = lower(graph, Config(blocks(r0=1024), 4, reduction="loop"))
    assert isinstance(found, Program), found
    (index,) = re.findall(r"^ +r0 = (.*?)  # loop axis of 4294967296", found.kernels[0].text, re.M)
    assert index.startswith("tl.cast(r0_block0, tl.int64) * 1024 + ")


@pytest.mark.parametrize("reduction", ["held", "loop", "nested"])
def test_wide_indices_give_the_same_numbers(
    reduction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As though any tensor were large; by pointers and by descriptors, persistent and not."""
    monkeypatch.setattr(index_width, "INT32_LIMIT", 1)
    x, y = torch.randn(37, 40), torch.randn(70, 40)
    function = lambda x, y: torch.logsumexp(x @ y.t(), -1)  # noqa: E731
    space = space_of(whole_group(captured(function, [x, y])[0].graph).graph, H200)
    assert isinstance(space, Space)
    found = [c for c, _ in space.seeds(200) if c.reduction == reduction and c.split == 1][:1]
    assert found
    changes = ({}, {"access": "pointer"}, {"programs": 2} if reduction != "nested" else {})
    chosen = list(dict.fromkeys(replace(found[0], **change) for change in changes))
    assert check(function, [x, y], chosen) == len(chosen)
