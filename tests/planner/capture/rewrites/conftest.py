"""What tests of rewrites share."""

import pytest
import torch
from by_the_model import PlannerByModel
from fusionplan.planner.runtime.dispatch.dispatch import Dispatcher
from fusionplan.planner.runtime.dispatch.plan_runners import Policy, Sources


@pytest.fixture
def compiled(few_looks):
    """A function compiled by the model's plans, and the dispatcher that has its graphs."""

    def make(model):
        # Models of the same class share a limit of recompilations.
        torch._dynamo.reset()
        made = Dispatcher(Policy("model"), Sources(lambda c: "none", model=PlannerByModel()))
        return torch.compile(model, backend=made), made

    return make
