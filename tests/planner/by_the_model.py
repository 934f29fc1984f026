"""Models compiled by the cost model's plans, and the graphs that were planned."""

from fusionplan.planner.costs.device import builtin
from fusionplan.planner.covers.cover import modelled_plan


class PlannerByModel:
    """Plans by the model. graphs: those that were planned, also where ATen runs all of one."""

    def __init__(self):
        self.graphs = []

    def __call__(self, captured):
        self.graphs.append(captured.graph)
        return modelled_plan(captured.graph, builtin("h200"))


def graphs(dispatcher):
    return dispatcher.sources.model.graphs


def convolutions(graph):
    return [n for n in graph.nodes if n.op == "aten.convolution.default"]


def near(found, wanted):
    assert found.stride() == wanted.stride()
    error = (found.float() - wanted.float()).norm() / wanted.float().norm()
    assert error < 2e-2
