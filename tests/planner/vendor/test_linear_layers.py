"""Linear layers that a vendor's call computes with what follows them: found however they are
written, and not found where the group computes something else."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from fusionplan.planner.lowerings.vendor import equals
from fusionplan.tuner.gate.check import check
from fusionplan.tuner.gate.reference import expected
from fusionplan.tuner.trial.evaluate import evaluate
from oracle import captured, whole_group
from vendor_equals import CPU, Function, compared, found, normal, the_call

pytestmark = pytest.mark.dynamo


def linear_relu(x, w, b):
    return F.relu(F.linear(x, w, b))


def by_parts(x, w, b):
    return (x @ w.t() + b).clamp_min(0)


def weights_first(x, w, b):
    return torch.relu((w @ x.mT).mT + b)


def transposed(x, w, b):
    """The bias belongs to the rows: it is the other product that is meant."""
    return torch.maximum(x @ w.t() + b[:, None], torch.zeros((), device=x.device))


LINEAR = {
    linear_relu: (3, 5, 16),
    by_parts: (15, 16),
    weights_first: (15, 16),
    transposed: (24, 16),
}


@pytest.mark.parametrize("function", LINEAR, ids=lambda f: f.__name__)
def test_a_linear_layer_with_relu_is_found(function: Function) -> None:
    inputs = [normal(*LINEAR[function]), normal(24, 16), normal(24)]
    graph = compared(function, inputs, "linear_relu")
    assert the_call(graph, "_addmm_activation")
    assert all(n.op != "aten.clone.default" for n in graph.nodes)


def gelu(x, w, b):
    return F.gelu(F.linear(x, w, b))


def gelu_tanh(x, w, b):
    return F.gelu(F.linear(x, w, b), approximate="tanh")


def gelu_by_hand(x, w, b):
    y = x @ w.t() + b
    return 0.5 * y * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (y + 0.044715 * y**3)))


def gelu_by_erf(x, w, b):
    y = (x @ w.t()).float() + b
    return (y * 0.5 * torch.erfc(-y * 0.5**0.5)).to(x.dtype)


@pytest.mark.parametrize("function", [gelu_tanh, gelu_by_hand], ids=lambda f: f.__name__)
def test_a_linear_layer_with_the_tanh_form_of_gelu_is_found(function: Function) -> None:
    """On a GPU the call's GELU is this one. On a CPU it is the other: near, and told apart."""
    whole, given = captured(function, [normal(64, 16), normal(24, 16), normal(24)])
    part = whole_group(whole.graph)
    (only,) = equals(part.graph)
    assert only.name == "linear_gelu"
    assert dict(the_call(only.graph, "_addmm_activation").kwargs)["use_gelu"] is True
    tensors = [given[whole.graph.inputs.index(i)] for i in part.inputs]
    actual, wanted = evaluate(only.graph, tensors, CPU), expected(part.graph, tensors, CPU)
    torch.testing.assert_close(actual[0].double(), wanted[0].value.double(), rtol=0, atol=1e-3)
    assert check(wanted, actual, "given") is not None  # in float32 it is too far


@pytest.mark.parametrize("function", [gelu, gelu_by_erf], ids=lambda f: f.__name__)
def test_the_tanh_form_does_not_stand_for_the_other_gelu(function: Function) -> None:
    whole, _ = captured(function, [normal(64, 16), normal(24, 16), normal(24)])
    assert equals(whole_group(whole.graph).graph) == ()


def residual(x, w, y):
    return y + x @ w.t()


def residual_scaled(x, w, y):
    return 2 * y - (x @ w.t()) * 0.5


def residual_by_parts(x, w, y):
    return torch.add(y, (w @ x.mT).mT, alpha=0.25)


@pytest.mark.parametrize(
    "function", [residual, residual_scaled, residual_by_parts], ids=lambda f: f.__name__
)
def test_a_matrix_that_is_added_is_the_products_third_operand(function: Function) -> None:
    inputs = [normal(15, 16), normal(24, 16), normal(15, 24)]
    graph = compared(function, inputs, "linear_sum")
    assert the_call(graph, "addmm")


def copied_twice(x, w, y):
    """Both copies name an order of memory, which is a word and no number."""
    own = (x @ w.t()).clone(memory_format=torch.contiguous_format)
    return (own + y).clone(memory_format=torch.contiguous_format)


def test_the_order_of_a_copy_is_no_number() -> None:
    inputs = [normal(15, 16), normal(24, 16), normal(15, 24)]
    assert the_call(compared(copied_twice, inputs, "linear_sum"), "addmm")


def bits_of_a_sum(x, w, y):
    return (x @ w.t() + y).view(torch.int32)


def test_what_reads_the_bits_of_a_sum_is_no_sum() -> None:
    inputs = [normal(15, 16), normal(24, 16), normal(15, 24)]
    assert found(bits_of_a_sum, inputs)[1] == ()


def full_bias(x, w, b):
    return F.relu(x @ w.t() + b[:, None] + b)


def negative_part(x, w, b):
    return F.linear(x, w, b).clamp(max=0)


def scaled_bias(x, w, b):
    return F.relu(torch.addmm(b, x, w.t(), beta=2))


def capped(x, w, b):
    return F.linear(x, w, b).clamp_min(0.5)


def two_results(x, w, b):
    total = F.linear(x, w, b)
    return F.relu(total), total


def quick_gelu(x, w, b):
    y = F.linear(x, w, b)
    return y * torch.sigmoid(1.702 * y)


def bias_after(x, w, b):
    return F.relu(x @ w.t()) + b


def leaky(x, w, b):
    return F.leaky_relu(F.linear(x, w, b), 1e-4)


def by_column(x, w, b):
    y = F.linear(x, w, b)
    return torch.where(torch.arange(24, device=x.device) > 3, F.relu(y), y)


def twice(x, w, b):
    return F.relu(x @ w.t() + b + x)


OTHER_LAYERS = [full_bias, negative_part, scaled_bias, capped, two_results, quick_gelu, bias_after]
OTHER_LAYERS += [leaky, by_column]


@pytest.mark.parametrize("function", OTHER_LAYERS, ids=lambda f: f.__name__)
def test_other_linear_layers_have_no_equal(function: Function) -> None:
    assert found(function, [normal(24, 16), normal(24, 16), normal(24)])[1] == ()


def test_a_matrix_that_is_multiplied_and_added_is_no_third_operand() -> None:
    assert found(twice, [normal(24, 24), normal(24, 24), normal(24)])[1] == ()
