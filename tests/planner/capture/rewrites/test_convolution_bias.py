"""Convolutions without their biases: what is added where, and that the numbers stay."""

import copy
import os

import pytest
import torch
import torch.nn.functional as F
from fusionplan.planner.capture.capture import capture, decompositions
from fusionplan.planner.capture.rewrites.convolution_bias import split_biases
from fusionplan.planner.costs.device import builtin
from fusionplan.planner.covers.cover import modelled_plan
from fusionplan.planner.runtime.dispatch.dispatch import Dispatcher
from fusionplan.planner.runtime.dispatch.plan_runners import Policy, Sources
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

DEVICE = os.environ.get("PLANNER_TEST_DEVICE", "cpu")

PLACES = {
    "1d": lambda: (nn.Conv1d(4, 6, 3), (2, 4, 9)),
    "2d": lambda: (nn.Conv2d(4, 6, 3), (2, 4, 9, 9)),
    "3d": lambda: (nn.Conv3d(4, 6, 3), (2, 4, 5, 5, 5)),
    "transposed": lambda: (nn.ConvTranspose2d(4, 6, 3, stride=2), (2, 4, 5, 5)),
    "grouped": lambda: (nn.Conv2d(4, 6, 3, groups=2), (2, 4, 9, 9)),
    "one pixel": lambda: (nn.Conv2d(4, 6, 3), (2, 4, 3, 3)),
}


def operations(function, *inputs):
    """The operations left of a function of fake tensors, on a CUDA device."""
    with FakeTensorMode():
        fakes = [
            torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="cuda") for t in inputs
        ]
        gm = make_fx(function, decomposition_table=decompositions())(*fakes)
    return [(n.op, n.args) for n in capture(split_biases(gm)).graph.nodes]


def called(found, name):
    return [args for op, args in found if op == f"aten.{name}"]


@pytest.mark.parametrize("name", PLACES)
def test_the_bias_is_an_addition_of_its_own(name):
    layer, shape = PLACES[name]()
    given = [torch.randn(shape), *layer.parameters()]

    def function(x, *weights):
        named = dict(zip(dict(layer.named_parameters()), weights, strict=True))
        return [torch.relu(torch.func.functional_call(layer, named, x))]

    found = operations(function, *given)
    ((_, _, bias, *_),) = called(found, "convolution.default")
    assert bias is None
    assert len(called(found, "add.Tensor")) == 1


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_atens_own_depthwise_kernel_keeps_its_bias(order):
    """It is for images in planes; the library's, for channels side by side, has none."""
    x = torch.randn(2, 8, 9, 9).to(memory_format=order)
    found = operations(
        lambda x, w, b: [F.conv2d(x, w, b, groups=8)], x, torch.randn(16, 1, 3, 3), torch.randn(16)
    )
    ((_, _, bias, *_),) = called(found, "convolution.default")
    assert (bias is None) == (order is torch.channels_last)


def test_a_size_that_varies_is_left_alone():
    x, w, b = torch.randn(2, 4, 9, 9), torch.randn(6, 4, 3, 3), torch.randn(6)
    gm = make_fx(lambda *a: [F.conv2d(*a)], tracing_mode="symbolic")(x, w, b)
    assert {n.args[2] is None for n in split_biases(gm).graph.nodes if "conv" in n.name} == {False}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, stride=2)

    def forward(self, x):
        return torch.tanh(self.second(F.gelu(self.first(x))))


def wide(model, x, dtype):
    """The results and gradients, of a model in that type."""
    model, x = model.to(dtype), x.to(dtype)
    y = model(x)
    y.float().square().mean().backward()
    return [y.detach(), *(p.grad for p in model.parameters())]


@pytest.mark.dynamo
@pytest.mark.interpreter
@pytest.mark.parametrize("numerics", ["fast", "eager"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_numbers_and_gradients_are_as_good_as_eagers(dtype, numerics):
    torch.manual_seed(0)
    eager = Net().to(DEVICE)
    mine, exact = copy.deepcopy(eager).to(dtype), copy.deepcopy(eager).to(dtype)
    x = torch.randn(2, 3, 12, 12, device=DEVICE).to(dtype)
    made = Dispatcher(
        Policy("model", numerics=numerics),
        Sources(lambda c: "none", model=lambda c: modelled_plan(c.graph, builtin("h200"))),
    )
    ours = wide(torch.compile(mine, backend=made), x, dtype)
    ideal = wide(exact, x, torch.float64)
    own = wide(eager, x, dtype)
    for found, wanted, beside in zip(ours, ideal, own, strict=True):
        assert found.stride() == beside.stride()
        assert found.dtype == beside.dtype
        error, allowed = ((t.double() - wanted).norm() for t in (found, beside))
        assert error <= 2 * allowed + torch.finfo(dtype).eps * wanted.norm() / 4
    forward, backward = (live.runner for live in made.live.values())
    nodes = [*forward.captured.graph.nodes, *backward.captured.graph.nodes]
    assert [n.args[2] for n in nodes if n.op == "aten.convolution.default"] == [None, None]
    masks = [n.args[-1] for n in nodes if n.op == "aten.convolution_backward.default"]
    assert [mask[2] for mask in masks] == [False, False]
    assert forward.kernels_per_call
    assert backward.kernels_per_call >= 2  # the sums for both biases are among them
