"""What varying sizes cost, rehearsed in the interpreter."""

import pytest
import torch
from fusionplan.bench import sizes


@pytest.mark.dynamo
def test_two_sizes_of_a_bucket(capsys, monkeypatch):
    monkeypatch.setitem(sizes.FUNCTIONS, "softmax", (torch.exp, lambda n: [(4, n)], 1))
    options = ["softmax", "--device", "cpu", "--rounds", "2", "--sizes", "40", "41"]
    assert sizes.main(options) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert "compiled 1" in first
    assert "compiled 0" in second


@pytest.mark.dynamo
def test_a_wrong_result_is_told(capsys, monkeypatch):
    monkeypatch.setattr(torch, "allclose", lambda *_, **__: False)
    monkeypatch.setitem(sizes.FUNCTIONS, "mean", (torch.exp, lambda n: [(4, n)], 1))
    assert sizes.main(["mean", "--device", "cpu", "--sizes", "40"]) == 1
    assert "mean at 40: the result is not eager's" in capsys.readouterr().err


def test_usage(capsys):
    with pytest.raises(SystemExit) as error:
        sizes.main(["none"])
    assert error.value.code == 2
    if not torch.cuda.is_available():
        assert sizes.main(["gelu"]) == 1
