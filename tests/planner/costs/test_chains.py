"""Registers, spills and waits of kernels of several products."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from corpus import graph_of, tensor
from fusionplan.planner.config import Config
from fusionplan.planner.costs import matrix
from fusionplan.planner.costs.cost import Cost, estimate
from fusionplan.planner.costs.device import H100
from fusionplan.planner.costs.tile_cache import scheduled
from fusionplan.planner.graph.graph import Graph
from fusionplan.planner.nests.group_nests import Schedule, schedule_group
from fusionplan.planner.nests.nest import Nest
from oracle import whole_group

pytestmark = pytest.mark.dynamo


def group(function, *inputs: torch.Tensor) -> Graph:
    return whole_group(graph_of(function, inputs)).graph


def nest_of(part: Graph, config: Config) -> Nest:
    found = schedule_group(part, config.layout)
    assert isinstance(found, Schedule), found
    (kernel,) = found.kernels
    return kernel.nest


def of_kernel(part: Graph, config: Config) -> Cost:
    return estimate(nest_of(part, config), config, H100)


def test_what_is_computed_from_a_product_waits_in_registers_for_the_next_one() -> None:
    """Two tiles of float32 together, each as large as half of all registers, do not fit: 2,600
    bytes a thread were spilled on an H100 by such a kernel, of 446 us where smaller blocks took
    146."""
    x, y = (tensor(4096, 128, dtype=torch.bfloat16) for _ in range(2))
    first, second = (tensor(128, 256, dtype=torch.bfloat16) for _ in range(2))
    alone = group(lambda x, first: torch.relu(x @ first), x, first)
    both = group(lambda *of: torch.relu(of[0] @ of[2]) + of[1] @ of[3], x, y, first, second)
    wide = Config((("x0", 128), ("x1", 256)), 8, 1)
    small = Config((("x0", 64), ("x1", 128)), 4, 1)
    assert of_kernel(alone, wide).spill_bytes == 0
    assert of_kernel(both, wide).spill_bytes > 0
    assert of_kernel(both, small).spill_bytes == 0
    assert of_kernel(both, small).registers > of_kernel(alone, small).registers + 50
    assert of_kernel(both, small).seconds < of_kernel(both, wide).seconds


@pytest.mark.parametrize("stages, waits", [(1, 12.0), (2, 4.0), (3, 2.0)])
def test_several_products_wait_for_the_loads_of_every_loop(stages: int, waits: float) -> None:
    """Two loops of two turns along one axis, both of which load; fewer waits with loads ahead."""
    x, weight = (tensor(*shape, dtype=torch.bfloat16) for shape in ((512, 256), (256,)))
    first, second = (tensor(n, 64, dtype=torch.bfloat16) for n in (256, 64))

    def products(x, weight, first, second):
        normed = torch.nn.functional.layer_norm(x, (256,), weight)
        return torch.relu(normed @ first) @ second

    part = group(products, x, weight, first, second)
    config = Config((("r0", 128), ("x0", 16)), 4, stages, reduction="loop")
    made = matrix.products_of(scheduled(nest_of(part, config), config), config, 32)
    assert made is not None
    assert made.chain is not None
    assert made.chain.waits == waits
    quick = replace(config, blocks=(("r0", 256), ("x0", 16)))
    assert of_kernel(part, quick).seconds < of_kernel(part, config).seconds


def test_a_hidden_layer_that_finds_no_room_is_spilled_whole() -> None:
    """GELU between two products, of which the second keeps 128 results a thread: 408 bytes a thread
    were spilled on an H100, in 235 us; the model said none, and 105."""
    shapes = (200704, 96), (384, 96), (384,), (96, 384), (96,)
    given = [tensor(*shape, dtype=torch.bfloat16) for shape in shapes]
    linear, gelu = torch.nn.functional.linear, torch.nn.functional.gelu
    part = group(lambda x, *of: linear(gelu(linear(x, *of[:2])), *of[2:]), *given)
    config = Config((("r0", 64), ("x0", 128)), 4, 2, reduction="loop", group=8, access="descriptor")
    cost = of_kernel(part, config)
    assert cost.spill_bytes >= matrix.SURE
    assert cost.seconds == pytest.approx(235e-6, rel=0.2)


def test_vectors_along_columns_take_registers_of_every_lane() -> None:
    """The scale and shift of a batch norm behind a product: a lane has a fourth of each."""
    x, first, second = (
        tensor(*of, dtype=torch.bfloat16) for of in ((200704, 64), (256, 64), (64, 256))
    )
    norm = tensor(256, dtype=torch.bfloat16)
    plain = group(lambda x, a, b: torch.relu(x @ a.T) @ b.T, x, first, second)
    normed = group(
        lambda x, a, b, s, t: torch.relu((x @ a.T) * s + t) @ b.T, x, first, second, norm, norm
    )
    config = Config((("r0", 64), ("x0", 128)), 8, 3, reduction="loop", group=8)
    more = of_kernel(normed, config).registers - of_kernel(plain, config).registers
    assert 4 <= more <= 32
