"""Training steps that are replayed as CUDA graphs. They need a GPU."""

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from fusionplan.planner.capture.capture import Captured
from fusionplan.planner.costs.device import profile_of
from fusionplan.planner.covers.cover import modelled_plan
from fusionplan.planner.runtime.cuda_graphs.cudagraph import GraphedExecutor
from fusionplan.planner.runtime.dispatch.dispatch import Dispatcher
from fusionplan.planner.runtime.dispatch.plan_runners import Policy, Sources
from fusionplan.planner.runtime.machine_code.compile import interpreted
from torch import nn

pytestmark = [
    pytest.mark.dynamo,
    pytest.mark.skipif(
        not torch.cuda.is_available() or interpreted(),
        reason="needs a GPU, and PLANNER_TEST_DEVICE=cuda",
    ),
]


@pytest.fixture(autouse=True)
def told_why_nothing_is_captured(recwarn):
    """A graph that cannot be captured is only warned of; here the test fails with the reason."""
    yield
    assert [str(w.message) for w in recwarn if "without a CUDA graph" in str(w.message)] == []


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(256, 512)
        self.norm = nn.LayerNorm(512)
        self.outer = nn.Linear(512, 10)

    def forward(self, x, labels):
        return F.cross_entropy(self.outer(F.gelu(self.norm(self.inner(x)))), labels)


def planned(captured: Captured):
    plan = modelled_plan(captured.graph, profile_of(captured.device))
    return replace(plan, cudagraph=True)


@pytest.fixture
def pair():
    torch.manual_seed(0)
    eager = Net().cuda()
    mine = copy.deepcopy(eager)
    dispatcher = Dispatcher(Policy("model"), Sources(lambda c: "none", model=planned))
    return eager, mine, torch.compile(mine, backend=dispatcher), dispatcher


def batch(seed):
    torch.manual_seed(seed)
    return torch.randn(64, 256, device="cuda"), torch.randint(10, (64,), device="cuda")


def replays(dispatcher):
    runners = [live.runner for live in dispatcher.live.values()]
    assert all(isinstance(runner, GraphedExecutor) for runner in runners)
    return {stage: live.runner.replays for (_, stage), live in dispatcher.live.items()}


def same(eager, mine):
    for a, b in zip(eager.parameters(), mine.parameters(), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-3, atol=1e-4)


def test_a_training_loop_is_replayed_and_learns_the_same(pair):
    eager, mine, fast, dispatcher = pair
    steps = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (eager, mine)]
    kept = []
    for number in range(20):
        inputs = batch(number)
        kept.append(inputs)  # every batch lies elsewhere
        losses = []
        for model, step in zip((eager, fast), steps, strict=True):
            loss = model(*inputs)
            loss.backward()
            step.step()
            step.zero_grad()
            losses.append(loss)
        torch.testing.assert_close(losses[1], losses[0], rtol=1e-3, atol=1e-4)
    same(eager, mine)
    counts = replays(dispatcher)
    assert counts["forward"] >= 6
    assert counts["backward"] >= 4


def test_gradients_that_are_kept_add_up(pair):
    eager, mine, fast, _ = pair
    for number in range(10):
        for model in (eager, fast):
            model(*batch(number)).backward()
    for a, b in zip(eager.parameters(), mine.parameters(), strict=True):
        torch.testing.assert_close(b.grad, a.grad, rtol=1e-3, atol=1e-3)


def test_forward_passes_may_come_before_their_backward_passes(pair):
    eager, mine, fast, _ = pair
    for number in range(8):
        for model in (eager, fast):
            losses = [model(*batch(10 * number + i)) for i in range(3)]
            for loss in reversed(losses):
                loss.backward()
        for a, b in zip(eager.parameters(), mine.parameters(), strict=True):
            torch.testing.assert_close(b.grad, a.grad, rtol=1e-3, atol=1e-3)
        eager.zero_grad()
        mine.zero_grad()


def test_results_for_two_inputs_do_not_mix(pair):
    _, mine, _, _ = pair
    dispatcher = Dispatcher(Policy("model"), Sources(lambda c: "none", model=planned))
    layers = nn.Sequential(mine.inner, nn.GELU(), mine.norm)
    fast = torch.compile(layers, backend=dispatcher)
    inputs = [torch.randn(4096, 256, device="cuda") for _ in range(2)]
    with torch.no_grad():
        wanted = [layers(x) for x in inputs]
        for _ in range(8):
            found = [fast(x) for x in inputs]
            for a, b in zip(wanted, found, strict=True):
                torch.testing.assert_close(b, a, rtol=1e-3, atol=1e-3)
    assert replays(dispatcher)["inference"] >= 4
