"""Products whose rows do not start on 16 bytes, by one call for every n-th row of the result."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from corpus import graph_of
from fusionplan.planner.costs.device import H200
from fusionplan.planner.covers.cover import modelled_plan
from fusionplan.planner.graph.graph import Graph, key
from fusionplan.planner.lowerings.registry import calls
from fusionplan.planner.plan import Plan
from fusionplan.planner.runtime.execution.executor import Executor
from fusionplan.planner.runtime.execution.modules import captured_of
from fusionplan.planner.vendor.strided_rows import mm_strided_rows, turns_of
from fusionplan.tuner.gate.check import check
from fusionplan.tuner.gate.reference import expected
from graphs import product

CPU = torch.device("cpu")
NAME = "linear_strided_rows"


def inputs(graph: Graph) -> list[torch.Tensor]:
    found, generator = [], torch.Generator().manual_seed(0)
    for kind in (graph.nodes[n].type for n in graph.inputs):
        assert kind is not None
        empty = torch.empty_strided(kind.shape, kind.stride, dtype=getattr(torch, kind.dtype))
        found.append(empty.copy_(torch.randn(kind.shape, generator=generator)))
    return found


def products(x: torch.Tensor, w: torch.Tensor, monkeypatch) -> list[torch.Tensor]:
    """The results that the calls of a product write, after their numbers were found right."""
    written, mm = [], torch.ops.aten.mm.out

    def watched(a, b, *, out):
        written.append(out)
        return mm(a, b, out=out)

    monkeypatch.setattr(torch.ops.aten.mm, "out", watched)
    torch.testing.assert_close(mm_strided_rows(x, w), x @ w.t(), rtol=2e-2, atol=2e-2)
    return written


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("columns, even", [(33, 1), (67, 1), (66, 2), (78, 2), (68, 4), (72, 8)])
def test_every_row_is_written_where_it_starts_aligned(columns, even, dtype, monkeypatch) -> None:
    torch.manual_seed(0)
    whole = 16 // dtype.itemsize
    x, w = torch.randn(1024, 16, dtype=dtype), torch.randn(columns, 16, dtype=dtype)
    turns = turns_of(1024, columns, str(dtype).removeprefix("torch."))
    if even >= whole:
        assert turns is None
        return
    assert turns is not None
    written = products(x, w, monkeypatch)
    assert len(written) == turns.calls == whole // even
    for out in written:
        assert out.shape == (1024 // turns.calls, turns.body)
        assert out.storage_offset() % whole == out.stride(0) % whole == turns.body % whole == 0


@pytest.mark.parametrize("rows, columns", [(1023, 65), (512, 65), (1024, 31), (1024, 64)])
def test_few_ragged_or_aligned_rows_are_not_done_so(rows, columns) -> None:
    assert turns_of(rows, columns, "bfloat16") is None
    with pytest.raises(ValueError, match="not done in turns"):
        mm_strided_rows(*(torch.ones(n, 8, dtype=torch.bfloat16) for n in (rows, columns)))


@pytest.mark.parametrize("columns", [50257, 30522, 50260])
def test_the_model_does_a_wide_product_so_and_a_tune_measures_it(columns) -> None:
    graph = product(8192, 1024, columns, turned=(False, True))
    (group,) = modelled_plan(graph, H200).groups
    assert (group.lowering, group.options) == ("vendor", NAME)
    assert ("vendor", NAME) in [(each.name, options) for each, options in calls(graph)]


@pytest.mark.parametrize(
    "summed, turned", [(1023, (False, True)), (1024, (False, False)), (1024, (True, True))]
)
def test_operands_that_are_not_dense_in_aligned_rows_are_padded(summed, turned) -> None:
    (group,) = modelled_plan(product(8192, summed, 50257, turned=turned), H200).groups
    assert group.options == "linear_padded"


def planned(graph: Graph) -> Plan:
    """The modelled plan of a product that is smaller than those that the model does so."""
    plan = modelled_plan(graph, H200)
    (group,) = plan.groups
    assert group.options == "linear_padded"
    return replace(plan, groups=(replace(group, options=NAME),))


def head(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x @ w.t()


@pytest.mark.dynamo
def test_the_result_has_eagers_strides_and_is_copied_nowhere() -> None:
    kinds = [
        torch.empty(s, dtype=torch.bfloat16, device="meta") for s in ((4, 256, 1024), (1027, 1024))
    ]
    graph = graph_of(head, kinds)
    executor, tensors = Executor(captured_of(graph, CPU), planned(graph), CPU), inputs(graph)
    assert "match(" in executor.text, "what lies as eager's is returned as it is"
    (actual,) = executor.boxed([*tensors])
    assert actual.stride() == (256 * 1027, 1027, 1)
    assert check(expected(graph, tensors, CPU), [actual], "given") is None


def test_a_plan_shared_by_sizes_of_which_some_are_aligned_runs_them() -> None:
    plan = planned(product(2048, 1024, 4099, turned=(False, True)))
    for sizes in ((32, 64, 24), (100, 64, 4099)):
        graph = product(*sizes, turned=(False, True))
        tensors = inputs(graph)
        executor = Executor(captured_of(graph, CPU), replace(plan, graph_key=key(graph)), CPU)
        found = executor.boxed([*tensors])
        assert check(expected(graph, tensors, CPU), found, "given") is None
