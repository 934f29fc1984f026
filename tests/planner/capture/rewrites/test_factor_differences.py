"""A probability that multiplies both sides of a difference multiplies once, behind it."""

import pytest
import torch
import torch.nn.functional as F
from fusionplan.planner.capture.decompositions.decompose import decompositions
from fusionplan.planner.capture.rewrites.factor_differences import factor_differences
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

aten = torch.ops.aten


def traced(function, dtype):
    with FakeTensorMode():
        inputs = [torch.empty(4, 8, dtype=dtype) for _ in range(2)]
        listed = lambda *given: [function(*given)]  # noqa: E731
        return make_fx(listed, decomposition_table=decompositions())(*inputs)


def count(gm, target):
    return sum(node.target is target for node in gm.graph.nodes)


def divergence(x, y):
    return F.kl_div(x, y.softmax(-1), reduction="none")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_divergence_multiplies_by_the_probability_once(dtype):
    gm = traced(divergence, dtype)
    factored = factor_differences(gm)
    assert (count(gm, aten.mul.Tensor), count(factored, aten.mul.Tensor)) == (2, 1)
    x, y = torch.randn(4, 8, dtype=dtype), torch.rand(4, 8, dtype=dtype)
    x[0, :3] = torch.tensor([float("-inf"), 0.0, -200.0])
    y[:2, :4] = float("-inf")
    wanted, (got,) = divergence(x.double(), y.double()), factored(x, y)
    assert got.dtype is dtype
    tolerance = 1e-6 if dtype is torch.float32 else 1e-2
    torch.testing.assert_close(got.double(), wanted, rtol=tolerance, atol=tolerance, equal_nan=True)


def shared(x, y):
    p = x.sigmoid()
    left = p * y
    return (left - p * x) + left


@pytest.mark.parametrize("function", [shared, lambda x, y: x * x - x * y])
def test_what_is_read_elsewhere_or_may_be_infinite_stays(function):
    gm = traced(function, torch.float32)
    assert factor_differences(gm) is gm
