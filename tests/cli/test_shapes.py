"""Inputs by their types and shapes."""

import pytest
import torch
from fusionplan.cli.shapes import are_shapes, made_inputs

CPU = torch.device("cpu")


def test_tensors_are_as_they_are_written():
    x, n, scalar, flag = made_inputs(" bfloat16[3, 5],int64[0,7] , float32[], bool[9]", CPU)
    assert (x.dtype, x.shape) == (torch.bfloat16, (3, 5))
    assert (n.dtype, n.shape) == (torch.int64, (0, 7))
    assert (scalar.dtype, scalar.shape) == (torch.float32, ())
    assert (flag.dtype, flag.shape) == (torch.bool, (9,))
    assert all(t.is_contiguous() for t in (x, n, scalar, flag))


def test_they_are_the_same_in_every_run():
    first, again = (made_inputs("float32[100], int32[100]", CPU) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert set(first[1].tolist()) == {0, 1}
    assert first[0].std() == pytest.approx(1.0, abs=0.3)


def test_a_file_is_no_shape(tmp_path):
    assert not are_shapes("inputs.py:get_inputs")
    assert not are_shapes("inputs[1].py:get_inputs")
    assert are_shapes("float32[3]")


@pytest.mark.dynamo
def test_a_model_is_tuned_with_them(planner, quick, write):
    write("net.py", "import torch\n\ndef model(x):\n    return torch.relu(x) + 1\n")
    result = planner("tune", "net.py", "--inputs", "float32[30,50]", "--target", "h200", "--quiet")
    assert result.code == 0, result
    assert "float32[30, 50]" in planner("plans").out
