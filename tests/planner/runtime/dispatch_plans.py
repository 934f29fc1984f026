"""A model, and plans with a group for whatever graph is asked for."""

import torch
from fusionplan.planner.graph.graph import key
from fusionplan.planner.plan import GroupPlan, Plan
from fusionplan.planner.runtime.dispatch.dispatch import Dispatcher
from fusionplan.planner.runtime.dispatch.plan_runners import Policy, Sources
from torch import nn


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = 2

    def forward(self, x):
        return x * self.factor


def planned(asked):
    """A back end whose plans have a group, so that no call is left to eager."""

    def find(captured):
        asked.append(captured)
        work = tuple(n.id for n in captured.graph.nodes if n.op != "input")
        group = GroupPlan(work, "inductor", "")
        return Plan(key(captured.graph), "cpu", (), "measured", (group,))

    torch._dynamo.reset()
    return Dispatcher(Policy(baseline="eager"), Sources(find))
