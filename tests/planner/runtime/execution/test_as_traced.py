"""Operations that give something else than was traced: what reads it runs by ATen."""

import warnings

import pytest
import torch
from fusionplan.planner.costs.device import CPU
from fusionplan.planner.covers.cover import modelled_plan
from fusionplan.planner.cures import FusionplanWarning
from fusionplan.planner.runtime.dispatch.dispatch import Dispatcher
from fusionplan.planner.runtime.dispatch.plan_runners import Policy, Sources
from oracle import DEVICE

pytestmark = [pytest.mark.interpreter, pytest.mark.dynamo]


def _operation(name, real, traced):
    """An operation of the user's with a meta function of its own, and a gradient."""
    made = torch.library.custom_op(
        f"as_traced::{name}", real, mutates_args=(), schema="(Tensor x) -> Tensor"
    )
    made.register_fake(traced)
    made.register_autograd(lambda ctx, grad: grad.to(torch.float32).reshape(8, 32) * 2)
    return made


HONEST = _operation("honest", lambda x: x * 2, torch.empty_like)
LIES = {
    "type": _operation("type", lambda x: x.double() * 2, torch.empty_like),
    "shape": _operation("shape", lambda x: x[:4] * 2, torch.empty_like),
    "narrower": _operation("narrower", lambda x: (x * 2).bfloat16(), torch.empty_like),
    "negated": _operation("negated", lambda x: torch._neg_view(x * -2), torch.empty_like),
    "strides": _operation("strides", lambda x: (x.t().contiguous() * 2).t(), torch.empty_like),
}


def _compiled(function):
    dispatcher = Dispatcher(Policy(), Sources(lambda captured: modelled_plan(captured.graph, CPU)))
    return dispatcher, torch.compile(function, backend=dispatcher)


def _said(told):
    return [str(w.message) for w in told if isinstance(w.message, FusionplanWarning)]


def _data():
    return torch.randn(8, 32, generator=torch.Generator().manual_seed(1)).to(DEVICE)


@pytest.mark.parametrize("lie", LIES)
def test_what_reads_another_result_than_was_traced_runs_by_aten(lie):
    def function(x):
        y = LIES[lie](x.sin() + 1)
        return (y.exp() + 1) * 3, x.cos() * 5

    x = _data()
    dispatcher, compiled = _compiled(function)
    with torch.no_grad(), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(2):
            got, want = compiled(x), function(x)
            assert [g.dtype for g in got] == [w.dtype for w in want]
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    said = _said(told)
    if lie == "strides":  # that needs no more than a copy
        assert said == []
    else:
        assert len(said) == 1
        assert f"as_traced.{lie}.default gives" in said[0]
        assert "float32[8, 32] was traced" in said[0] or "was not traced" in said[0]
        assert "more" not in said[0]  # what is made of it is no fault of its own
    (live,) = dispatcher.live.values()
    assert live.runner.kernels_per_call >= 2
    assert live.runner.calls == 2


def test_later_calls_do_not_ask():
    def function(x):
        return HONEST(x.sin()).exp() + 1

    x = _data()
    dispatcher, compiled = _compiled(function)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), function(x))
        (live,) = dispatcher.live.values()
        module = live.runner._module
        assert module["unseen"] == []
        module["noted"] = None
        torch.testing.assert_close(compiled(x), function(x))
    assert live.runner.calls == 2


def test_without_an_operation_of_atens_nothing_is_asked():
    dispatcher, compiled = _compiled(lambda x: x.sin() + 1)
    with torch.no_grad():
        compiled(_data())
    (live,) = dispatcher.live.values()
    assert "unseen" not in live.runner.text


def test_a_backward_pass_reads_what_the_forward_pass_really_saved():
    def function(x):
        return (LIES["narrower"](x.sin()).exp() + 1) * 3

    x, again = (_data().requires_grad_() for _ in range(2))
    _, compiled = _compiled(function)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        got, want = compiled(x), function(again)
        assert got.dtype == want.dtype
        torch.testing.assert_close(got, want)
        weights = torch.randn(8, 32, generator=torch.Generator().manual_seed(2)).to(got)
        for result in (got, want):
            result.backward(weights)
    torch.testing.assert_close(x.grad, again.grad, atol=0.05, rtol=0.02)
    assert "as_traced.narrower.default gives bfloat16[8, 32] where float32[8, 32]" in _said(told)[0]


def test_a_write_into_an_input_is_right_all_the_same():
    def function(x, state):
        y = LIES["type"](x)
        state.add_(y.sum(1).float())
        return y.relu() + 1

    x = _data()
    states = [torch.ones(8, device=DEVICE) for _ in range(2)]
    _, compiled = _compiled(function)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):
            torch.testing.assert_close(compiled(x, states[0]), function(x, states[1]))
    torch.testing.assert_close(*states)
