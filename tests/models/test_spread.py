"""Models spread over processes: a training step equals eager's, by the same plan on all ranks."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ranks import said

pytestmark = pytest.mark.process

SCRIPT = Path(__file__).with_name("spread.py")
LIMIT_S = 240


WAYS = ("ddp", "fsdp", "tp")
ALONE, TUNED = "tp:model tp:baseline", "tp:tune tp:tune"
RUNS = (*(f"{way}:model {way}:model" for way in WAYS), ALONE, TUNED)
"""Of each rank: a way of spreading, and what a graph without a plan does."""

Found = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What each rank found in each run; the same two processes do one after the other."""
    folder = tmp_path_factory.mktemp("ranks")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, "-P", str(SCRIPT), port, str(folder), *RUNS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    lines = [out.splitlines() for out, _ in said(folder, 2)]
    assert done.returncode == 0, (done.stderr, said(folder, 2))
    told = [[json.loads(line) for line in out[-len(RUNS) :]] for out in lines]
    return {run: list(both) for run, *both in zip(RUNS, *told, strict=True)}


@pytest.mark.parametrize("way", WAYS)
def test_a_training_step_equals_eagers(way: str, found: Found) -> None:
    for rank in found[f"{way}:model {way}:model"]:
        assert rank["warnings"] == []
        assert rank["kernels"] >= 4  # one at least in each forward and backward pass of two steps
        assert (rank["collectives"] > 0) == (way == "tp")
        assert rank["error"] < 1e-5
        assert rank["losses"][0] == pytest.approx(rank["losses"][1], rel=1e-5)


def test_where_one_rank_has_no_plan_all_fall_back(found: Found) -> None:
    first, second = found[ALONE]
    assert first["kernels"] == second["kernels"] == 0
    for rank in (first, second):
        assert rank["error"] < 1e-6
        told = [text for text in rank["warnings"] if "of its process group has no plan" in text]
        assert told, rank["warnings"]


def test_one_rank_does_not_tune_a_graph_with_collectives(found: Found) -> None:
    for rank in found[TUNED]:
        assert rank["kernels"] == 0
        assert any("which one rank cannot measure alone" in text for text in rank["warnings"])
