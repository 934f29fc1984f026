"""Rows of every length, as far as that needs no GPU."""

from __future__ import annotations

import pytest
import torch
from fusionplan.bench import row_lengths
from fusionplan.bench.row_lengths import HEAD, RowCase, TimedRows, combinations, planned, row
from fusionplan.planner.costs.device import builtin


def test_each_length_comes_after_its_power_of_two() -> None:
    asked = combinations(["softmax"], [4099, 5128], ["float16"])
    assert [each.columns for each in asked] == [8192, 4099, 5128]
    assert RowCase("softmax", 1024, "float16").beside.columns == 1024


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name == "js_divergence" else [])
        for name in row_lengths.FUNCTIONS
    ],
)
def test_rows_that_fit_a_tile_are_read_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By one kernel. One more is of a loss's rows, or copies a norm's weights for every start."""
    monkeypatch.setattr(row_lengths, "compile_kernel", lambda _: None)
    found = planned(RowCase(name, 4099, "bfloat16"), builtin("h200"))
    assert not found.failed
    assert sum(group.kernels for group in found.plan.groups) == 1 + (name != "softmax")


def test_a_row_of_the_table() -> None:
    half, whole = (RowCase("softmax", n, "float32") for n in (5128, 8192))
    moved = 8 * half.count * half.columns
    found = TimedRows(half, 500e-6, moved, "triton"), TimedRows(whole, 250e-6, moved, "triton")
    cells = dict(zip(HEAD, row(*found, 4e12).strip("| ").split(" | "), strict=True))
    assert (cells["columns"], cells["ratio"], cells["plan"]) == ("5128", "2.00", "triton")
    assert cells["of least"] == f"{500e-6 * 4e12 / moved:.2f}"


def test_without_a_gpu_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert row_lengths.main([]) == 3
    assert "no CUDA device" in capsys.readouterr().err
