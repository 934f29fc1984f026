"""Rows that begin anywhere, read and written as whole vectors: numbers, neighbours and the ends of
the memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import triton.runtime.interpreter as interpreter
from corpus import graph_of
from fusionplan.planner.config import LOOP, NATURAL, Config, Layout
from fusionplan.planner.costs.device import builtin
from fusionplan.planner.lower import lower
from fusionplan.planner.runtime.machine_code.launch import Launcher
from fusionplan.planner.space.space import space_of
from fusionplan.planner.tiles import alignment
from oracle import DEVICE, assert_close, check, whole_group

pytestmark = pytest.mark.interpreter

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


def layer_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, (x.shape[-1],), w, b)


def rms_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w


def cross_entropy(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x, target, reduction="none")


def scaled_distance(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    apart = x.float() - y
    return (apart / apart.abs().amax(-1, keepdim=True) * w).to(x.dtype)


def variance(x: torch.Tensor) -> torch.Tensor:
    return x.var(-1, unbiased=False)


def deviation(x: torch.Tensor) -> torch.Tensor:
    return x.std(-1)


def of_words(x: torch.Tensor) -> torch.Tensor:
    return torch.logsumexp(x[:, :37], -1)


CASES: dict[str, tuple[Callable[..., torch.Tensor], int]] = {
    "softmax": (softmax, 0),
    "layer norm": (layer_norm, 2),
    "rms norm": (rms_norm, 1),
    "cross-entropy": (cross_entropy, 0),
}
HELD = Config((("x0", 1),), num_stages=1)


def looped(block: int) -> Config:
    return Config((("r0", block), ("x0", 1)), num_stages=1, reduction="loop")


def config_of(layout: Layout, block: int) -> Config:
    return HELD if layout == NATURAL else looped(block)


def inputs_of(name: str, x: torch.Tensor) -> list[torch.Tensor]:
    if name == "cross-entropy":
        return [x, torch.arange(len(x), device=DEVICE) * 5 % x.shape[1]]
    extra = CASES[name][1]
    return [x, *(torch.randn(x.shape[1], device=DEVICE).to(x.dtype) for _ in range(extra))]


def text_of(function: Callable[..., object], inputs: Sequence[torch.Tensor], config: Config) -> str:
    program = lower(whole_group(graph_of(function, inputs)).graph, config, interpreted=True)
    return "".join(kernel.text for kernel in program.kernels)


class Watched:
    """Triton's interpreter, whose loads and stores must lie in the storages of these tensors."""

    def __init__(self, tensors: Sequence[torch.Tensor], original: Any) -> None:
        storages = [t.untyped_storage() for t in tensors]
        self.ranges = [(s.data_ptr(), s.data_ptr() + s.nbytes()) for s in storages]
        self.original = original
        self.loads = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.original, name)

    def load(self, pointers: Any, mask: Any, other: Any, dtype: Any) -> Any:
        used = np.asarray(pointers)[np.asarray(mask, dtype=bool)].astype(np.int64)
        size = np.dtype(dtype).itemsize
        inside = np.zeros(used.shape, dtype=bool)
        for first, end in self.ranges:
            inside |= (used >= first) & (used + size <= end)
        assert inside.all(), "a load leaves its tensor's memory"
        self.loads += 1
        return self.original.load(pointers, mask, other, dtype)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Watched]:
    def begin(tensors: Sequence[torch.Tensor]) -> Watched:
        watched = Watched(tensors, interpreter._interpreter)
        monkeypatch.setattr(interpreter, "_interpreter", watched)
        return watched

    return begin


@pytest.mark.parametrize("dtype", [F32, BF16, F16], ids=str)
@pytest.mark.parametrize("layout", [NATURAL, LOOP], ids=lambda layout: layout.name)
@pytest.mark.parametrize("name", CASES)
def test_rows_that_begin_anywhere(name: str, layout: Layout, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    inputs = inputs_of(name, torch.randn(5, 37, device=DEVICE).to(dtype))
    config = config_of(layout, 16)
    assert "r0_skip" in text_of(CASES[name][0], inputs, config)
    assert check(CASES[name][0], inputs, [config]) == 1


@pytest.mark.parametrize("block", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("name, columns", [("variance", 3), ("layer norm", 3), ("layer norm", 11)])
def test_a_block_shorter_than_a_vector_holds_no_lane_before_its_row(
    name: str, columns: int, block: int
) -> None:
    """The first blocks of a row would hold nothing of it."""
    torch.manual_seed(0)
    x = torch.randn(9, columns, device=DEVICE).to(BF16)
    function = variance if name == "variance" else CASES[name][0]
    inputs = [x] if name == "variance" else inputs_of(name, x)
    assert ("r0_skip" in text_of(function, inputs, looped(block))) == (block >= 8 < columns)
    assert check(function, inputs, [looped(block)]) == 1


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
@pytest.mark.parametrize("layout", [NATURAL, LOOP], ids=lambda layout: layout.name)
@pytest.mark.parametrize("name", ["layer norm", "rms norm"])
def test_weights_of_many_rows_are_copied_for_every_start(
    name: str, layout: Layout, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a kernel before, so that they are read as whole vectors, too; the weights begin anywhere
    themselves."""
    monkeypatch.setattr(alignment, "_MANY_ROWS", 1)
    monkeypatch.setattr(alignment, "_MANY_BYTES", 1)
    torch.manual_seed(0)
    function, config = CASES[name][0], config_of(layout, 16)
    x, *weights = inputs_of(name, torch.randn(9, 37, device=DEVICE).to(dtype))
    inputs = [x, *(torch.cat([w[:3], w])[3:] for w in weights)]
    text = text_of(function, inputs, config)
    assert "row1 + r0_skip" in text
    assert "[None, :]" not in text
    program = lower(whole_group(graph_of(function, inputs)).graph, config, interpreted=True)
    assert len(program.kernels[0].buffers) == 2 * len(weights)
    assert len(program.temporaries) == len(weights)
    assert check(function, inputs, [config]) == 2


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
@pytest.mark.parametrize("columns", [53, 61, 101])
@pytest.mark.parametrize("name", CASES)
def test_the_middle_of_a_row_has_no_masks(name: str, columns: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    inputs = inputs_of(name, torch.randn(9, columns, device=DEVICE).to(dtype))
    text = text_of(CASES[name][0], inputs, looped(16))
    assert f"tl.range(1, {columns // 16})" in text
    assert check(CASES[name][0], inputs, [looped(16)]) == 1


@pytest.mark.parametrize("offset", [0.0, 1e4, -3e6])
@pytest.mark.parametrize("first", [0.0, 1e5])
def test_squares_are_summed_from_the_mean_of_the_first_block(offset: float, first: float) -> None:
    """Rows of large numbers near each other, and rows whose first element is far from all others.
    Where all are alike the variance is 0 and no NaN."""
    torch.manual_seed(0)
    x = torch.randn(9, 101, device=DEVICE) + offset
    x[:, 0] += first
    x[4] = 1 / 3
    assert "_pivot" in text_of(variance, [x], looped(16))
    assert check(variance, [x], [looped(16)]) == 1
    assert check(deviation, [x], [looped(16)]) == 1


@pytest.mark.parametrize("layout", [NATURAL, LOOP], ids=lambda layout: layout.name)
@pytest.mark.parametrize("name", ["softmax", "layer norm"])
def test_what_neighbours_hold_does_not_leak(name: str, layout: Layout) -> None:
    """Every row has neighbours of NaN or infinity, before and behind."""
    torch.manual_seed(0)
    function, config = CASES[name][0], config_of(layout, 16)
    x = torch.randn(7, 37, device=DEVICE)
    for poison in (float("nan"), float("inf"), float("-inf")):
        x[::2] = poison
        inputs = inputs_of(name, x)
        assert function(*inputs)[1::2].isfinite().all()
        assert check(function, inputs, [config]) == 1


@pytest.mark.parametrize("layout", [NATURAL, LOOP], ids=lambda layout: layout.name)
@pytest.mark.parametrize("rows", [3, 4, 8])
def test_the_ends_of_the_memory(rows: int, layout: Layout, watch: Callable[..., Watched]) -> None:
    """Of 8 rows the last ends with a vector, of 3 and 4 within one: nothing beyond is read, and
    nothing of an output's neighbours is written."""
    torch.manual_seed(0)
    x = torch.randn(rows, 37, device=DEVICE).to(BF16)
    part = whole_group(graph_of(softmax, [x]))
    (kernel,) = lower(part.graph, config_of(layout, 16), interpreted=True).kernels
    assert ("_past < r0_past8" in kernel.text) == (rows < 8)
    around = torch.full((rows * 37 + 64,), 7.0, dtype=BF16, device=DEVICE)
    out = around[32 : 32 + rows * 37].view(rows, 37)
    watched = watch([x, around])
    Launcher(kernel, torch.device(DEVICE)).aligned(0, x, out)
    assert watched.loads >= rows
    assert_close(out, softmax(x.double()), softmax(x), "softmax")
    assert (around[:32] == 7).all()
    assert (around[32 + rows * 37 :] == 7).all()


def test_rows_that_are_loaded_before_the_wait() -> None:
    """The row of a graph's own input stands in the head of an overlapping kernel."""
    inputs = [torch.randn(5, 37, device=DEVICE)]
    part = whole_group(graph_of(softmax, inputs))
    (kernel,) = lower(part.graph, HELD, unwritten=frozenset({0})).kernels
    before, _ = kernel.text.split("gdc_wait")
    assert "tl.load(in0 + r0_from + r0_lane" in before


def test_a_window_of_longer_rows(watch: Callable[..., Watched]) -> None:
    """Between the rows lie others' elements, which are no numbers; the last ends the memory."""
    torch.manual_seed(0)
    memory = torch.full((6 * 43,), float("nan"), device=DEVICE)
    x = memory[5:].as_strided((6, 37), (43, 1), memory.numel() - 5 * 43 - 37)
    x.copy_(torch.randn(6, 37))
    part = whole_group(graph_of(softmax, [x]))
    (kernel,) = lower(part.graph, looped(16), interpreted=True).kernels
    out = torch.empty(6, 37, device=DEVICE)
    watch([memory, out])
    Launcher(kernel, torch.device(DEVICE)).aligned(0, x, out)
    assert_close(out, softmax(x.double()), softmax(x), "softmax")


def test_rows_that_begin_well_and_end_within_a_vector() -> None:
    """A vocabulary that is padded to whole vectors: only the mask would make accesses narrow."""
    torch.manual_seed(0)
    x = torch.full((3, 48), float("nan"), device=DEVICE)
    x[:, :37] = torch.randn(3, 37)
    assert "r0_skip" in text_of(of_words, [x], looped(16))
    assert check(of_words, [x], [HELD, looped(16)]) == 2


@pytest.mark.parametrize("name", ["softmax", "layer norm", "rms norm"])
def test_the_model_gives_each_program_a_row_of_its_own(name: str) -> None:
    """So that rows of 4099 columns take hardly longer than those that begin on 16 bytes."""
    seconds = []
    for columns in (4099, 4104):
        x = torch.empty(32768, columns, device="meta", dtype=BF16)
        more = [torch.empty(columns, device="meta", dtype=BF16)] * CASES[name][1]
        group = whole_group(graph_of(CASES[name][0], [x, *more])).graph
        config, cost = space_of(group, builtin("h200")).ranked(1)[0]
        seconds.append(cost.seconds)
        assert columns == 4104 or "r0_skip" in text_of(CASES[name][0], [x, *more], config)
    assert seconds[0] < 1.2 * seconds[1]


def test_two_dtypes_with_the_same_rows() -> None:
    """Vectors of 8 elements and of 4; weights begin elsewhere."""
    torch.manual_seed(0)
    x, y = torch.randn(2, 4, 37, device=DEVICE)
    inputs = [x.to(BF16), y, torch.randn(37, device=DEVICE)]
    text = text_of(scaled_distance, inputs, HELD)
    assert "r0_past4" in text
    assert "r0_past8" in text
    assert check(scaled_distance, inputs, [HELD, looped(16), looped(64)]) == 3


def copied(x: torch.Tensor) -> torch.Tensor:
    return x.clone(memory_format=torch.contiguous_format)


def biased(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.relu(x * 2 + b)


def of_window(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return x[:, 3:-1] - b[3:-1]


def of_columns(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return x.float() + b[:, None]


def gridded(block: int, **more: Any) -> Config:
    return Config((("x0", 1), ("x1", block)), num_stages=1, **more)


@pytest.mark.parametrize("dtype", [F32, BF16, F16], ids=str)
@pytest.mark.parametrize("columns", [293, 295, 1001])
@pytest.mark.parametrize("name", ["biased", "of_window", "of_columns"])
def test_windows_of_rows_along_the_grid(name: str, columns: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(9, columns, device=DEVICE).to(dtype)
    b = torch.randn(9 if name == "of_columns" else columns, device=DEVICE).to(dtype)
    function, config = globals()[name], gridded(256)
    assert "x1_skip" in text_of(function, [x, b], config)
    persistent = gridded(256, programs=4)
    assert check(function, [x, b], [config, persistent]) == 2


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
@pytest.mark.parametrize("rows", [2, 3, 8])
@pytest.mark.parametrize("between", [7, 8, 10])
def test_rows_copied_from_longer_ones(
    between: int, rows: int, dtype: torch.dtype, watch: Callable[..., Watched]
) -> None:
    """What is stored decides where blocks begin; nothing is read but the rows, nothing written
    beside them."""
    memory = torch.full((rows * (1001 + between) - between,), float("nan"), device=DEVICE).to(dtype)
    x = memory.as_strided((rows, 1001), (1001 + between, 1))
    x.copy_(torch.randn(rows, 1001))
    (kernel,) = lower(
        whole_group(graph_of(copied, [x])).graph, gridded(256), interpreted=True
    ).kernels
    assert f"x1_skip = (x0 * {1001 + between * (between == 8)})" in kernel.text, "8: both alike"
    around = torch.full((rows * 1001 + 64,), 7.0, dtype=dtype, device=DEVICE)
    out = around[32 : 32 + rows * 1001].view(rows, 1001)
    watch([memory, around])
    Launcher(kernel, torch.device(DEVICE)).aligned(0, x, out)
    assert torch.equal(out, x)
    assert (around[:32] == 7).all()
    assert (around[32 + rows * 1001 :] == 7).all()


def test_short_blocks_and_several_rows_are_as_before() -> None:
    """A warp has no vector for each of its lanes, or a tile holds rows that begin differently; and
    one row begins at a tensor's start."""
    inputs = [torch.empty(64, 1001, dtype=BF16, device="meta"), torch.empty(1001, device="meta")]
    assert "x1_skip" in text_of(biased, inputs, gridded(256))
    assert "x1_skip" not in text_of(biased, inputs, gridded(128))
    assert "x1_skip" not in text_of(biased, inputs, Config((("x0", 2), ("x1", 256))))
    single, line = Config((("x0", 256),)), [torch.randn(1, 1001, device=DEVICE).to(BF16)]
    assert "x0_skip" not in text_of(copied, line, single)
    assert check(copied, line, [single]) == 1


def test_the_model_copies_odd_rows_by_windows() -> None:
    x = torch.empty_strided((8192, 50257), (50264, 1), dtype=BF16, device="meta")
    config, _ = space_of(whole_group(graph_of(copied, [x])).graph, builtin("h200")).ranked(1)[0]
    assert "x1_skip" in text_of(copied, [x], config)
