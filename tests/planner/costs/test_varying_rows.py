"""Seconds of kernels whose rows have a length that varies, as an H100 took them (torch 2.11, Triton
3.6, bfloat16, 8192 rows): tiles as long as the rows, and much longer ones."""

from __future__ import annotations

import functools
import statistics

import pytest
import torch
import torch.nn.functional as F
from fusionplan.planner.config import Config, leaf
from fusionplan.planner.costs.device import H100
from fusionplan.planner.graph.graph import Graph
from fusionplan.tuner.capture.capture_model import CallArguments, capture_model
from fusionplan.tuner.search.size_search import Anchor, _anchor, learned

pytestmark = pytest.mark.dynamo

# Length of a row, tile, rows of a tile, warps, microseconds; tiles of LOOP are of a loop.
LOOP = "loop"
MEASURED = {
    "softmax": [
        (49, 128, 8, 4, 8.1),
        (113, 128, 8, 4, 8.7),
        (497, 2048, 1, 1, 36.3),
        (497, 4096, 1, 4, 50.4),
        (1009, 2048, 1, 1, 37.8),
        (1009, 4096, 1, 4, 51.8),
        (1009, 2048, LOOP, 4, 34.8),
        (2033, 4096, 1, 4, 54.5),
        (2033, 2048, LOOP, 4, 36.0),
        (4081, 4096, 1, 4, 64.5),
        (4081, 2048, LOOP, 8, 61.5),
        (6129, 2048, LOOP, 8, 84.0),
        (512, 4096, 1, 4, 24.9),
        (512, 4096, 1, 2, 28.0),
        (512, 1024, 2, 8, 13.6),
        (2048, 4096, 1, 4, 30.0),
        (2048, 8192, 1, 8, 47.6),
        (3072, 8192, 1, 16, 51.7),
    ],
    "layer_norm": [
        (497, 2048, 1, 2, 23.9),
        (1009, 2048, 1, 2, 26.1),
        (2033, 2048, 1, 2, 31.8),
        (3057, 4096, 1, 8, 47.7),
        (4081, 4096, 1, 8, 54.2),
        (6129, 2048, LOOP, 8, 85.4),
        (8191, 2048, LOOP, 8, 114.0),
        (128, 1024, 2, 4, 10.0),
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
    found = _anchor(graph(name), [size], H100, bool(size % 16))
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
    tree = learned(first.graph, best, H100)
    assert tree is not None
    for size in (33, 113, 129, 418, 1009):
        own = anchor(name, size)
        chosen = own.modelled(leaf(tree, (size,)))
        least = min(map(own.modelled, own.best(3)))
        assert chosen < 2.0 * least, (size, leaf(tree, (size,)))
