"""What a CUDA graph of ours may write to, on a GPU."""

import gc

import pytest
import torch
from fusionplan.planner.runtime.cudagraph import _CudaRecorder

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

MEBIBYTE = 1 << 20


def split(inputs):
    """A product that is so deep and small that cuBLAS sums parts of it in its workspace."""
    return [inputs[0] @ inputs[1]]


def test_a_graph_does_not_write_into_memory_of_a_graph_that_is_gone():
    record = _CudaRecorder(torch.device("cuda", 0))
    torch.manual_seed(0)
    x = torch.randn(128, 1 << 16, device="cuda", dtype=torch.bfloat16)
    y = torch.randn(1 << 16, 128, device="cuda", dtype=torch.bfloat16)
    wanted = x @ y
    gone = record(split, [x, y])
    replay, (found,) = record(split, [x, y])
    del gone
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()  # as torch.compile's CUDA graphs do
    torch.cuda.empty_cache()
    others = [torch.zeros(MEBIBYTE, dtype=torch.uint8, device="cuda") for _ in range(256)]
    for _ in range(3):
        replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(found, wanted, rtol=0.02, atol=4.0)
    assert not any(bool(each.any()) for each in others)
