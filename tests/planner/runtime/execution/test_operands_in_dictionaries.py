"""Operations whose operands are in a dictionary, as those of a user's Triton kernel."""

from __future__ import annotations

import torch
from fusionplan.planner.capture.capture import capture
from fusionplan.planner.graph.graph import Ref
from fusionplan.planner.plan import Plan
from fusionplan.planner.runtime.execution.executor import Executor
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

aten = torch.ops.aten


def scaled(*, operands: dict[str, torch.Tensor], numbers: dict[str, float]) -> torch.Tensor:
    return operands["x"] * numbers["by"]


def test_they_are_read_and_handed_over() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    y = graph.call_function(aten.add.Tensor, (x, 1))
    z = graph.call_function(scaled, (), {"operands": {"x": y}, "numbers": {"by": 2.5}})
    graph.output((graph.call_function(aten.sin.default, (z,)),))
    with FakeTensorMode():
        for node in graph.nodes:
            node.meta["val"] = torch.empty(4, 5)
    captured = capture(fx.GraphModule({}, graph))
    given = dict(captured.graph.nodes[2].kwargs)
    assert given["operands"] == (("x", Ref(1)),)
    run = Executor(captured, Plan("", "", (), "modelled", ()), torch.device("cpu"))
    tensor = torch.randn(4, 5)
    torch.testing.assert_close(run(tensor), [((tensor + 1) * 2.5).sin()])
