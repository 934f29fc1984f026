"""The rate that products sustain, as far as that needs no GPU."""

from __future__ import annotations

import pytest
import torch
from fusionplan.bench import sustained
from fusionplan.bench.sustained import ASKED, TimedConvolution, TimedProduct


def test_operations_are_those_of_the_call() -> None:
    """As torch counts them."""
    from torch.utils.flop_counter import FlopCounterMode

    small = TimedProduct(6, 8, 10), TimedConvolution(2, 4, 6, 5, 3), TimedConvolution(2, 4, 6, 5, 1)
    for each in small:
        call = each.call(torch.device("cpu"))
        with FlopCounterMode(display=False) as counted:
            call(0)
        assert counted.get_total_flops() == each.flops


def test_each_has_a_row_of_its_own() -> None:
    assert len({str(each) for each in ASKED}) == len(ASKED)
    assert (
        str(TimedConvolution(64, 64, 256, 56, 1)) == "1x1, 64 images, 64 channels to 256, 56 x 56"
    )


def test_without_a_gpu_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert sustained.main() == 3
    assert "no CUDA device" in capsys.readouterr().err
