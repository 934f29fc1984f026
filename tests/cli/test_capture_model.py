"""From a model to all its graphs, with the inputs they really had."""

import pytest
import torch
from fusionplan.planner.errors import ModelError
from fusionplan.planner.graph.varying import bucket_key, bucket_name
from fusionplan.tuner.capture.capture_model import CallArguments, capture_model, run_step
from torch import nn

pytestmark = pytest.mark.dynamo


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x):
        return torch.relu(self.linear(x)) + x


class Layers(nn.Module):
    """Three equal layers; the graph break in the loop leaves each to be a graph of its own."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
            torch._dynamo.graph_break()
        return x


def run(part):
    return part.captured.gm(*part.inputs)


def test_one_graph():
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU())
    x = torch.randn(4, 8)
    found = capture_model(model, x)
    (part,) = found.parts
    assert part.stage == "inference"
    assert len(part.inputs) == len(part.captured.graph.inputs) == 3
    torch.testing.assert_close(run(part)[0], model(x))


def test_equal_graphs_are_one_part():
    found = capture_model(Layers(), [torch.randn(4, 16)])
    assert found.graphs == 3
    assert [part.times for part in found.parts] == [3]


def test_training():
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU())
    x = torch.randn(4, 8)
    found = capture_model(model, x, training=True)
    assert [part.stage for part in found.parts] == ["forward", "backward"]
    assert all(p.grad is None for p in model.parameters())
    forward, backward = found.parts
    ours = [g for g in run(backward) if g is not None]
    theirs = [g for g in run_step(model, CallArguments((x,))) if g is not None]
    assert len(theirs) == 2
    for gradient in theirs:
        assert any(
            g.shape == gradient.shape and torch.allclose(g, gradient, atol=1e-5) for g in ours
        )
    assert run(forward)[0].shape == (4, 16)


def test_nothing_to_fuse_is_noted():
    found = capture_model(lambda x: x.digamma(), [torch.ones(4, 4)])
    assert len(found.parts) == 1  # it is compared with the modes of torch.compile
    assert found.graphs == 1
    assert "nothing to fuse" in found.notes[0]


def test_no_graph():
    found = capture_model(lambda x: x, torch.ones(3))
    assert found.parts == ()
    assert "no graph" in found.notes[-1]


@pytest.mark.parametrize("training", [False, True])
def test_sizes_of_a_dynamic_capture_vary(training):
    model, x = Layer(), torch.randn(6, 16)
    found = capture_model(model, x, training=training, dynamic=True)
    assert [p.stage for p in found.parts] == (
        ["forward", "backward"] if training else ["inference"]
    )
    for part in found.parts:
        assert bucket_key(part.captured.graph)
    torch._dynamo.reset()
    # torch marks what it saw with symbolic sizes.
    (static, *_) = capture_model(model, x.clone(), training=training).parts
    assert static.key == found.parts[0].key
    assert bucket_key(static.captured.graph) is None
    if not training:
        torch.testing.assert_close(run(found.parts[0])[0], model(x))


def test_dynamic_sizes_are_those_of_the_call():
    x = torch.randn(6, 8)
    torch._dynamo.mark_dynamic(x, 0)
    (part,) = capture_model(lambda x: torch.relu(x) * x.shape[0], x).parts
    types = [part.captured.graph.nodes[i].type for i in part.captured.graph.inputs]
    assert [t.shape for t in types] == [(6, 8)]
    assert bucket_name(part.captured.graph) == "up to 8"
    assert all(isinstance(i, torch.Tensor) for i in part.inputs)


@pytest.mark.parametrize(
    "inputs",
    [{"x": torch.ones(2, 3), "scale": 2.0}, (torch.ones(2, 3), 2.0), [torch.ones(2, 3), 2.0]],
)
def test_inputs(inputs):
    assert len(capture_model(lambda x, scale: torch.exp(x) * scale, inputs).parts) == 1


def test_model_that_fails():
    with pytest.raises(ModelError, match="size of tensor a"):
        capture_model(lambda x: x + torch.ones(7), torch.ones(3))


def test_training_without_gradients():
    with pytest.raises(ModelError, match="requires a gradient"):
        capture_model(lambda x: x + 1, torch.ones(3), training=True)
