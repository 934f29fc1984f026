"""`fusionplan.explain`: the cost model's plan of a model, without a GPU, a search or a store."""

import fusionplan
import pytest
import torch
from fusionplan.planner.errors import DeviceError

pytestmark = pytest.mark.dynamo


def chain(x):
    return torch.relu(x * 1.5 + 0.5)


@pytest.mark.dynamo
def test_a_chain_is_one_kernel_that_reads_and_writes_once():
    x = torch.zeros(4096)
    (explanation,) = fusionplan.explain(chain, x, target="h100", kernels=True)
    assert isinstance(explanation, fusionplan.Explanation)
    assert explanation.evidence == "modelled"
    assert "H100" in explanation.device
    assert explanation.bucket == ""
    (kernel,) = explanation.groups[0].kernels
    assert kernel.predicted.hbm_bytes == 2 * x.nbytes
    assert kernel.text.count("tl.load") == kernel.text.count("tl.store") == 1


@pytest.mark.dynamo
def test_a_bucket_is_named_where_sizes_vary():
    torch._dynamo.reset()
    (explanation,) = fusionplan.explain(chain, torch.zeros(3000), target="h200", dynamic=True)
    assert explanation.bucket == "up to 4096"


def test_an_unknown_target_is_refused():
    with pytest.raises(DeviceError, match="nosuch"):
        fusionplan.explain(chain, torch.zeros(4), target="nosuch")
