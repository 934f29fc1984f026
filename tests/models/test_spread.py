"""Models spread over processes: a training step equals eager's, by the same plan on all ranks."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.process

SCRIPT = Path(__file__).with_name("spread.py")
LIMIT_S = 240


def ranks(folder: Path, way: str, *on_miss: str) -> list[dict[str, Any]]:
    """What each rank found; on_miss: of each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    started = []
    for rank, miss in enumerate(on_miss):
        given = [str(rank), str(len(on_miss)), port, str(folder), way, miss]
        command = [sys.executable, "-P", str(SCRIPT), *given]
        started.append(
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
    try:
        said = [each.communicate(timeout=LIMIT_S) for each in started]
    finally:
        for each in started:
            each.kill()
    assert [each.returncode for each in started] == [0] * len(started), said
    return [json.loads(out.splitlines()[-1]) for out, _ in said]


@pytest.mark.parametrize("way", ["ddp", "fsdp", "tp"])
def test_a_training_step_equals_eagers(way: str, tmp_path: Path) -> None:
    for found in ranks(tmp_path, way, "model", "model"):
        assert found["warnings"] == []
        assert found["kernels"] >= 10
        assert (found["collectives"] > 0) == (way == "tp")
        assert found["error"] < 1e-5
        assert found["losses"][0] == pytest.approx(found["losses"][1], rel=1e-5)


def test_where_one_rank_has_no_plan_all_fall_back(tmp_path: Path) -> None:
    first, second = ranks(tmp_path, "tp", "model", "baseline")
    assert first["kernels"] == second["kernels"] == 0
    for found in (first, second):
        assert found["error"] < 1e-6
        told = [text for text in found["warnings"] if "of its process group has no plan" in text]
        assert told, found["warnings"]


def test_one_rank_does_not_tune_a_graph_with_collectives(tmp_path: Path) -> None:
    for found in ranks(tmp_path, "tp", "tune", "tune"):
        assert found["kernels"] == 0
        assert any("which one rank cannot measure alone" in text for text in found["warnings"])
