"""`planner worker`, `--gpus` and `--ray` where they cannot be had: one clear error each."""

import pytest
import torch
from fusionplan.cli.errors import DEVICE, USAGE

without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="this host has a GPU")


@without_gpu
@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--gpus", "all"], "finds no CUDA device"),
        (["--gpus", "0,1", "--target", "h200"], "finds no CUDA device"),
        (["--ray", "127.0.0.1:1", "--target", "h200"], "leave out --target"),
        (["--ray", "127.0.0.1:1"], "no Ray cluster answers there"),
    ],
)
def test_nothing_to_share(planner, small, arguments, said):
    result = planner("tune", small, *arguments)
    assert result.code == DEVICE, result
    assert said in result.err


@without_gpu
def test_a_worker_without_a_gpu(planner):
    result = planner("worker", "--exit-when-idle", "0")
    assert result.code == DEVICE, result
    assert "finds 0 CUDA devices" in result.err


def test_odd_limits(planner, small):
    assert planner("worker", "--exit-when-idle=-1").code == USAGE
    assert planner("tune", small, "--jobs", "0").code == USAGE
