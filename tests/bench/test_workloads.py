"""The workloads build and run, and their floors follow from what they read and write."""

import sys
from dataclasses import replace

import pytest
import torch
from fusionplan.bench.workloads import EXAMPLES, MORE, ROOT, WORKLOADS, make
from fusionplan.planner.costs.device import H100, H200
from torch.utils._pytree import tree_leaves

SCALE = 64


def nbytes(values):
    tensors = [v for v in tree_leaves(values) if isinstance(v, torch.Tensor)]
    return sum(t.numel() * t.element_size() for t in tensors)


@pytest.mark.parametrize("name", WORKLOADS)
def test_least_bytes_are_inputs_weights_and_results(name):
    model, call = make(WORKLOADS[name], "meta")
    with torch.no_grad():
        result = call.run(model)
    moved = nbytes([call.args, list(model.parameters()), list(model.buffers()), result])
    if name == "batchnorm_train_relu":  # read once more
        moved += nbytes(call.args)
    assert WORKLOADS[name].least_bytes == moved


@pytest.mark.parametrize("workload", MORE, ids=lambda w: w.name)
def test_small_ones_run(workload):
    model, call = make(workload, "cpu", scale=SCALE)
    with torch.no_grad():
        results = tree_leaves(call.run(model))
    assert results
    assert all(bool(torch.isfinite(result).all()) for result in results)


def test_functions_of_a_workload_can_be_found_by_the_name_of_their_module():
    model, _ = make(MORE[0], "meta", scale=SCALE)  # as torch.compile does with what it inlines
    assert getattr(sys.modules[type(model).__module__], type(model).__name__) is type(model)


def test_every_example_of_a_model_is_a_workload():
    every = (ROOT / "examples").glob("*.py")
    files = {f"examples/{file.name}" for file in every if "def get_inputs" in file.read_text()}
    assert {w.file for w in EXAMPLES} == files


def test_floors_are_of_memory_or_of_matrix_products():
    rates = replace(H100, copy_s=((4.3e12, 1.0),), tensor_flops=790e12)
    chain = WORKLOADS["article_chain"]
    assert chain.floor_s(rates) == pytest.approx(124.9e-6, rel=1e-3)
    assert type(chain)("x", "", "", 1, flops=790e12).floor_s(rates) == pytest.approx(1.0)


def test_floors_are_of_the_device_that_is_measured():
    chain = WORKLOADS["article_chain"]
    assert chain.floor_s(H100) == pytest.approx(chain.least_bytes / H100.bandwidth)
    assert chain.floor_s(H100) > 1.4 * chain.floor_s(H200)  # by their memories


def test_arguments_name_the_file_and_the_functions():
    assert WORKLOADS["rotary"].arguments == [str(ROOT / "examples/rotary.py")]
    model, option, inputs = WORKLOADS["custom_loss_many_small_ops"].arguments
    assert (option, model.rpartition(":")[2]) == ("--inputs", "CustomLoss")
    assert inputs.endswith("memory_bound.py:custom_loss_inputs")
