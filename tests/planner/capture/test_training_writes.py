"""What a training step writes into its buffers is a part of its graph."""

import copy

import fusionplan
import pytest
import torch
from fusionplan.api import executors
from fusionplan.tuner.capture.capture_model import capture_model
from torch import nn

pytestmark = [pytest.mark.dynamo, pytest.mark.interpreter]


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


class Counted(nn.Module):
    """A buffer of whose old value the backward pass may compute something again."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8))
        self.register_buffer("scale", torch.full((8,), 2.0))

    def forward(self, x):
        found = (x * self.weight * (self.scale * 1.5)).sin()
        self.scale.mul_(0.5)
        return found


class Drawn(nn.Module):
    """Of an input that the caller gives, and reads afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x, seen):
        seen.add_(x.detach().mean(0))
        return self.layer(x - seen).relu()


MODELS = {
    "batch norms": lambda: (
        nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.BatchNorm1d(8)),
        (torch.randn(16, 8),),
    ),
    "an old value": lambda: (Counted(), (torch.randn(16, 8),)),
    "an input": lambda: (Drawn(), (torch.randn(16, 8), torch.zeros(8))),
}


@pytest.mark.parametrize("name", MODELS)
def test_buffers_and_gradients_are_those_of_eager(name: str) -> None:
    torch.manual_seed(0)
    model, given = MODELS[name]()
    theirs, others = copy.deepcopy(model), copy.deepcopy(given)
    run = fusionplan.load(model, on_miss="model")
    for _ in range(3):
        ours, wanted = run(*given), theirs(*others)
        torch.testing.assert_close(ours, wanted)
        ramp = torch.linspace(-1, 2, ours.numel()).view_as(ours)
        (ours * ramp).sum().backward()
        (wanted * ramp).sum().backward()
    torch.testing.assert_close(given, others)
    for own, other in ((model.buffers(), theirs.buffers()), (grads(model), grads(theirs))):
        for one, two in zip(own, other, strict=True):
            torch.testing.assert_close(one, two)
    assert sum(runner.kernels_per_call for runner in executors(run)) >= 2
    assert sum(len(runner.captured.updates) for runner in executors(run)) == writes(model)


def writes(model: nn.Module) -> int:
    return len([*model.buffers()]) or 1


def grads(model: nn.Module) -> list[torch.Tensor]:
    return [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("name", MODELS)
def test_a_tune_captures_the_graphs_that_are_run(name: str) -> None:
    """Else its plans would not be found."""
    torch.manual_seed(0)
    model, given = MODELS[name]()
    captured = capture_model(model, copy.deepcopy(given), training=True)
    torch._dynamo.reset()
    run = fusionplan.load(model, on_miss="model")
    run(*given).sum().backward()
    assert {part.key for part in captured.parts} == {
        runner.plan.graph_key for runner in executors(run)
    }
