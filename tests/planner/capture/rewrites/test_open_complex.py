"""Arithmetic of complex numbers between real ones becomes arithmetic of their parts."""

import inspect
import sys

import pytest
import torch
from fusionplan import executors
from fusionplan.backend import planner
from fusionplan.planner.capture.capture import capture
from fusionplan.planner.capture.decompositions.decompose import decompositions
from fusionplan.planner.capture.rewrites.open_complex import open_complex
from fusionplan.planner.costs.device import H200
from fusionplan.planner.covers.cover import modelled_plan
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx


def traced(function, *inputs):
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes = [mode.from_tensor(x) for x in inputs]
        return make_fx(function, decomposition_table=decompositions())(*fakes)


def turned(x, angle, turn):
    pairs = torch.view_as_complex(x.float().reshape(3, 5, 4, 2))
    return [torch.view_as_real(pairs * turn.view(1, 5, 4)).flatten(2).to(x.dtype)]


def by_angles(x, angle, turn):
    turn = torch.polar(torch.ones_like(angle), angle)[None]
    return [torch.view_as_real(torch.view_as_complex(x.reshape(3, 5, 4, 2)) * turn)]


def turned_back(x, angle, turn):
    pairs = torch.view_as_complex(x.reshape(3, 5, 4, 2))
    return [torch.view_as_real((pairs + pairs[:1] - turn) * turn.conj()[None].clone())]


def moved_and_summed(x, angle, turn):
    pairs = torch.view_as_complex(x.reshape(3, 5, 4, 2)) * turn
    return [torch.view_as_real(pairs[:, 1:].sum((0, 1))), torch.view_as_real(-pairs[2])]


def beside_others(x, angle, turn):
    """The product is also read by what stays complex."""
    product = torch.view_as_complex(x.reshape(3, 5, 4, 2)) * turn
    return [torch.view_as_real(product), product.abs()]


OPENED = [turned, by_angles, turned_back, moved_and_summed, beside_others]


def only_read(x, angle, turn):
    return [torch.view_as_real(turn) * 2]


def of_a_transform(x, angle, turn):
    return [torch.view_as_real(torch.fft.fft(x))]


def by_a_number(x, angle, turn):
    """Eager multiplies by 2 + 0i, so that an infinity becomes NaN."""
    return [torch.view_as_real(turn * 2.0)]


def in_another_order(x, angle, turn):
    """Its result keeps the strides of what it is computed from."""
    return [torch.view_as_real(turn.t() * turn.t())]


STAYING = [only_read, of_a_transform, by_a_number, in_another_order]


def inputs(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    x, angle = torch.randn(3, 5, 8, generator=generator), torch.randn(5, 4, generator=generator)
    return x.to(dtype), angle, torch.polar(angle.abs(), angle * 2)


@pytest.mark.parametrize("function", OPENED)
def test_the_parts_are_as_eager_has_them(function):
    gm = traced(function, *inputs())
    opened = open_complex(gm)
    assert opened is not gm
    results = zip(opened(*inputs()), function(*inputs()), strict=True)
    for mine, eager in results:
        torch.testing.assert_close(mine, eager, rtol=2e-6, atol=2e-6)
        assert mine.stride() == eager.stride()
    real = [n for n in opened.graph.nodes if n.op == "call_function"]
    complex_ones = [n for n in real if n.meta["val"].is_complex() and n.args[0].op != "placeholder"]
    assert bool(complex_ones) == (function is beside_others)


@pytest.mark.parametrize("function", STAYING)
def test_others_stay_as_they_are(function):
    gm = traced(function, *inputs())
    assert open_complex(gm) is gm


def test_a_long_chain_is_no_deep_recursion():
    def chain(x, angle, turn):
        power = turn
        for _ in range(300):
            power = power * turn
        return [torch.view_as_real(power)]

    gm, usual = traced(chain, *inputs()), sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + 200)
    try:
        opened = open_complex(gm)
    finally:
        sys.setrecursionlimit(usual)
    assert len(opened.graph.nodes) > 6 * 300


def test_a_rotation_of_queries_is_one_kernel():
    gm = open_complex(traced(turned, *inputs(torch.bfloat16)))
    graph = capture(gm).graph
    (group,) = modelled_plan(graph, H200).groups
    assert group.lowering == "triton"
    alone = {n.op for n in graph.nodes if n.id not in group.nodes}
    assert alone == {"input", "aten.view_as_real.default"}


@pytest.mark.interpreter
@pytest.mark.dynamo
def test_a_complex_result_beside_its_parts_is_trained() -> None:
    """The parts of its gradient stand with the backward pass, to which they belong."""

    def function(x):
        pairs = torch.complex(x, x.flip(-1))
        return pairs, pairs.imag.tanh()

    options = {"on_miss": "model", "evidence": "any", "store": "/nonexistent"}
    compiled = torch.compile(function, backend=planner, options=options)
    gradients = []
    for each in (compiled, function):
        x = torch.linspace(-1, 2, 24).reshape(4, 6).requires_grad_()
        pairs, part = each(x)
        torch.autograd.backward([pairs, part], [pairs.detach() * 2j, part.detach()])
        gradients.append(x.grad)
    torch.testing.assert_close(*gradients)
    assert all(runner.kernels_per_call for runner in executors(compiled))
    assert len(executors(compiled)) == 2
