"""Registers and spills of kernels of several products."""

from __future__ import annotations

import pytest
import torch
from corpus import graph_of, tensor
from fusionplan.planner.config import Config
from fusionplan.planner.costs.cost import Cost, estimate
from fusionplan.planner.costs.device import H100
from fusionplan.planner.graph.graph import Graph
from fusionplan.planner.nests.group_nests import Schedule, schedule_group
from oracle import whole_group

pytestmark = pytest.mark.dynamo


def group(function, *inputs: torch.Tensor) -> Graph:
    return whole_group(graph_of(function, inputs)).graph


def of_kernel(part: Graph, config: Config) -> Cost:
    found = schedule_group(part, config.layout)
    assert isinstance(found, Schedule), found
    (kernel,) = found.kernels
    return estimate(kernel.nest, config, H100)


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
