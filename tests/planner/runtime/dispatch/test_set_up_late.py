"""A loaded model whose first call breaks the graph, and is one graph from then on."""

import threading

import pytest
import torch
from fusionplan.planner.graph.graph import key
from fusionplan.planner.plan import GroupPlan, Plan
from fusionplan.planner.runtime.dispatch.dispatch import Dispatcher
from fusionplan.planner.runtime.dispatch.loaded import loaded
from fusionplan.planner.runtime.dispatch.plan_runners import Policy, Sources
from torch import nn

pytestmark = pytest.mark.dynamo


class SetUpLate(nn.Module):
    """Its first call breaks the graph, as one does that installs hooks behind a lock."""

    def __init__(self):
        super().__init__()
        self.lock, self.is_ready = threading.Lock(), False

    def forward(self, x):
        return self.inner(x * 2) + 1

    def inner(self, x):
        if not self.is_ready:
            with self.lock:
                self.is_ready = True
        return torch.relu(x) * 3


@pytest.mark.filterwarnings("ignore::fusionplan.planner.cures.FusionplanWarning")
@pytest.mark.parametrize("has_plan", [True, False])
def test_a_model_that_its_first_call_sets_up_is_traced_once_more(has_plan):
    """The plan is of the model as it was tuned: set up, and so one graph."""

    asked = []

    def find(captured):
        asked.append(captured)
        work = tuple(n.id for n in captured.graph.nodes if n.op != "input")
        if len(work) < 4 or not has_plan:
            return "nothing is stored"
        group = GroupPlan(work[:1], "inductor", "")
        return Plan(key(captured.graph), "cpu", (), "measured", (group,))

    torch._dynamo.reset()
    dispatcher = Dispatcher(Policy(baseline="eager"), Sources(find))
    model = SetUpLate()
    fast = loaded(torch.compile(model, backend=dispatcher), model)
    x = torch.randn(3, 4)
    with torch.no_grad():
        for _ in range(4):
            torch.testing.assert_close(fast(x), torch.relu(x * 2) * 3 + 1)
    assert len(asked) > 2  # the pieces of the first call, and the whole in the second
    runners = [live.runner for live in dispatcher.live.values() if live.runner is not None]
    assert [runner.calls for runner in runners] == ([3] if has_plan else [])


@pytest.mark.filterwarnings("ignore::fusionplan.planner.cures.FusionplanWarning")
def test_one_graph_without_a_plan_is_not_traced_again():
    asked = []

    def find(captured):
        asked.append(captured)
        return "nothing is stored"

    torch._dynamo.reset()
    model = nn.Linear(4, 4)
    fast = loaded(
        torch.compile(model, backend=Dispatcher(Policy(baseline="eager"), Sources(find))), model
    )
    with torch.no_grad():
        for _ in range(3):
            fast(torch.randn(3, 4))
    assert len(asked) == 1
