"""Products whose rows do not start on 16 bytes, by the vendor's call on padded operands."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from corpus import graph_of
from fusionplan.planner.config import Config
from fusionplan.planner.costs.device import H200
from fusionplan.planner.costs.vendor_products import alignment, vendor_s
from fusionplan.planner.covers.cover import modelled_plan
from fusionplan.planner.errors import Refusal
from fusionplan.planner.graph.graph import Graph, Ref, TensorType, key
from fusionplan.planner.lower import lower
from fusionplan.planner.lowerings.registry import calls
from fusionplan.planner.lowerings.vendor import equals
from fusionplan.planner.runtime.execution.executor import Executor
from fusionplan.planner.runtime.execution.modules import captured_of
from fusionplan.tuner.gate.check import check
from fusionplan.tuner.gate.reference import expected
from fusionplan.tuner.trial.evaluate import evaluate
from fusionplan.tuner.trial.outcome import Candidate
from fusionplan.tuner.trial.running import load
from graphs import product

CPU = torch.device("cpu")
HEAD = (8192, 1024, 50257)
"""Rows, summed and columns of the last layer of a language model with an odd vocabulary."""


def inputs(graph: Graph) -> list[torch.Tensor]:
    found, generator = [], torch.Generator().manual_seed(0)
    for kind in (graph.nodes[n].type for n in graph.inputs):
        assert kind is not None
        empty = torch.empty_strided(kind.shape, kind.stride, dtype=getattr(torch, kind.dtype))
        found.append(empty.copy_(torch.randn(kind.shape, generator=generator)))
    return found


def padded(graph: Graph) -> list[TensorType]:
    """Both operands and the result of the padded product, after its numbers were found as good as
    eager's."""
    (only,) = equals(graph)
    assert only.name == "linear_padded"
    tensors = inputs(graph)
    actual = evaluate(only.graph, tensors, CPU)
    assert check(expected(graph, tensors, CPU), actual, "given") is None
    (call,) = (n for n in only.graph.nodes if n.op in ("aten.mm.default", "aten.addmm.default"))
    operands = [a.node for a in call.args if isinstance(a, Ref)][-2:]
    types = [only.graph.nodes[i].type for i in (*operands, call.id)]
    return [t for t in types if t is not None]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype, whole", [("float32", 4), ("bfloat16", 8)])
@pytest.mark.parametrize("turned", [(a, b) for a in (False, True) for b in (False, True)])
@pytest.mark.parametrize("sizes", [(15, 16, 29), (15, 13, 24), (16, 13, 16), (13, 15, 9)])
def test_padded_products_are_equal_and_aligned(sizes, turned, dtype, whole, bias) -> None:
    graph = product(*sizes, dtype=dtype, turned=turned, bias=bias)
    rows, summed, columns = sizes
    lengths = columns, rows if turned[0] else summed, summed if turned[1] else columns
    if any(length % whole for length in lengths):
        assert [alignment(t) for t in padded(graph)] == [16, 16, 16]
    else:
        assert equals(graph) == ()


@pytest.mark.parametrize(
    "sizes, turned, wider",
    [
        ((15, 16, 29), (False, True), (15, 16, 32)),
        ((15, 13, 32), (False, True), (15, 16, 32)),
        ((15, 16, 29), (False, False), (15, 16, 32)),
        ((13, 22, 32), (True, False), (16, 22, 32)),
    ],
)
def test_only_what_is_the_length_of_rows_is_padded(sizes, turned, wider) -> None:
    rows, summed, columns = wider
    shapes = [t.shape for t in padded(product(*sizes, turned=turned))]
    assert shapes == [(rows, summed), (summed, columns), (rows, columns)]


@pytest.mark.parametrize(
    "sizes, turned, bias",
    [
        (HEAD, (False, True), True),
        ((HEAD[0], HEAD[2], HEAD[1]), (False, False), False),
        ((HEAD[2], HEAD[0], HEAD[1]), (True, False), False),
    ],
    ids=["forward with a bias", "gradient of the input", "gradient of the weights"],
)
def test_the_model_pads_a_product_by_itself_and_a_tune_measures_it(sizes, turned, bias) -> None:
    graph = product(*sizes, turned=turned, bias=bias)
    (group,) = modelled_plan(graph, H200).groups
    assert (group.lowering, group.options) == ("vendor", "linear_padded")
    assert ("vendor", "linear_padded") in [(each.name, options) for each, options in calls(graph)]
    aligned = product(*(n + -n % 8 for n in sizes), turned=turned)
    assert modelled_plan(aligned, H200).groups == ()
    assert group.predicted is not None
    assert group.predicted < 2 * vendor_s(aligned, len(aligned.nodes) - 1, H200)


def test_a_product_that_reads_its_weights_once_is_not_padded() -> None:
    graph = product(16, 1024, 50257, turned=(False, True))
    assert len(equals(graph)) == 1
    (group,) = modelled_plan(graph, H200).groups
    assert (group.lowering, group.kernels) == ("triton", 1)


@pytest.mark.interpreter
@pytest.mark.parametrize("bias", [False, True])
def test_the_padded_result_has_eagers_strides(bias: bool) -> None:
    graph = product(256, 4096, 1001, turned=(False, True), bias=bias)
    plan = modelled_plan(graph, H200)
    assert [group.options for group in plan.groups] == ["linear_padded"]
    tensors = inputs(graph)
    executor = Executor(captured_of(graph, CPU), plan, CPU)
    (actual,) = executor.boxed([*tensors])
    assert actual.stride() == (1001, 1)
    assert check(expected(graph, tensors, CPU), [actual], "given") is None
    assert executor.kernels_per_call == 1, "a kernel of ours copies the result"
    assert "= match(" not in executor.text


def head(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Logits of a batch: the padded product's dimensions are split in the result."""
    return x @ w.t()


@pytest.mark.dynamo
@pytest.mark.interpreter
@pytest.mark.parametrize("shape", [(2, 128, 4096), (2, 2, 64, 4096)])
def test_a_padded_result_of_several_dimensions_is_copied_once(shape) -> None:
    kinds = [torch.empty(s, dtype=torch.float16, device="meta") for s in (shape, (1001, 4096))]
    graph = graph_of(head, kinds)
    plan = modelled_plan(graph, H200)
    assert [group.options for group in plan.groups] == ["linear_padded"]
    executor, tensors = Executor(captured_of(graph, CPU), plan, CPU), inputs(graph)
    (actual,) = executor.boxed([*tensors])
    assert check(expected(graph, tensors, CPU), [actual], "given") is None
    assert executor.kernels_per_call == 1


@pytest.mark.interpreter
def test_a_tune_measures_the_product_with_its_copy() -> None:
    graph = product(15, 16, 29, turned=(False, True))
    found = load(graph, Candidate("vendor", options="linear_padded"), CPU)
    assert not isinstance(found, Refusal)
    tensors = inputs(graph)
    (actual,) = found.bind(tensors, [])()
    assert actual.stride() == (29, 1)
    assert check(expected(graph, tensors, CPU), [actual], "given") is None


def test_the_copy_reads_nothing_before_its_wait() -> None:
    """A group's kernels may read what no kernel writes early; what is copied is just written."""
    early = []

    def lowered(graph: Graph, config: Config, **named):
        early.append(named.get("unwritten", frozenset()))
        return lower(graph, config, **named)

    graph = product(256, 4096, 1001, turned=(False, True))
    plan = replace(modelled_plan(graph, H200), overlaps=True)
    Executor(captured_of(graph, CPU), plan, CPU, lower=lowered)
    assert early == [frozenset()]


def test_a_plan_shared_by_sizes_of_which_some_need_no_padding_runs_them() -> None:
    plan = modelled_plan(product(256, 4096, 1001, turned=(False, True)), H200)
    assert [group.options for group in plan.groups] == ["linear_padded"]
    graph = product(32, 64, 24, turned=(False, True))
    tensors = inputs(graph)
    executor = Executor(captured_of(graph, CPU), replace(plan, graph_key=key(graph)), CPU)
    assert "constant_pad_nd" not in executor.text
    assert check(expected(graph, tensors, CPU), executor.boxed([*tensors]), "given") is None
