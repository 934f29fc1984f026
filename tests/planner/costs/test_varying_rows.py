"""Seconds of kernels whose rows have a length that varies, as GPUs took them (torch 2.11, Triton
3.6, bfloat16, 8192 rows): tiles as long as the rows, and much longer ones."""

from __future__ import annotations

import functools
import statistics

import pytest
import torch
import torch.nn.functional as F
from fusionplan.planner.config import Config, MultipleSplit, leaf
from fusionplan.planner.costs.device import H100, builtin
from fusionplan.planner.graph.graph import Graph
from fusionplan.tuner.capture.capture_model import CallArguments, capture_model
from fusionplan.tuner.search.size_search import Anchor, _anchor, learned

pytestmark = pytest.mark.dynamo

# Length of a row, tile, rows of a tile, warps, microseconds; tiles of LOOP are of a loop. An H100
# took those of lengths that 16 divides, an H200 all others, of code generation 44.
LOOP = "loop"
MEASURED = {
    "softmax": [
        (512, 4096, 1, 4, 24.9),
        (512, 4096, 1, 2, 28.0),
        (512, 1024, 2, 8, 13.6),
        (2048, 4096, 1, 4, 30.0),
        (2048, 8192, 1, 8, 47.6),
        (3072, 8192, 1, 16, 51.7),
        (497, 512, 1, 1, 14.5),
        (497, 2048, 1, 1, 17.1),
        (497, 4096, 1, 4, 25.3),
        (1009, 1024, 1, 1, 14.6),
        (1009, 2048, 1, 2, 17.2),
        (1009, 4096, 1, 4, 26.1),
        (1009, 512, LOOP, 2, 18.3),
        (2033, 2048, 1, 2, 22.0),
        (2033, 4096, 1, 8, 30.5),
        (2033, 1024, LOOP, 4, 30.2),
        (3057, 4096, 1, 4, 31.8),
        (3057, 1024, LOOP, 4, 37.9),
        (6129, 8192, 1, 8, 62.1),
        (6129, 8192, 1, 16, 64.8),
        (6129, 2048, LOOP, 8, 69.3),
        (7591, 8192, 1, 8, 68.9),
        (7591, 2048, LOOP, 8, 83.9),
    ],
    "layer_norm": [
        (128, 1024, 2, 4, 10.0),
        (497, 512, 1, 1, 14.5),
        (497, 2048, 1, 1, 15.0),
        (1009, 1024, 1, 2, 14.7),
        (1009, 4096, 1, 4, 21.1),
        (1009, 512, LOOP, 2, 17.8),
        (2033, 2048, 1, 2, 21.9),
        (2033, 4096, 1, 4, 24.5),
        (2033, 1024, LOOP, 4, 29.8),
        (3057, 4096, 1, 4, 30.1),
        (3057, 1024, LOOP, 4, 37.9),
        (6129, 8192, 1, 8, 57.2),
        (6129, 1024, LOOP, 4, 66.1),
        (6129, 2048, LOOP, 8, 70.0),
        (7591, 8192, 1, 16, 73.4),
        (7591, 2048, LOOP, 8, 83.9),
    ],
}


def softmax(x: torch.Tensor) -> torch.Tensor:
    return x.softmax(-1)


def layer_norm(x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, (x.shape[-1],))


@functools.cache
def graph(name: str) -> Graph:
    x = torch.empty(8192, 1024, dtype=torch.bfloat16, device="meta")
    torch._dynamo.mark_dynamic(x, 1)
    function = {"softmax": softmax, "layer_norm": layer_norm}[name]
    with torch.no_grad():
        made = capture_model(function, CallArguments((x,)))
    return made.parts[0].captured.graph


def anchor(name: str, size: int) -> Anchor:
    is_odd = bool(size % 16)
    found = _anchor(graph(name), [size], builtin("h200") if is_odd else H100, is_odd)
    assert found is not None
    return found


def config(tile: int, rows: int | str, warps: int) -> Config:
    looped = rows == LOOP
    blocks = (("r0", tile), ("x0", 1 if looped else int(rows)))
    return Config(blocks, warps, 1, reduction="loop" if looped else "held")


@pytest.mark.parametrize("name", MEASURED)
def test_lanes_beyond_a_row_take_their_time(name: str) -> None:
    ratios = []
    for size, tile, rows, warps, us in MEASURED[name]:
        said = anchor(name, size).modelled(config(tile, rows, warps))
        ratios.append(said * 1e6 / us)
        assert 0.6 < ratios[-1] < 1.45, (size, tile, rows, warps, us, said)
    assert statistics.geometric_mean(ratios) == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("name", MEASURED)
def test_no_branch_has_tiles_much_longer_than_its_rows(name: str) -> None:
    """A tile of 2048 for rows of 113 took four times as long as one of 128."""
    first = anchor(name, 1024)
    best = first.best(1)[0]
    tree = learned(first.graph, best, builtin("h200"))
    # Even if the model thinks that rows which begin anywhere take as long as others.
    assert isinstance(tree, MultipleSplit)
    for size in (33, 113, 129, 418, 1009):
        own = anchor(name, size)
        chosen = own.modelled(leaf(tree, (size,)))
        least = min(map(own.modelled, own.best(3)))
        assert chosen < 2.0 * least, (size, leaf(tree, (size,)))
