"""The short way of a loaded model: only for calls that eager runs, and never another result."""

import copy
import gc
import sys
import warnings

import pytest
import torch
from dispatch_plans import Scaled, planned
from fusionplan.planner.graph.graph import key
from fusionplan.planner.plan import GroupPlan, Plan
from fusionplan.planner.runtime.dispatch.dispatch import Dispatcher
from fusionplan.planner.runtime.dispatch.loaded import loaded
from fusionplan.planner.runtime.dispatch.plan_runners import Policy, Sources
from torch import nn

pytestmark = pytest.mark.dynamo


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x, flag=True):
        return self.linear(x) * (2 if flag else 3)


@pytest.fixture
def asked():
    return []


@pytest.fixture
def backend(asked):
    """Eager is best for inputs of three rows; others have no plan."""

    def find(captured):
        asked.append(captured)
        shapes = [captured.graph.nodes[i].type.shape for i in captured.graph.inputs]
        if (3, 4) not in shapes:
            return "nothing is stored"
        return Plan(key(captured.graph), "cpu", (), "measured", (), frame=True)

    torch._dynamo.reset()
    return Dispatcher(Policy(baseline="eager"), Sources(find))


@pytest.fixture
def entries(monkeypatch):
    """Grows by "long" with each call that goes all the way of torch.compile's module, and by
    "guards" with each that goes to Dynamo at once."""
    from fusionplan.planner.runtime.dispatch import loaded
    from torch._dynamo.eval_frame import OptimizedModule

    found = []
    long, entered = OptimizedModule.__call__, loaded.entered

    def counted(self, *args, **kwargs):
        found.append("long")
        return long(self, *args, **kwargs)

    def counting(compiled):
        run = entered(compiled)
        if run is None:
            return None
        return lambda *args, **kwargs: found.append("guards") or run(*args, **kwargs)

    monkeypatch.setattr(OptimizedModule, "__call__", counted)
    monkeypatch.setattr(loaded, "entered", counting)
    return found


@pytest.mark.filterwarnings("ignore::fusionplan.planner.cures.FusionplanWarning")
def test_calls_that_eager_runs_go_the_short_way(backend, asked, entries):
    model = Twice()
    fast = loaded(torch.compile(model, backend=backend, dynamic=False), model)
    three, five = torch.randn(3, 4), torch.randn(5, 4)
    with torch.no_grad():
        for x, entered in [(three, 1), (three, 1), (five, 2), (five, 3), (three, 3)]:
            torch.testing.assert_close(fast(x), model(x))
            assert len(entries) == entered
        torch.testing.assert_close(fast(three, flag=False), model(three, flag=False))
        assert len(entries) == 4  # another value, another graph
    torch.testing.assert_close(fast(three), model(three))
    assert len(entries) == 5  # gradients are on
    assert len(asked) == 4
    assert entries == ["long", *["guards"] * 4]


@pytest.mark.filterwarnings("ignore::fusionplan.planner.cures.FusionplanWarning")
def test_calls_that_eager_runs_are_known_by_one_question(backend, entries, monkeypatch):
    from fusionplan.planner.runtime.dispatch import short_ways as module

    kinds, kind_of_call = [], module.kind_of_call
    monkeypatch.setattr(
        module, "kind_of_call", lambda *given: kinds.append(given) or kind_of_call(*given)
    )
    model = Twice()
    fast = loaded(torch.compile(model, backend=backend, dynamic=False), model)

    def asked_of(*args, **kwargs):
        before = len(kinds), len(entries)
        torch.testing.assert_close(fast(*args, **kwargs), model(*args, **kwargs))
        return len(kinds) - before[0], len(entries) - before[1]

    x, turned = torch.randn(3, 4), torch.randn(4, 3).t()
    with torch.no_grad():
        assert [asked_of(x) for _ in range(4)] == [(1, 1), (1, 0), (0, 0), (0, 0)]
        assert asked_of(torch.randn(3, 4)) == (0, 0)
        assert [asked_of(turned) for _ in range(3)] == [(1, 0), (0, 0), (0, 0)]
        assert [asked_of(x=x)[1] for _ in range(3)] == [1, 0, 0]
        assert asked_of(x=x) == (0, 0)
        assert asked_of(torch.randn(5, 4))[1] == 1  # it has no plan
        assert asked_of(x=torch.randn(5, 4))[1] == 1
        assert [asked_of(x, flag=False)[0] for _ in range(3)][1:] == [1, 0]
    assert asked_of(x)[1] == 1  # gradients are on
    model.eval()
    with torch.no_grad():
        assert asked_of(x)[1] == 1  # another mode


def test_calls_are_alike_in_tensors_and_in_plain_values() -> None:
    from fusionplan.planner.runtime.dispatch.calls import TensorCall

    x, y = torch.randn(3), torch.randn(4)
    call = TensorCall.of((x, 1, y), {"by": None})
    assert call is not None
    assert call.fits((torch.randn(3), 1, torch.randn(4)), {"by": None})
    for args, kwargs in (
        ((x, 1, y), {}),
        ((x, 1), {"by": None}),
        ((x, True, y), {"by": None}),
        ((x, 1.0, y), {"by": None}),
        ((x, 2, y), {"by": None}),
        ((x, x, y), {"by": None}),
        ((y, 1, x), {"by": None}),
        ((x, 1, y), {"to": None}),
    ):
        assert not call.fits(args, kwargs)
    assert TensorCall.of((1, "a"), {}) is None
    assert TensorCall.of((x, [y]), {}) is None


class Parts(nn.Module):
    """Two frames: one of sizes that vary, and one whose sizes stay."""

    @torch._dynamo.disable(recursive=False)
    def forward(self, x):
        return self.last(self.first(x))

    def first(self, x):
        return x.sum(0) + torch.zeros(5, 4)

    def last(self, x):
        return torch.relu(x) * 2


def test_a_call_with_one_frame_left_alone_of_two_goes_the_long_way(asked):
    """Of a graph that was compiled before, too, it is known that it ran."""

    def find(captured):
        graph = captured.graph
        asked.append(graph)
        if (5, 4) not in [graph.nodes[i].type.shape for i in graph.inputs]:
            return Plan(key(graph), "cpu", (), "measured", (), frame=True)
        work = tuple(n.id for n in graph.nodes if n.op != "input")
        return Plan(key(graph), "cpu", (), "measured", (GroupPlan(work[:1], "inductor", ""),))

    torch._dynamo.reset()
    dispatcher = Dispatcher(Policy(baseline="eager"), Sources(find))
    model = Parts()
    fast = loaded(torch.compile(model, backend=dispatcher, dynamic=True), model)
    rows = [3, 7, 7, 9, 9, 3]
    with torch.no_grad():
        for count in rows:
            x = torch.randn(count, 4)
            torch.testing.assert_close(fast(x), model(x))
    runners = [live.runner for live in dispatcher.live.values() if live.runner is not None]
    assert sum(runner.calls for runner in runners) == len(rows)


def test_hooks_and_attributes_are_those_of_the_module(backend):
    model = Twice()
    fast = loaded(torch.compile(model, backend=backend), model)
    x, seen = torch.randn(3, 4), []
    with torch.no_grad():
        fast(x)
        handle = fast.register_forward_hook(lambda *_: seen.append("outer"))
        model.linear.register_forward_hook(lambda *_: seen.append("inner"))
        fast(x)
        handle.remove()
        fast(x)
    assert seen.count("outer") == 1
    assert seen.count("inner") >= 2
    assert fast.linear is model.linear
    assert set(fast.state_dict()) == {f"_orig_mod.{name}" for name in model.state_dict()}
    model.linear.weight.data.zero_()
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x))


def test_the_guards_are_asked_in_every_call(asked, entries):
    model = Scaled()
    fast = loaded(torch.compile(model, backend=planned(asked)), model)
    x = torch.randn(3, 4)
    with torch.no_grad():
        for factor in (2, 2, 3, 3, 2):
            model.factor = factor
            torch.testing.assert_close(fast(x), x * factor)
    assert entries == ["long", *["guards"] * 4]
    assert len(asked) == 2
    assert torch._C._dynamo.eval_frame.get_eval_frame_callback() is None


def test_a_loaded_model_within_another_compiled_function(asked):
    model = Scaled()
    fast = loaded(torch.compile(model, backend=planned(asked), dynamic=False), model)
    x = torch.randn(3, 4)
    outer = torch.compile(lambda x: fast(x) + 1, backend="eager")
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            torch.testing.assert_close(outer(x), x * 2 + 1)
            torch.testing.assert_close(fast(x), x * 2)


def test_an_error_of_the_model_leaves_dynamo_as_it_was(asked, entries):
    model = Scaled()
    fast = loaded(torch.compile(model, backend=planned(asked)), model)
    with torch.no_grad():
        for x in (torch.ones(2), torch.ones(2)):
            fast(x)
        with pytest.raises(TypeError):
            fast(torch.ones(2), torch.ones(2))
        assert torch._C._dynamo.eval_frame.get_eval_frame_callback() is None
        torch.testing.assert_close(fast(torch.ones(2)), torch.full((2,), 2.0))
    assert entries == ["long", *["guards"] * 3]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_torch_compile_was_told_to_do_goes_all_the_way(asked, entries):
    """A stance, a trace, hooks of all modules, and options that `load` does not give."""
    model = Scaled()
    fast = loaded(torch.compile(model, backend=planned(asked)), model)
    x, seen = torch.randn(3, 4), []
    with torch.no_grad():
        fast(x)
        with torch.compiler.set_stance("force_eager"):
            fast(torch.randn(7, 4))
        assert len(asked) == 1
        handle = nn.modules.module.register_module_forward_hook(lambda *_: seen.append(1))
        with pytest.warns(UserWarning, match="global hooks"):
            fast(x)
        handle.remove()
        with pytest.raises(RuntimeError, match="trace"):
            torch.jit.trace(fast, x, check_trace=False)
        assert seen
        assert set(entries) == {"long"}
        fast(x)
        whole = loaded(torch.compile(model, backend=planned(asked), fullgraph=True), model)
        for _ in range(3):
            whole(x)
    assert entries.count("guards") == 1


def test_a_layer_of_torch_is_compiled_itself(asked, entries):
    """Dynamo does not look into torch's own modules unless they are wrapped."""
    model = nn.Linear(4, 4)
    fast = loaded(torch.compile(model, backend=planned(asked)), model)
    with torch.no_grad():
        for rows in (3, 3, 5):
            x = torch.randn(rows, 4)
            torch.testing.assert_close(fast(x), model(x))
    assert entries == ["long", "guards", "guards"]
    assert len(asked) == 2


@pytest.mark.parametrize("plan", [True, False])
def test_a_deep_copy_has_weights_of_its_own(backend, plan):
    model = Twice()
    fast = loaded(torch.compile(model, backend=planned([]) if plan else backend), model)
    x = torch.randn(3, 4)
    with torch.no_grad():
        fast(x)
        other = copy.deepcopy(fast)
        model.linear.weight.data.zero_()
        assert not torch.equal(other(x), fast(x))


def test_a_model_stays_a_model_where_torch_compile_is_off():
    """torch.compile then gives the model itself."""
    model = Twice()
    assert loaded(model, model) is model


def test_functions_and_containers(backend):
    def add(pair, *, by):
        return (pair[0] + pair[1]["y"]) * by["factor"]

    fast = loaded(torch.compile(add, backend=backend), add)
    x = torch.ones(3, 4)
    for factor in (2.0, 2.0, 3.0):
        given = ((x, {"y": x}),), {"by": {"factor": factor}}
        torch.testing.assert_close(fast(*given[0], **given[1]), add(*given[0], **given[1]))
    assert fast.__name__ == "add"


@pytest.mark.parametrize("kind", ["module", "function"])
@pytest.mark.parametrize("collects", [False, True])
def test_the_collector_waits_until_a_call_has_succeeded(kind, collects):
    seen = []

    def backend(gm, inputs):
        seen.append(gc.isenabled())
        if len(seen) == 1:
            raise ValueError("the first time")
        return gm

    torch._dynamo.reset()
    model = Twice() if kind == "module" else lambda x: x * 2
    fast = loaded(torch.compile(model, backend=backend), model, collects=collects)
    with pytest.raises(Exception, match="the first time"):
        fast(torch.randn(2, 4))
    assert gc.isenabled()
    fast(torch.randn(2, 4))
    fast(torch.randn(2, 2, 4)[0] if kind == "module" else torch.randn(2, 3, 4))
    assert seen == [collects, collects, *([True] if kind == "function" else [])]
    assert gc.isenabled()


def test_code_that_is_replaced_runs(asked):
    """A notebook that loads a module again puts new code into old functions and classes."""

    class Model(nn.Module):
        def forward(self, x):
            return torch.relu(x) * 2

    def function(x):
        return torch.relu(x) * 2

    model, x = Model(), torch.randn(3, 4)
    fast = loaded(torch.compile(model, backend=planned(asked), dynamic=False), model)
    short = loaded(torch.compile(function, backend=planned(asked), dynamic=False), function)
    for factor in (2, 3, 4):
        for _ in range(3):
            torch.testing.assert_close(fast(x), torch.relu(x) * factor)
            torch.testing.assert_close(short(x), torch.relu(x) * factor)
        function.__code__ = (lambda x: torch.relu(x) * 3).__code__
        if factor == 3:
            function.__code__ = (lambda x: torch.relu(x) * 4).__code__
            Model.forward.__code__ = (lambda self, x: torch.relu(x) * 4).__code__
        else:
            Model.forward = lambda self, x: torch.relu(x) * 3


def test_hooks_before_a_backward_pass_are_those_of_the_module(backend):
    model, x, seen = Twice(), torch.randn(3, 4, requires_grad=True), []
    fast = loaded(torch.compile(model, backend=backend), model)
    fast(x)
    fast(x)
    fast.register_full_backward_pre_hook(lambda *_: seen.append("backward"))
    fast(x).sum().backward()
    assert seen == ["backward"]


def _entered(call):
    """The Python functions that a call enters, by name."""
    names = []
    sys.setprofile(lambda frame, event, _: event == "call" and names.append(frame.f_code.co_name))
    try:
        call()
    finally:
        sys.setprofile(None)
    return names[1:]  # not that of `call` itself


class Relu(nn.Module):
    def forward(self, x):
        return torch.relu(x)


class Joined(nn.Module):
    def forward(self, first=None, **named):
        return torch.cat([first, *named.values()] if first is not None else [*named.values()])


def test_a_call_that_eager_runs_enters_no_more_than_eagers_own(backend):
    model, x = Relu(), torch.randn(3, 4)
    fast = loaded(torch.compile(model, backend=backend, dynamic=False), model)
    seen = []
    with torch.no_grad():
        for _ in range(4):
            fast(x)
        assert _entered(lambda: fast(x)) == ["__call__", "is_dynamo_compiling", "forward"]
        model.register_forward_pre_hook(lambda *given: seen.append(given[1:]), with_kwargs=True)
        fast(x)
        fast(x=x)
    assert seen == [((x,), {}), ((), {"x": x})]


@pytest.mark.filterwarnings("ignore::fusionplan.planner.cures.FusionplanWarning")
def test_arguments_come_as_they_are_given(backend):
    model = Joined()
    fast = loaded(torch.compile(model, backend=backend, dynamic=False), model)
    x, y = torch.zeros(3, 4), torch.ones(3, 4)
    calls = [((), {"a": x, "b": y})] * 4
    calls += [((), {"b": x, "a": y}), ((x,), {}), ((x,), {"a": y}), ((), {"a": x})]
    with torch.no_grad():
        for args, kwargs in calls:
            assert torch.equal(fast(*args, **kwargs), model(*args, **kwargs))
        with pytest.raises(TypeError, match="positional"):
            fast(x, y, x)


def test_a_loaded_model_is_a_part_of_what_somebody_compiles(asked):
    model, x = Scaled(), torch.randn(3, 4)
    fast = loaded(torch.compile(model, backend=planned(asked)), model)
    whole = torch.compile(lambda x: fast(x) + 1, backend="eager", fullgraph=True)
    for _ in range(3):
        torch.testing.assert_close(whole(x), x * 2 + 1)
    torch.testing.assert_close(fast(x), x * 2)
