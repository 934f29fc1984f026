"""AOTAutograd's wrapper is left out only where it does nothing."""

import gc
import weakref
from contextlib import nullcontext

import pytest
import torch
from fusionplan.planner.graph.graph import key
from fusionplan.planner.plan import GroupPlan, Plan
from fusionplan.planner.runtime.dispatch import pass_through
from fusionplan.planner.runtime.dispatch.dispatch import Dispatcher
from fusionplan.planner.runtime.dispatch.pass_through import PassThrough
from fusionplan.planner.runtime.dispatch.plan_runners import Policy, Sources


def calls_of_the_wrapper(graph, wrap, calls=5, x=None):
    """How many of the calls go through what `wrap` makes of the graph."""
    count = [0]
    made = PassThrough(graph)
    wrapped = wrap(made.graph)

    def wrapper(*args):
        count[0] += 1
        return wrapped(*args)

    call = made.called(wrapper)
    x = torch.ones(3) if x is None else x
    for _ in range(calls):
        call(x)
    return count[0]


def test_a_wrapper_is_called_once_where_it_does_nothing():
    assert calls_of_the_wrapper(lambda args: [args[0] * 2], lambda g: lambda *a: g([*a])) == 1


@pytest.mark.parametrize(
    "wrap",
    [
        lambda g: lambda *a: [g([*a])[0].view(-1)],  # another object
        lambda g: lambda *a: [g([*a])[0]] * 2,  # more results
        lambda g: lambda *a: g([a[0].detach()]),  # another input
        lambda g: lambda *a: g([*a, *a]),  # more inputs
        lambda g: lambda *a: g([*a])[0],  # no list
        lambda g: lambda *a: [a[0] * 2],  # the graph is not called at all
    ],
)
def test_a_wrapper_that_does_anything_stays(wrap):
    assert calls_of_the_wrapper(lambda args: [args[0] * 2], wrap) == 5


def test_a_wrapper_that_switches_autocast_off_stays():
    with torch.autocast("cpu", torch.bfloat16):
        graph = lambda args: [args[0] * 2]  # noqa: E731
        assert calls_of_the_wrapper(graph, lambda g: lambda *a: g([*a])) == 5


@pytest.mark.parametrize("autocast", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_no_tensor_of_a_call_is_held_after_it(autocast, fails):
    made = PassThrough(lambda args: [args[0] * 2])

    def wrapper(*args):
        found = made.graph([*args])
        if fails:
            raise ValueError("as asked")
        return found

    call, given = made.called(wrapper), []
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        for _ in range(5):
            x = torch.ones(3)
            given.append(weakref.ref(x))
            with pytest.raises(ValueError, match="as asked") if fails else nullcontext():
                call(x)
            del x
    gc.collect()
    assert [x() for x in given] == [None] * 5


def test_gradients_are_off_in_the_graph():
    modes = []

    def graph(args):
        modes.append(torch.is_grad_enabled())
        return [args[0] * 2]

    with torch.enable_grad():
        calls_of_the_wrapper(graph, lambda g: torch.no_grad()(lambda *a: g([*a])), 3)
        assert torch.is_grad_enabled()
    assert modes == [False] * 3


def writes(x):
    x.add_(1)
    return x * 2 + 1


FUNCTIONS = {
    "a result": lambda x: x * 2 + 1,
    "a view of the input": lambda x: (x.view(-1), x * 2 + 1),
    "the input": lambda x: (x, x * 2 + 1),
    "a result twice": lambda x: (x * 2 + 1,) * 2,
    "two views of a result": lambda x: (x * 2 + 1).split([1, 2]),
    "written": writes,
    "a tensor and a number": lambda x: (x * 2 + 1, 3),
}
WRAPPED = {"a view of the input", "written"}


@pytest.mark.dynamo
@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_are_those_of_eager_in_every_call(name, gradients, monkeypatch):
    function, direct = FUNCTIONS[name], []
    nothing = PassThrough._did_nothing

    def told(self, args, results):
        direct.append(nothing(self, args, results))
        return direct[-1]

    monkeypatch.setattr(pass_through.PassThrough, "_did_nothing", told)

    def find(captured):
        work = tuple(n.id for n in captured.graph.nodes if n.op != "input")
        group = GroupPlan(work[:1], "inductor", "")
        return Plan(key(captured.graph), "cpu", (), "measured", (group,))

    torch._dynamo.reset()
    fast = torch.compile(function, backend=Dispatcher(Policy(baseline="eager"), Sources(find)))
    with torch.set_grad_enabled(gradients):
        for _ in range(4):
            x = torch.randn(3, 4)
            mine, theirs = x.clone(), x.clone()
            found, wanted = fast(mine), function(theirs)
            found, wanted = (v if isinstance(v, tuple) else (v,) for v in (found, wanted))
            assert torch.equal(mine, theirs)
            for a, b in zip(found, wanted, strict=True):
                if isinstance(b, torch.Tensor):
                    torch.testing.assert_close(a, b)
                    assert a.requires_grad == b.requires_grad
                    assert (a is mine) == (b is theirs)
                    assert (a.data_ptr() == mine.data_ptr()) == (b.data_ptr() == theirs.data_ptr())
                else:
                    assert a == b
    assert any(direct) == (name not in WRAPPED)
