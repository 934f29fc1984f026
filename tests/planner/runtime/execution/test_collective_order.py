"""When collectives begin and when they are waited for, in a graph of one rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from fusionplan.planner.capture.capture import capture
from fusionplan.planner.capture.collectives import process_group
from fusionplan.planner.graph.ops import is_compute
from fusionplan.planner.plan import Plan
from fusionplan.planner.runtime.execution.executor import Executor
from fusionplan.planner.runtime.execution.schedule import schedule
from fusionplan.planner.runtime.execution.units import ScheduledUnit
from torch.distributed import HashStore, distributed_c10d
from torch.fx.experimental.proxy_tensor import make_fx

named = torch.ops._c10d_functional


@pytest.fixture
def group() -> Iterator[str]:
    """The name of a process group in which the other rank is not there: a sum is the rank's own."""
    torch.distributed.init_process_group("fake", store=HashStore(), rank=0, world_size=2)
    try:
        yield distributed_c10d._get_default_group().group_name
    finally:
        torch.distributed.destroy_process_group()


def backward(group: str) -> Callable[..., Any]:
    """The gradients of a layer's input, over all ranks, and of its weights and bias."""

    def run(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> Any:
        g = g.relu()
        of_weight = g.t() @ x
        of_input = (g @ w).view(2, -1, 8)
        of_bias = g.sum(0)
        whole = named.wait_tensor(named.all_reduce(of_input, "sum", group))
        return whole.relu().exp(), of_weight, of_bias

    return run


def several(group: str) -> Callable[..., Any]:
    """Two collectives, the second of what the first gives; it begins before other work."""

    def run(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> Any:
        g = g.relu()
        first = named.wait_tensor(named.all_reduce(g @ w, "sum", group))
        kept = g.t() @ x
        second = named.wait_tensor(named.all_reduce(first * 2, "sum", group))
        return second + 1, kept + 1, first

    return run


INPUTS = torch.randn(6, 4), torch.randn(6, 8), torch.randn(4, 8)


def order(function: Callable[..., Any]) -> list[str]:
    """What ATen runs, views apart."""
    gm = make_fx(function, tracing_mode="fake")(*INPUTS)
    captured = capture(gm)
    lines = Executor(captured, Plan("", "", (), "modelled", ()), torch.device("cpu")).text
    called = [line.rsplit("# ", 1)[1] for line in lines.splitlines() if "  # " in line]
    return [name.split(".")[1] for name in called if "view" not in name and ".t." not in name]


def test_work_runs_while_a_collective_does(group: str) -> None:
    assert order(backward(group)) == [
        "relu",
        "mm",  # the gradient of the input, though it is the second in the code
        "all_reduce",
        "mm",
        "sum",
        "wait_tensor",
        "relu",
        "exp",
    ]


def test_collectives_stay_in_their_order(group: str) -> None:
    assert order(several(group)) == [
        *("relu", "mm", "all_reduce", "wait_tensor", "mul", "all_reduce"),
        *("mm", "wait_tensor", "add", "add"),
    ]


def test_results_are_as_before(group: str) -> None:
    for make in (backward, several):
        function = make(group)
        gm = make_fx(function, tracing_mode="fake")(*INPUTS)
        captured = capture(gm)
        run = Executor(captured, Plan("", "", (), "modelled", ()), torch.device("cpu"))
        torch.testing.assert_close(tuple(run(*INPUTS)), tuple(function(*INPUTS)))


def test_weights_are_not_gathered_all_at_once(group: str) -> None:
    """A collective of inputs alone begins where the graph has it."""

    def run(x: torch.Tensor, *shards: torch.Tensor) -> list[torch.Tensor]:
        for shard in shards:
            whole = named.wait_tensor(named.all_gather_into_tensor(shard, 2, group))
            x = (x @ whole).relu()
        return [x]

    captured = capture(make_fx(run, tracing_mode="fake")(torch.randn(4, 8), *torch.randn(3, 4, 8)))
    units = schedule(captured, {})
    nodes = captured.fx_nodes
    kinds = ["gather" if process_group(nodes[u.outputs[0]]) else "" for u in units]
    work = [
        "compute" if is_compute(captured.graph.nodes[u.outputs[0]]) else kind
        for u, kind in zip(units, kinds, strict=True)
    ]
    assert [each for each in work if each] == ["gather", "compute", "compute"] * 3


def test_a_group_for_a_collective_alone_runs_before_others(group: str) -> None:
    """As the scaled sum of several gradients, which one kernel gives."""

    def run(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> Any:
        g = g.relu()
        kept = g.t() @ x
        scaled = (g @ w).exp() * 2
        return named.wait_tensor(named.all_reduce(scaled, "sum", group)), kept

    captured = capture(make_fx(run, tracing_mode="fake")(*INPUTS))
    at = {str(n.target): i for i, n in enumerate(captured.fx_nodes) if n.op == "call_function"}
    exp, mul = at["aten.exp.default"], at["aten.mul.Tensor"]
    source = captured.graph.nodes[exp].inputs
    units = schedule(captured, {0: ScheduledUnit(0, source, (mul,))})
    names = [str(captured.fx_nodes[u.outputs[-1]].target).split(".")[1] for u in units]
    assert [n for n in names if n != "t"] == [
        "relu",
        "mm",
        "mul",
        "all_reduce",
        "mm",
        "wait_tensor",
    ]
