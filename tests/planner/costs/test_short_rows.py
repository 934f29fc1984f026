"""Short and odd rows, and columns: the model tells configs apart whose times differ most."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from fusionplan.bench.strides import StridedFunction
from fusionplan.planner.capture.capture import capture, decompositions
from fusionplan.planner.config import Config
from fusionplan.planner.costs.cost import estimate
from fusionplan.planner.costs.device import H200
from fusionplan.planner.graph import ops
from fusionplan.planner.graph.graph import Graph
from fusionplan.planner.groups.group import subgraph, with_free_nodes
from fusionplan.planner.space.space import Space, space_of
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

FUNCTIONS = {
    "normalize": StridedFunction(lambda a: F.normalize(a, dim=-1), ((2000003, 33),), torch.float32),
    "variance": StridedFunction(lambda a: a.var(-1), ((2000003, 33),), torch.float32),
    "rms norm": StridedFunction(lambda a, w: F.rms_norm(a, (777,), w), ((131072, 777), (777,))),
    "standardised columns": StridedFunction(
        lambda a: (a - a.mean(0)) / (a.std(0) + 1e-6), ((4099, 16384),), torch.float32
    ),
}


def _held(warps: int, **blocks: int) -> Config:
    return Config(tuple(sorted(blocks.items())), num_warps=warps, num_stages=1)


def _loop(warps: int, **blocks: int) -> Config:
    return Config(tuple(sorted(blocks.items())), num_warps=warps, num_stages=1, reduction="loop")


# Each with the microseconds measured on an H200 (26 November 2026, bench.strides of these
# functions): of held rows of 33 elements half of the lanes do nothing, and all exchange their sums.
PAIRS = [
    ("normalize", _loop(2, r0=16, x0=16), 187, _held(2, x0=16), 406),
    ("variance", _loop(2, r0=8, x0=32), 79, _held(1, x0=32), 137),
    ("rms norm", _held(4, x0=8), 132, _held(1, x0=1), 163),
    ("standardised columns", _loop(8, r0=32, x0=32), 261, _loop(2, r0=8, x0=32), 627),
]


def traced(function: StridedFunction) -> Graph:
    """All of a function as one group: the graph that was measured."""
    with FakeTensorMode():
        given = [torch.empty(shape, dtype=function.dtype) for shape in function.shapes]
        made = make_fx(lambda *x: [function.of(*x)], decomposition_table=decompositions())(*given)
    whole = capture(made).graph
    nodes = (node.id for node in whole.nodes if ops.is_compute(node))
    return subgraph(whole, with_free_nodes(whole, nodes)).graph


@pytest.mark.parametrize("name, fast, fast_us, slow, slow_us", PAIRS)
def test_the_faster_config_is_expected_to_be_faster(
    name: str, fast: Config, fast_us: int, slow: Config, slow_us: int
) -> None:
    space = space_of(traced(FUNCTIONS[name]), H200)
    assert isinstance(space, Space)
    kernels = {c: space.schedules[c.layout].kernels for c in (fast, slow)}
    expected = {c: sum(estimate(k.nest, c, H200).seconds for k in ks) for c, ks in kernels.items()}
    assert fast_us < slow_us
    assert expected[fast] < expected[slow]
