"""Kernels written down, and compared with those of another day."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fusionplan.bench.kernel_texts import TextRecord, configs, main, record
from fusionplan.planner.costs.device import H200
from fusionplan.planner.graph.graph import Graph
from fusionplan.planner.space.space import Space, space_of
from fusionplan.planner.tiles.passes import join_reductions
from graphs import Builder


def sums() -> Graph:
    b = Builder()
    x, y = b.input(64, 1000), b.input(64, 1000)
    first = b.op("sum.dim_IntList", x, (1,), shape=(64,))
    return b.graph(first, b.op("sum.dim_IntList", b.op("mul.Tensor", x, y), (1,), shape=(64,)))


def records() -> list[TextRecord]:
    space = space_of(sums(), H200)
    assert isinstance(space, Space)
    return [record("sums", space, config) for config in configs(space, "seed")]


def write(file: Path, records: list[TextRecord]) -> str:
    file.write_text("".join(json.dumps(one) + "\n" for one in records))
    return str(file)


@pytest.mark.process
def test_what_differs_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = records()
    assert len({one["name"].partition(": ")[2] for one in before}) == len(before) >= 12
    assert all("@triton.jit" in one["gpu"] and "in0" in one["interpreter"] for one in before)
    old = write(tmp_path / "old", before)
    assert main(["compare", old, write(tmp_path / "same", records())]) == 0
    assert "no difference" in capsys.readouterr().out
    monkeypatch.setattr(join_reductions, "MOST", 1)
    assert main(["compare", old, write(tmp_path / "new", records()[1:])]) == 1
    told = capsys.readouterr().out
    assert "sums_of_2" in told
    assert "is only in the old file" in told
    assert "1 differ in missing" in told
    assert "differ in interpreter" not in told
    assert "differ in model" not in told
