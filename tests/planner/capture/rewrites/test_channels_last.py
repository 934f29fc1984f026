"""Images whose channels lie side by side: where, and that nobody outside sees it."""

import copy
import os

import pytest
import torch
import torch.nn.functional as F
from by_the_model import convolutions, graphs, near
from fusionplan.planner.capture.rewrites import pad_channels
from fusionplan.planner.capture.rewrites.channels_last import channels_last
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

pytestmark = pytest.mark.dynamo

DEVICE = os.environ.get("PLANNER_TEST_DEVICE", "cpu")


class Net(nn.Module):
    def __init__(self, groups=1):
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.norm = nn.GroupNorm(4, 16)
        self.second = nn.Conv2d(16, 16, 3, padding=1, groups=groups)
        self.third = nn.Conv2d(16, 8, 1)

    def forward(self, x):
        y = F.silu(self.norm(self.first(x)))
        y = y + torch.tanh(self.second(y))
        return self.third(y), y.mean((2, 3))


class Separable(nn.Module):
    """A block of depthwise convolutions: an expansion, with a gate, and one with permutes."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1, stride=2)
        self.expand, self.gate = nn.Conv2d(16, 32, 1, bias=False), nn.Conv2d(32, 32, 1)
        self.depthwise = nn.Conv2d(32, 32, 3, padding=1, groups=32, bias=False)
        self.first, self.second = nn.BatchNorm2d(32), nn.BatchNorm2d(32)
        self.project = nn.Conv2d(32, 16, 1, bias=False)
        self.wide = nn.Conv2d(16, 16, 5, padding=2, groups=16)
        self.norm, self.linear = nn.LayerNorm(16), nn.Linear(16, 16)

    def forward(self, x):
        x = self.stem(x)
        y = F.silu(self.second(self.depthwise(F.silu(self.first(self.expand(x))))))
        y = self.project(y * self.gate(y.mean((2, 3), keepdim=True)).sigmoid()) + x
        z = self.linear(self.norm(self.wide(y).permute(0, 2, 3, 1)))
        return y + z.permute(0, 3, 1, 2)


def test_channels_lie_side_by_side_between_and_not_in_the_results(compiled):
    torch.manual_seed(0)
    model = Net().to(DEVICE, torch.bfloat16)
    x = torch.randn(2, 3, 16, 16, device=DEVICE, dtype=torch.bfloat16)
    fast, dispatcher = compiled(model)
    with torch.no_grad():
        for found, wanted in zip(fast(x), model(x), strict=True):
            near(found, wanted)
    (graph,) = graphs(dispatcher)
    assert [n.type.stride[1] for n in convolutions(graph)] == [1]
    assert all(live.runner.kernels_per_call for live in dispatcher.live.values())


def test_gradients_are_those_of_eager(compiled):
    torch.manual_seed(0)
    eager = Net().to(DEVICE, torch.bfloat16)
    mine = copy.deepcopy(eager)
    fast, dispatcher = compiled(mine)
    x = torch.randn(2, 3, 16, 16, device=DEVICE, dtype=torch.bfloat16)
    for model in (eager, fast):
        y, mean = model(x)
        (y.float().square().mean() + mean.float().sum()).backward()
    for a, b in zip(eager.parameters(), mine.parameters(), strict=True):
        near(b.grad, a.grad)
    forward, backward = graphs(dispatcher)
    assert {n.type.stride[1] for n in convolutions(forward)} == {1}
    laid = [n for n in backward.nodes if n.op == "aten.convolution_backward.default"]
    assert len(laid) == 3
    for node in laid:
        gradient, image = (backward.nodes[i].type for i in node.inputs[:2])
        assert gradient.stride[1] == 1
        assert image.stride[1] == 1


def test_depthwise_convolutions_are_in_that_order_too(compiled):
    torch.manual_seed(0)
    model = Separable().to(DEVICE, torch.bfloat16).eval()
    x = torch.randn(2, 3, 16, 16, device=DEVICE, dtype=torch.bfloat16)
    fast, dispatcher = compiled(model)
    with torch.no_grad():
        near(fast(x), model(x))
    (graph,) = graphs(dispatcher)
    found = convolutions(graph)
    assert [(n.args[8], n.type.stride[1]) for n in found] == [(32, 1), (16, 1)]
    assert all(live.runner.kernels_per_call for live in dispatcher.live.values())


def test_gradients_of_depthwise_convolutions(compiled):
    torch.manual_seed(0)
    eager = Separable().to(DEVICE, torch.bfloat16).eval()
    mine = copy.deepcopy(eager)
    fast, dispatcher = compiled(mine)
    x = torch.randn(2, 3, 16, 16, device=DEVICE, dtype=torch.bfloat16)
    for model in (eager, fast):
        model(x).float().square().mean().backward()
    for a, b in zip(eager.parameters(), mine.parameters(), strict=True):
        near(b.grad, a.grad)
    forward, backward = graphs(dispatcher)
    assert {n.type.stride[1] for n in convolutions(forward)} == {1}
    laid = [n for n in backward.nodes if n.op == "aten.convolution_backward.default"]
    assert {n.args[9] for n in laid} == {1, 16, 32}
    for node in laid:
        assert [backward.nodes[i].type.stride[1] for i in node.inputs[:2]] == [1, 1]
        assert not node.args[-1][2]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("stride", [1, 2, (1, 3)])
def test_one_pixel_at_a_time_is_a_product_in_our_kernel(compiled, stride, bias):
    """With what stands before and behind it, and nothing of a library left."""
    torch.manual_seed(0)
    layers = nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 16, 1, stride, bias=bias)
    model = nn.Sequential(*layers, nn.BatchNorm2d(16), nn.SiLU()).to(DEVICE, torch.bfloat16).eval()
    x = torch.randn(2, 32, 12, 12, device=DEVICE, dtype=torch.bfloat16)
    fast, dispatcher = compiled(model)
    with torch.no_grad():
        for given in (x, x.to(memory_format=torch.channels_last)):
            near(fast(given), model(given))
    for live in dispatcher.live.values():
        assert not convolutions(live.runner.captured.graph)
        assert {g.lowering for g in live.runner.plan.groups} == {"triton"}
        assert live.runner.kernels_per_call


@pytest.mark.parametrize("stride, padding", [(2, 3), (1, 0), ((1, 2), (2, 1))])
@pytest.mark.parametrize("channels, size", [(3, 7), (2, 3), (4, (3, 5))])
def test_few_channels_are_read_by_windows(compiled, channels, size, stride, padding):
    """With zeros around the image and beside its channels; what no window reaches is left out."""
    torch.manual_seed(0)
    layers = nn.Conv2d(channels, 16, size, stride, padding), nn.BatchNorm2d(16), nn.SiLU()
    model = nn.Sequential(*layers).to(DEVICE, torch.bfloat16).eval()
    x = torch.randn(2, channels, 14, 15, device=DEVICE, dtype=torch.bfloat16)
    fast, dispatcher = compiled(model)
    with torch.no_grad():
        near(fast(x), model(x))
    (graph,) = graphs(dispatcher)
    assert not convolutions(graph)
    (live,) = dispatcher.live.values()
    assert live.runner.kernels_per_call


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("size", [4, (2, 4)])
@pytest.mark.parametrize("channels", [1, 3, 16])
def test_a_convolution_of_patches_is_a_product(compiled, channels, size, order):
    """The image may lie in planes or not, and end within a patch."""
    torch.manual_seed(0)
    layers = nn.Conv2d(channels, 32, size, size), nn.ReLU(), nn.Conv2d(32, 8, 2, 2), nn.SiLU()
    model = nn.Sequential(*layers).to(DEVICE, torch.bfloat16)
    x = torch.randn(2, channels, 17, 19, device=DEVICE, dtype=torch.bfloat16)
    fast, dispatcher = compiled(model)
    with torch.no_grad():
        near(fast(x.to(memory_format=order)), model(x.to(memory_format=order)))
    (graph,) = graphs(dispatcher)
    assert not convolutions(graph)
    (live,) = dispatcher.live.values()
    assert live.runner.kernels_per_call


def test_gradients_of_patches(compiled):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 16, 4, 4), nn.SiLU()).to(DEVICE, torch.bfloat16)
    x = torch.randn(2, 3, 18, 16, device=DEVICE, dtype=torch.bfloat16)
    fast, _ = compiled(copy.deepcopy(model))
    results = []
    for run in (fast, model):
        given = x.clone().requires_grad_()
        run(given).float().square().sum().backward()
        results.append(given.grad)
    near(*results)


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("channels, side", [(1, 8), (32, 1)])
def test_one_channel_or_one_pixel_lies_in_both_orders(compiled, channels, side, flat):
    """The product that takes the convolution's place does not."""
    torch.manual_seed(0)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.convolution = nn.Conv2d(channels, 16, 1)

        def forward(self, x):
            y = self.convolution(torch.relu(x))
            return y.view(len(x), -1) if flat else y

    model = Net().to(DEVICE, torch.bfloat16)
    x = torch.randn(2, channels, side, side, device=DEVICE, dtype=torch.bfloat16)
    fast, dispatcher = compiled(model)
    with torch.no_grad():
        near(fast(x), model(x))
    (graph,) = graphs(dispatcher)
    assert not convolutions(graph)


def test_what_is_to_be_computed_again_still_is(compiled):
    """torch.utils.checkpoint marks operations, and a convolution's mark is its product's."""
    torch.manual_seed(0)
    first, second = (nn.Conv2d(64, 64, 1).to(DEVICE, torch.bfloat16) for _ in range(2))

    def block(x):
        return second(F.gelu(first(x)))

    fast, dispatcher = compiled(lambda x: checkpoint(block, x, use_reentrant=False))
    x = torch.randn(2, 64, 16, 16, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
    near(fast(x), block(x))
    fast(x).float().sum().backward()
    forward, backward = graphs(dispatcher)
    saved = [forward.nodes[o] for o in forward.outputs[1:] if o is not None]
    assert not [n for n in saved if n.op == "aten.addmm.default"]
    assert [n for n in backward.nodes if n.op == "aten.addmm.default"]


def test_wide_convolutions_stay_in_planes(compiled):
    model = Net().to(DEVICE)
    fast, dispatcher = compiled(model)
    with torch.no_grad():
        fast(torch.randn(2, 3, 16, 16, device=DEVICE))
    (graph,) = graphs(dispatcher)
    assert all(n.type.stride[1] != 1 for n in convolutions(graph)[:2])


def test_grouped_convolutions_read_planes_beside_others(compiled):
    """Of groups for which a library has no fast kernel in the other order."""
    torch.manual_seed(0)
    model = Net(groups=8).to(DEVICE, torch.bfloat16)
    x = torch.randn(2, 3, 16, 16, device=DEVICE, dtype=torch.bfloat16)
    fast, dispatcher = compiled(model)
    with torch.no_grad():
        for found, wanted in zip(fast(x), model(x), strict=True):
            near(found, wanted)
    (graph,) = graphs(dispatcher)
    (grouped,) = convolutions(graph)
    assert grouped.type.stride[1] != 1
    assert [n.op for n in graph.nodes].count("aten.addmm.default") == 2


class Clip(nn.Module):
    """Images one behind the other: of three channels, then of many."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv3d(3, 16, 3, padding=1)
        self.second = nn.Conv3d(16, 16, 3, padding=1, bias=False)
        self.third = nn.Conv3d(16, 8, 1)

    def forward(self, x):
        return self.third(torch.relu(self.second(torch.relu(self.first(x)))))


def test_images_one_behind_the_other(compiled):
    """The first convolution is a product with windows, the last one with pixels."""
    torch.manual_seed(0)
    model = Clip().to(DEVICE, torch.bfloat16)
    x = torch.randn(1, 3, 2, 4, 5, device=DEVICE, dtype=torch.bfloat16)
    fast, dispatcher = compiled(model)
    with torch.no_grad():
        near(fast(x), model(x))
    (graph,) = graphs(dispatcher)
    (left,) = convolutions(graph)
    # A CPU without instructions for bfloat16 convolves it by a formula of its own, channels first.
    if DEVICE != "cpu" or torch.ops.mkldnn._is_mkldnn_bf16_supported():
        assert left.type.stride[1] == 1
    assert [n.op for n in graph.nodes].count("aten.addmm.default") == 2
    assert all(live.runner.kernels_per_call for live in dispatcher.live.values())


def rewritten(function, *inputs):
    """The graph of a function, rewritten, after a look at its numbers."""
    gm = make_fx(function, tracing_mode="fake")(*inputs)
    found = channels_last(gm)
    near(found(*inputs), gm(*inputs))
    return [n for n in found.graph.nodes if n.target is torch.ops.aten.convolution.default]


@pytest.mark.parametrize(
    "kernel, stride", [((3, 7, 7), (1, 2, 2)), ((2, 5, 3), (2, 1, 2)), ((2, 2, 2), 2)]
)
def test_windows_and_patches_of_several_images(kernel, stride):
    pad = 0 if stride == 2 else tuple(n // 2 for n in kernel)
    shapes = (2, 3, 5, 9, 8), (16, 3, *kernel), (16,), (8, 16, 3, 3, 3)
    given = [torch.randn(shape).to(torch.bfloat16) for shape in shapes]

    def two(x, first, bias, second):
        return F.conv3d(torch.relu(F.conv3d(x, first, bias, stride, pad)), second, padding=1)

    assert len(rewritten(two, *given)) == 1


@pytest.mark.parametrize("width, is_fast", [(24, False), (64, True)])
def test_groups_for_which_a_library_is_fast(width, is_fast):
    x, w = torch.randn(1, 128, 4, 4), torch.randn(128 // width * width, width, 3, 3)
    x, w = (t[:, :n].to(torch.bfloat16) for t, n in ((x, w.shape[0]), (w, width)))
    groups = x.shape[1] // width
    found = rewritten(lambda x, w: F.conv2d(x, w, None, 1, 1, 1, groups), x, w)
    assert [n.meta["val"].stride(1) == 1 for n in found] == [is_fast]


@pytest.mark.parametrize(
    "channels, results, groups, padded",
    [
        (216, 216, 9, (288, 288)),
        (36, 36, 1, (40, 40)),
        (64, 3, 1, (64, 8)),
        (72, 48, 3, (96, 96)),
        (64, 64, 4, (64, 64)),
    ],
)
def test_channels_without_a_fast_kernel_have_zeros_beside_them(channels, results, groups, padded):
    side = 4 + int((pad_channels._WORTH / channels) ** 0.5)
    shapes = (1, channels, side, side), (results, channels // groups, 1, 3), (results,)
    x, w, b = (torch.randn(shape).to(torch.bfloat16) for shape in shapes)
    (found,) = rewritten(lambda x, w, b: F.conv2d(x, w, b, 2, (0, 1), 1, groups) * 2, x, w, b)
    image, weight, *_ = found.args
    assert (image.meta["val"].shape[1], found.meta["val"].shape[1]) == padded
    assert all(n.meta["val"].stride(1) == 1 for n in (image, weight, found))
