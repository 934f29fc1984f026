"""The table of kernels that read in strides, as far as it needs no GPU."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from fusionplan.bench import strides
from fusionplan.bench.strides import FUNCTIONS, HEAD, SLOWEST, TimedConfig, chosen, graph_of, row
from fusionplan.planner.costs.device import builtin
from fusionplan.planner.graph.graph import Graph
from fusionplan.planner.space.space import Space, space_of

pytestmark = pytest.mark.dynamo

H200 = builtin("h200")


@pytest.fixture(scope="module")
def strided() -> Graph:
    return graph_of(FUNCTIONS["transpose"])


@pytest.mark.parametrize("name", [*FUNCTIONS])
def test_each_function_is_one_kernel(name: str) -> None:
    space = space_of(graph_of(FUNCTIONS[name]), H200)
    assert isinstance(space, Space), space


def test_the_models_first_configs_are_among_those_that_are_tried(strided: Graph) -> None:
    found = chosen(strided, H200, 24)
    configs = [config for config, _ in found]
    assert len(set(configs)) == len(configs) > 8
    seconds = [each for _, each in found]
    assert min(seconds) == seconds[0]
    assert max(seconds) < SLOWEST * seconds[0]
    assert len({config.blocks for config in configs}) > 4
    assert chosen(strided, H200, 24) == found


def test_a_row_says_what_the_models_choice_lost(strided: Graph) -> None:
    (first, _), (second, _) = chosen(strided, H200, 2)[:2]
    times = [TimedConfig("pair", first, 30e-6, 44e-6), TimedConfig("pair", second, 35e-6, 40e-6)]
    cells = dict(zip(HEAD[:-1], row(times).strip("| ").split(" | "), strict=False))
    assert cells["best us"] == "40.0"
    assert cells["choice us"] == "44.0"
    assert cells["expected"] == "30.0"
    assert cells["of best"] == "1.10"
    assert cells["correlation"] == "-1.00"
    assert row(times).endswith(f"| {second} |")
    alike = row([replace(each, measured=40e-6) for each in times])
    assert str(math.nan) in alike


def test_without_a_gpu_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert strides.main([]) == 3
    assert "no CUDA device" in capsys.readouterr().err
