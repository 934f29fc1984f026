"""Lines of the L1 cache that the loads and stores of a program touch, and what that does to the
choice of blocks."""

import pytest
import torch
import torch.nn.functional as F
from corpus import graph_of
from fusionplan.planner.config import Config
from fusionplan.planner.costs.cost import timed
from fusionplan.planner.costs.device import builtin
from fusionplan.planner.costs.lanes import lines_touched
from fusionplan.planner.costs.tile_cache import placed
from fusionplan.planner.costs.work import work_of
from fusionplan.planner.space.space import space_of
from oracle import whole_group

pytestmark = pytest.mark.dynamo


def space(function, *shapes, dtype=torch.bfloat16):
    inputs = [torch.empty(*shape, device="meta", dtype=dtype) for shape in shapes]
    return whole_group(graph_of(function, inputs)).graph, builtin("h200")


def lines(function, blocks, warps, *shapes, **options):
    """Of one program of the first kernel."""
    graph, device = space(function, *shapes, dtype=options.pop("dtype", torch.bfloat16))
    config = Config(blocks, warps, 1, **options)
    kernel = space_of(graph, device).schedules[config.layout].kernels[0]
    return lines_touched(placed(kernel.nest, config), warps)


ROWS = (8192, 4096)


@pytest.mark.parametrize(
    "dtype, expected", [(torch.bfloat16, 2 * 16), (torch.float32, 2 * 32)], ids=str
)
def test_what_lies_side_by_side_is_counted_once(dtype, expected):
    """1024 numbers of 2 bytes are 16 lines, read and written."""
    assert lines(torch.relu, (("x0", 1024),), 4, ROWS, dtype=dtype) == expected


@pytest.mark.parametrize("columns", [8, 16, 64])
def test_lanes_in_rows_of_their_own_take_a_line_each(columns):
    """Of a column sum: 256 rows of so many columns; 16 bytes belong to one lane."""
    blocks = (("x0", 1), ("x1", columns), ("y0", 16))
    found = lines(lambda a: a.sum(0), blocks, 4, ROWS, split=32)
    stored = columns * 4 / 128  # of the partial sums, whose rows are float32
    assert found == 256 + max(1, stored)


def test_a_transpose_lays_each_side_out_by_itself():
    """16 numbers are 32 bytes, of a line each, in one tensor; 512 of the other are whole lines."""
    blocks = (("x0", 512), ("x1", 16))
    found = lines(lambda a: a.t().contiguous() + 1, blocks, 16, (8192, 8192))
    assert found == 512 + 16 * 512 * 2 / 128


def test_what_is_read_in_strides_is_read_number_by_number():
    """Every second number: a thread stores 8 of them at once, and loads each by an instruction
    whose lanes lie 32 bytes apart."""
    found = lines(lambda a: a[:, ::2] * 2, (("x0", 1024),), 4, (8192, 16384))
    loads, stores = 1024 / 32 * 32 * 32 / 128, 1024 * 2 / 128
    assert found == loads + stores
    # With one number a thread the lanes lie 4 bytes apart.
    assert lines(lambda a: a[:, ::2] * 2, (("x0", 1024),), 32, (8192, 16384)) == 32 + 32


def test_lanes_of_a_strided_load_go_along_the_first_axis():
    """Triton's order where nothing lies side by side: 16 rows of 64 pixels, of which a warp loads
    16 rows times 2; what it stores lies side by side, in vectors of 8 bytes."""
    found = lines(lambda a: F.avg_pool2d(a, 2), (("x0", 16), ("x1", 64)), 8, (64, 64, 112, 112))
    loads, stores = 4 * 32 * 16, 8 * 2
    assert found == pytest.approx(loads + stores, rel=0.1)


def test_the_model_avoids_narrow_blocks_of_a_strided_image():
    """A maximum pool on an H200: 422 us with blocks of 8 columns, 79 us by the flat tiling."""
    graph, device = space(lambda a: F.max_pool2d(a, 3, 2, 1), (64, 64, 112, 112))
    of = space_of(graph, device)
    narrow = Config((("x0", 128), ("x1", 2), ("x2", 8)), 8, 1)
    flat = Config((("x0", 512),), 4, 1, tiling="flat")
    found = []
    for config in (narrow, flat, of.ranked(1)[0][0]):
        (kernel,) = of.schedules[config.layout].kernels
        found.append(work_of(kernel.nest, config, device))
    assert timed(found[0], device).seconds > 2.5 * timed(found[1], device).seconds
    assert found[0].l1_lines > 3 * found[2].l1_lines


def test_columns_of_a_thread_are_each_exchanged():
    """A variance of columns in tiles of 512 rows, 8 columns a thread: 129 us on an H200 by 16
    warps, 55 by 4, of which fewer meet."""
    graph, device = space(lambda a: a.var(0), (16384, 4096))
    of = space_of(graph, device)
    found = []
    for warps in (16, 4):
        config = Config((("x0", 1), ("x1", 16), ("y0", 32)), warps, 1, split=32)
        kernel = of.schedules[config.layout].kernels[0]
        found.append(timed(work_of(kernel.nest, config, device), device).compute_s)
    assert found[0] > 1.5 * found[1]


def enlarged(a):
    at = (torch.arange(128) * 0.5).to(torch.int64)
    return a[:, :, at[:, None], at]


def gathered(a, index):
    return a.view(-1)[index]


def test_an_index_of_positions_alone_reads_what_lies_near():
    """The pixels of an enlarged image: 512 lie in few lines; a gather of as many places takes a
    line for each."""
    blocks = (("x0", 1), ("x1", 4), ("x2", 128))
    assert lines(enlarged, blocks, 4, (16, 64, 64, 64)) <= 24 + 8
    graph, device = space(enlarged, (16, 64, 64, 64))
    of = space_of(graph, device)
    config, cost = of.ranked(1)[0]
    assert cost.seconds < 2 * of.floor_s()
    index = torch.empty(1 << 20, device="meta", dtype=torch.int64)
    pixels = torch.empty(16, 64, 64, 64, device="meta", dtype=torch.bfloat16)
    graph = whole_group(graph_of(gathered, [pixels, index])).graph
    config = Config((("x0", 512),), 4, 1)
    (kernel,) = space_of(graph, device).schedules[config.layout].kernels
    assert lines_touched(placed(kernel.nest, config), 4) >= 512
