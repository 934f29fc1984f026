"""Convolutions of lines are those of images one pixel high, and have what those have."""

import copy

import pytest
import torch
import torch.nn.functional as F
from by_the_model import convolutions, graphs, near
from fusionplan.planner.capture.decompositions.decompose import decompositions
from fusionplan.planner.capture.fx_nodes import called
from fusionplan.planner.capture.rewrites import lines_as_images as rewrite
from fusionplan.planner.capture.rewrites.channels_last import channels_last
from fusionplan.planner.capture.rewrites.lines_as_images import lines_as_images
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

pytestmark = pytest.mark.dynamo


class Sound(nn.Module):
    """As models of sound begin: steps along the time, a gate, and a wide window in groups."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv1d(1, 32, 10, stride=5, bias=False)
        self.second = nn.Conv1d(32, 32, 3, stride=2)
        self.pointwise = nn.Conv1d(32, 64, 1)
        self.places = nn.Conv1d(32, 32, 64, padding=32, groups=2)

    def forward(self, x):
        y = F.gelu(self.second(F.gelu(self.first(x))))
        y = F.glu(self.pointwise(y), 1)
        return y + F.gelu(self.places(y)[..., :-1])


def sound():
    torch.manual_seed(0)
    return Sound().to(torch.bfloat16), torch.randn(2, 1, 400, dtype=torch.bfloat16)


def test_a_line_becomes_products_and_an_image(compiled):
    model, x = sound()
    fast, dispatcher = compiled(model)
    with torch.no_grad():
        near(fast(x), model(x))
    (graph,) = graphs(dispatcher)
    first, second = convolutions(graph)
    assert (first.type.shape, second.type.shape) == ((2, 32, 79), (2, 32, 1, 39))
    assert second.type.stride[1] == 1
    products = [n.op for n in graph.nodes if n.op in ("aten.addmm.default", "aten.bmm.default")]
    assert products == ["aten.addmm.default", "aten.bmm.default"]
    assert all(live.runner.kernels_per_call for live in dispatcher.live.values())


def test_gradients_are_those_of_eager(compiled):
    eager, x = sound()
    mine = copy.deepcopy(eager)
    fast, dispatcher = compiled(mine)
    for model in (eager, fast):
        model(x).float().square().mean().backward()
    for a, b in zip(eager.parameters(), mine.parameters(), strict=True):
        near(b.grad, a.grad)
    backward = graphs(dispatcher)[-1]
    found = [n for n in backward.nodes if n.op == "aten.convolution_backward.default"]
    assert sorted(len(backward.nodes[n.inputs[1]].type.shape) for n in found) == [3, 4, 4, 4]


def test_a_result_lies_as_a_line_does_though_an_images_would_not(monkeypatch):
    """On a GPU that of an image whose channels lie side by side does, too."""

    def as_on_a_gpu(beside, target, args, **named):
        made = called(beside, target, args, **named)
        if target is torch.ops.aten.convolution.default:
            with made.meta["val"].fake_mode:
                made.meta["val"] = made.meta["val"].contiguous(memory_format=torch.channels_last)
        return made

    monkeypatch.setattr(rewrite, "called", as_on_a_gpu)
    x, weight = torch.randn(2, 64, 16).transpose(1, 2), torch.randn(16, 16, 3)
    given = x.bfloat16(), weight.bfloat16()
    with FakeTensorMode() as mode:
        fakes = map(mode.from_tensor, given)
        gm = make_fx(lambda *x: [F.conv1d(*x)], decomposition_table=decompositions())(*fakes)
    after = lines_as_images(gm)
    assert any(n.target is torch.ops.aten.squeeze.dim for n in after.graph.nodes)
    (before,), (last,) = (g.graph.output_node().args[0] for g in (gm, after))
    assert last.meta["val"].stride() == before.meta["val"].stride()
    assert torch.equal(*(g(*given)[0] for g in (gm, after)))


def rewritten(convolution, *shapes, dtype=torch.bfloat16):
    """The convolutions of a function's graph after both rewrites."""
    with FakeTensorMode():
        given = [torch.empty(shape, dtype=dtype) for shape in shapes]
        gm = make_fx(lambda *x: [convolution(*x)], decomposition_table=decompositions())(*given)
    gm = channels_last(lines_as_images(gm))
    targets = torch.ops.aten.convolution.default, torch.ops.aten.bmm.default
    return [n for n in gm.graph.nodes if n.target in targets]


@pytest.mark.parametrize(
    "shape, weight, dtype",
    [
        ((2, 1, 64), (16, 1, 8), torch.bfloat16),  # the image would lie in both orders
        ((2, 16, 64), (1, 16, 8), torch.bfloat16),
        ((2, 16, 64), (16, 16, 8), torch.float32),
    ],
)
def test_others_stay_lines(shape, weight, dtype):
    (node,) = rewritten(F.conv1d, shape, weight, dtype=dtype)
    assert node.meta["val"].dim() == 3


@pytest.mark.parametrize(
    "channels, size, becomes",
    [
        (8, 3, "channels last"),  # of these the library has fast kernels
        (24, 3, "planes"),
        (24, 7, "a product"),
        (20, 9, "planes"),  # no whole vectors
    ],
)
def test_groups_by_what_a_library_is_fast_with(channels, size, becomes):
    def function(x, weight, other):
        return F.conv2d(F.conv2d(x, weight, padding=1, groups=2), other)

    both = 2 * channels
    found = rewritten(function, (1, both, 16, 16), (both, channels, size, size), (16, both, 3, 3))
    first = found[0]
    if becomes == "a product":
        assert first.target is torch.ops.aten.bmm.default
    else:
        assert (first.meta["val"].stride(1) == 1) == (becomes == "channels last")
