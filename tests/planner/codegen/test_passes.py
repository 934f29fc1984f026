"""What a second pass over the same memory does: its order, its hints to the caches, its blocks."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from corpus import graph_of, tensor
from fusionplan.planner.codegen.source import Program
from fusionplan.planner.config import Config
from fusionplan.planner.lower import lower
from oracle import DEVICE, check, whole_group

pytestmark = pytest.mark.dynamo

LOOP = Config((("r0", 16), ("x0", 2)), num_warps=1, num_stages=1, reduction="loop")
SPLIT = Config(
    (("x0", 1), ("x1", 1), ("y0", 1), ("y1", 1024)),
    num_warps=4,
    num_stages=1,
    eviction="both",
    split=8,
)


def norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:], w)


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


def texts(function: Callable[..., object], config: Config, *inputs: torch.Tensor) -> list[str]:
    found = lower(whole_group(graph_of(function, inputs)).graph, config)
    assert isinstance(found, Program), found
    return [kernel.text for kernel in found.kernels]


@pytest.mark.parametrize("widen", [2, 4, 16])
@pytest.mark.parametrize("columns", [16, 64, 83])
def test_several_blocks_at_once_in_a_pass_that_folds_nothing(columns: int, widen: int) -> None:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(5, columns, generator=generator).to(DEVICE)
    w = torch.randn(columns, generator=generator).to(DEVICE)
    config = Config(LOOP.blocks, num_warps=1, num_stages=1, reduction="loop", widen=widen)
    assert check(norm, [x, w], [config]) == 1
    (text,) = texts(norm, config, tensor(5, columns), tensor(columns))
    folding, _, writing = text.partition("for r0_block1")
    assert "tl.arange(0, 16)" in folding
    covered = 1 << (columns - 1).bit_length()
    assert f"tl.arange(0, {min(16 * widen, covered)})" in writing


def test_a_second_walk_over_a_row_begins_where_the_first_ended() -> None:
    (text,) = texts(norm, LOOP, tensor(5, 83), tensor(83))
    assert "r0 = r0_block0 * 16" in text
    assert "r0 = (5 - r0_block1) * 16" in text


def test_the_last_read_of_an_input_is_told_from_those_before_it() -> None:
    both = Config(LOOP.blocks, num_warps=1, num_stages=1, reduction="loop", eviction="both")
    (text,) = texts(norm, both, tensor(5, 83), tensor(83))
    hints = dict.fromkeys(
        (line.partition("tl.load(")[2][:3], "evict_last" in line, "evict_first" in line)
        for line in text.splitlines()
        if "tl.load(" in line
    )
    assert [*hints] == [("in0", True, False), ("in0", False, True), ("in1", True, False)]


def test_the_kernels_of_a_split_share_what_the_cache_holds() -> None:
    """The first keeps its input for the second, which reads it backwards and for the last time."""
    first, second = texts(softmax, SPLIT, tensor(2, 32768))
    (load,) = (line for line in first.splitlines() if "tl.load(in0" in line)
    assert "evict_last" in load
    (load,) = (line for line in second.splitlines() if "tl.load(in0" in line)
    assert "evict_first" in load
    assert "pid = 63 - pid" in second
    assert " - pid" not in first


@pytest.mark.parametrize("across", [False, True])
def test_parts_of_a_result_lie_side_by_side_where_memory_is_reduced_along(across: bool) -> None:
    function = (lambda x: x.sum(0)) if across else (lambda x: x.sum(1))
    shape = (32768, 4) if across else (4, 32768)
    config = Config((("r0", 1024), ("x0", 1), ("x1", 4), ("y0", 4)), split=8, reduction="loop")
    found = lower(whole_group(graph_of(function, [tensor(*shape)])).graph, config)
    assert isinstance(found, Program), found
    (kept,) = found.temporaries
    assert kept.shape == (8, 4)
    assert kept.stride == ((4, 1) if across else (1, 8))
    x = torch.randn(shape, generator=torch.Generator().manual_seed(6)).to(DEVICE)
    assert check(function, [x], [config]) == 2


@pytest.mark.parametrize("rows", [1, 16])
def test_parts_of_a_product_of_matrices_are_stored_by_rows(rows: int) -> None:
    """A program has a tile of them. Side by side for each result they would be stored 4 bytes at a
    time: on an H200 22 us of a product of 32 rows, where the parts alone take about 10."""

    def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x @ w.t()

    blocks = (("r0", 64), ("x0", 16), ("x1", 32), ("x2", 1), ("y0", 32))
    single = (("r0", 64), ("x0", 8), ("x1", 1), ("y0", 32))
    chosen = single if rows == 1 else blocks
    config = Config(chosen, num_warps=4, num_stages=1, split=8, reduction="loop")
    shapes = (rows, 4096), (64, 4096)
    given = [tensor(*shape, dtype=torch.bfloat16) for shape in shapes]
    found = lower(whole_group(graph_of(product, given)).graph, config)
    assert isinstance(found, Program), found
    (kept,) = found.temporaries
    assert kept.shape == (8, rows, 64)
    assert kept.stride == ((1, 512, 8) if rows == 1 else (rows * 64, 64, 1))
    generator = torch.Generator().manual_seed(6)
    x, w = (torch.randn(s, generator=generator).to(DEVICE, torch.bfloat16) for s in shapes)
    assert check(product, [x, w], [config]) == 2


def test_products_lie_in_the_threads_that_loaded_the_larger_factor() -> None:
    """Indexed with None it would be moved to others, through shared memory."""

    def scores(queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        return queries @ keys.t()

    config = Config((("x0", 2), ("x1", 32)), num_warps=1, num_stages=1)
    (text,) = texts(scores, config, tensor(4, 64), tensor(96, 64))
    assert re.search(r"v\d+\[:, None, :\] \* tl\.reshape\(v\d+, \[1, 32, 64\]\)", text), text
    generator = torch.Generator().manual_seed(9)
    queries, keys = (torch.randn(n, 64, generator=generator).to(DEVICE) for n in (4, 96))
    assert check(scores, [queries, keys], [config]) == 1


def test_sums_that_do_not_need_each_other_are_reduced_at_once() -> None:
    def several(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        a, b, c = x.sum(-1), (x * y).sum(-1), y.amax(-1)
        return a + b + c + (x - a[:, None]).abs().sum(-1)

    held = Config((("x0", 2),), num_warps=1, num_stages=1)
    (text,) = texts(several, held, tensor(6, 100), tensor(6, 100))
    assert text.count("tl.reduce((") == 1, "the third sum needs the first"
    assert "1, sums_of_2)" in text
    assert text.count("tl.sum(") == 1
    loop = Config((("r0", 16), ("x0", 2)), num_warps=1, num_stages=1, reduction="loop")
    two = lower(whole_group(graph_of(_pair_of_sums, [tensor(6, 100), tensor(6, 100)])).graph, loop)
    assert isinstance(two, Program), two
    assert "tl.reduce((v" in two.kernels[0].text
    generator = torch.Generator().manual_seed(8)
    x, y = (torch.randn(6, 100, generator=generator).to(DEVICE) for _ in range(2))
    assert check(several, [x, y], [held]) == 1
    assert check(_pair_of_sums, [x, y], [held, loop]) == 2


def _pair_of_sums(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x * y).sum(-1) / (x * x).sum(-1)


def test_parts_of_sums_over_rows_are_written_side_by_side() -> None:
    """What has one element for each row, and so lies along the rows, does not decide it."""

    def columns(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return (x * scale[:, None]).sum(0)

    config = Config((("r0", 64), ("x0", 1), ("x1", 64), ("y0", 64)), split=8, reduction="loop")
    found = lower(whole_group(graph_of(columns, [tensor(8192, 64), tensor(8192)])).graph, config)
    assert isinstance(found, Program), found
    (kept,) = found.temporaries
    assert (kept.shape, kept.stride) == ((8, 64), (64, 1))


ROW = Config((("x0", 4),), num_warps=4, num_stages=1)


def normed_product(x: torch.Tensor, w: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
    return (wide.to(x.dtype) * w) @ matrix.t()


def test_the_matrix_of_a_row_is_under_way_while_the_row_is_reduced() -> None:
    """A load after the norm's reduction would be begun behind its barrier. What all programs read,
    such as the norm's scale, is found in a cache and stays where it is read."""
    half = {"dtype": torch.bfloat16}
    shapes = (1, 256), (256,), (64, 256)
    (text,) = texts(normed_product, ROW, *(tensor(*shape, **half) for shape in shapes))
    row, matrix, reduced, scale = (
        text.index(part) for part in ("tl.load(in0", "tl.load(in2", "tl.sum(", "tl.load(in1")
    )
    assert row < matrix < reduced < scale
    generator = torch.Generator().manual_seed(9)
    given = [torch.randn(s, generator=generator).to(DEVICE, torch.bfloat16) for s in shapes]
    assert check(normed_product, given, [ROW]) == 1


def test_no_more_is_loaded_before_a_reduction_than_registers_hold() -> None:
    """Each thread would keep 512 bytes of the matrix through the reduction."""
    half = {"dtype": torch.bfloat16}
    wide = Config((("x0", 32),), num_warps=1, num_stages=1)
    (text,) = texts(
        normed_product, wide, *(tensor(*s, **half) for s in ((1, 256), (256,), (64, 256)))
    )
    assert text.index("tl.sum(") < text.index("tl.load(in2")
