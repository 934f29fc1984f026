"""The short way of a loaded model: only for calls that eager runs, and never another result."""

import copy
import gc
import warnings

import pytest
import torch
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
    from fusionplan.planner.runtime.dispatch import loaded as module

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


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = 2

    def forward(self, x):
        return x * self.factor


def planned(asked):
    """A back end whose plans have a group, so that no call is left to eager."""

    def find(captured):
        asked.append(captured)
        work = tuple(n.id for n in captured.graph.nodes if n.op != "input")
        group = GroupPlan(work, "inductor", "")
        return Plan(key(captured.graph), "cpu", (), "measured", (group,))

    torch._dynamo.reset()
    return Dispatcher(Policy(baseline="eager"), Sources(find))


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


@pytest.fixture
def by_frames(monkeypatch):
    """Grows with each call that goes by way of the interpreter to Dynamo."""
    from fusionplan.planner.runtime.dispatch import front_end

    found, made = [], front_end._Frames

    def counting(model, forward, enter):
        return made(model, forward, lambda *a, **k: found.append(a) or enter(*a, **k))

    monkeypatch.setattr(front_end, "_Frames", counting)
    return found


def ran(fast, x, wanted, by_frames):
    """Calls that go by way of the interpreter, of three that give what is wanted."""
    before = len(by_frames)
    for _ in range(3):
        torch.testing.assert_close(fast(x), wanted)
    return len(by_frames) - before


def twice_and_one(x):
    return torch.relu(x) * 2 + 1


def test_a_call_of_varying_sizes_asks_the_guards_itself(by_frames):
    """So does one whose sizes the user's own code runs, until it is known to."""

    def find(captured):
        graph = captured.graph
        work = tuple(n.id for n in graph.nodes if n.op != "input")
        eager = (7, 4) in [graph.nodes[i].type.shape for i in graph.inputs]
        groups = () if eager else (GroupPlan(work[:1], "inductor", ""),)
        return Plan(key(graph), "cpu", (), "measured", groups, frame=eager)

    torch._dynamo.reset()
    dispatcher = Dispatcher(Policy(baseline="eager"), Sources(find))
    fast = loaded(torch.compile(twice_and_one, backend=dispatcher, dynamic=True), twice_and_one)
    with torch.no_grad():
        for rows in (3, 3, 5, 7, 7, 9, 7, 3):
            x = torch.randn(rows, 4)
            torch.testing.assert_close(fast(x), twice_and_one(x))
    assert len(by_frames) == 1  # it is learned by that call; the first is torch.compile's
    assert sum(live.runner.calls for live in dispatcher.live.values() if live.runner) == 5


OFFSET = torch.ones(4)


def shifted(x):
    return x * 3 + OFFSET


def test_code_that_reads_globals_keeps_them(asked, by_frames, monkeypatch):
    """They may be other ones in the next call."""
    fast = loaded(torch.compile(shifted, backend=planned(asked), dynamic=False), shifted)
    x = torch.randn(3, 4)
    fast(x)
    assert ran(fast, x, x * 3 + 1, by_frames) == 1
    monkeypatch.setitem(globals(), "OFFSET", torch.full((4,), 2.0))
    assert ran(fast, x, x * 3 + 2, by_frames) == 0


def test_a_profiler_is_told_of_a_call_by_guards(asked, by_frames):
    model = Scaled()
    fast = loaded(torch.compile(model, backend=planned(asked), dynamic=False), model)
    x = torch.randn(3, 4)
    fast(x)
    assert ran(fast, x, x * 2, by_frames) == 1
    with torch.profiler.profile() as profile:
        assert ran(fast, x, x * 2, by_frames) == 0
    assert "Pregraph bytecode" in {event.name for event in profile.events()}


def test_a_call_of_one_graph_asks_the_guards_itself(asked, by_frames):
    """What they see decides: attributes, the mode of gradients, the module, and what is left."""
    model, other = Scaled(), Scaled()
    fast = loaded(torch.compile(model, backend=planned(asked), dynamic=False), model)
    x, y = torch.randn(3, 4), torch.randn(5, 4)
    fast(x)
    assert ran(fast, x, x * 2, by_frames) == 1  # it is learned by the first
    assert ran(fast, x, x * 2, by_frames) == 0
    assert ran(fast, y, y * 2, by_frames) == 1
    with torch.no_grad():
        assert ran(fast, x, x * 2, by_frames) == 1
    model.factor = 3
    assert ran(fast, x, x * 3, by_frames) == 1
    other.factor = 5
    second = loaded(torch.compile(other, backend=planned(asked), dynamic=False), other)
    second(x)
    assert ran(second, x, x * 5, by_frames) == 1
    torch._dynamo.reset()
    assert ran(fast, x, x * 3, by_frames) == 1
    handle = model.register_forward_hook(lambda *_: torch.zeros(()))
    assert torch.equal(fast(x), torch.zeros(()))
    handle.remove()
    assert ran(fast, x, x * 3, by_frames) == 0
    model.forward = lambda x: x * 7
    torch.testing.assert_close(fast(x), x * 7)


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x, scale=2.0, *, shift=None):
        found = self.layer(x) * scale
        return found if shift is None else found + shift


def test_parts_of_a_model_that_are_replaced(asked, by_frames):
    """What Dynamo's guards ask of may be gone."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            return self.layer(x) * 2

    model = Model()
    fast = loaded(torch.compile(model, backend=planned(asked), dynamic=False), model)
    x = torch.randn(3, 4)
    with torch.no_grad():
        for _ in range(3):
            fast(x)
        for _ in range(3):
            model.layer = nn.Linear(4, 4)
            for _ in range(3):
                torch.testing.assert_close(fast(x), model.layer(x) * 2)
        model.layer.weight = nn.Parameter(torch.zeros(4, 4))
        torch.testing.assert_close(fast(x), model.layer(x) * 2)
        model.layer = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        torch.testing.assert_close(fast(x), model.layer(x) * 2)


def test_arguments_by_name_and_left_out(asked):
    model = Layers()
    fast = loaded(torch.compile(model, backend=planned(asked), dynamic=False), model)
    x = torch.randn(3, 4)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(fast(x), model(x))
            torch.testing.assert_close(fast(x, 3.0), model(x, 3.0))
            torch.testing.assert_close(fast(x=x, scale=3.0), model(x, 3.0))
            torch.testing.assert_close(fast(x, shift=x), model(x, shift=x))
    with pytest.raises(TypeError, match="unexpected keyword"):
        fast(x, other=1)


def plain(x, scale=2.0, *, shift=None):
    found = x * scale
    return found if shift is None else found + shift


def collecting(first, *others, by=1.0, **named):
    return first * by + sum(others) + sum(named.values())


X = torch.arange(12.0).reshape(3, 4)

CALLS = {
    "places": (plain, [((X,), {}), ((X, 3.0), {})]),
    "names": (plain, [((), {"x": X}), ((), {"scale": 3.0, "x": X}), ((X,), {"shift": X})]),
    "others": (collecting, [((X,), {}), ((X, X), {}), ((X, X, X), {"by": 2.0})]),
    "more": (collecting, [((X,), {"a": X}), ((), {"first": X, "b": X, "by": 3.0})]),
}


@pytest.mark.parametrize("kind", ["function", "module"])
@pytest.mark.parametrize("calls", CALLS)
def test_every_form_of_a_call_asks_the_guards_itself(asked, by_frames, calls, kind):
    function, given = CALLS[calls]
    model = function
    if kind == "module":
        model = {plain: Plain, collecting: Collecting}[function]()
    torch._dynamo.reset()
    fast = loaded(torch.compile(model, backend=planned(asked), dynamic=False), model)
    for args, kwargs in given * 2:
        torch.testing.assert_close(fast(*args, **kwargs), function(*args, **kwargs))
    assert len(by_frames) == len(given)  # each kind of call is learned once
    for args, kwargs in given:
        assert torch.equal(fast(*args, **kwargs), function(*args, **kwargs))
    assert len(by_frames) == len(given)


class Plain(nn.Module):
    def forward(self, x, scale=2.0, *, shift=None):
        found = x * scale
        return found if shift is None else found + shift


class Collecting(nn.Module):
    def forward(self, first, *others, by=1.0, **named):
        return first * by + sum(others) + sum(named.values())


def test_calls_that_do_not_fit_a_function_are_its_own_errors(asked, by_frames):
    torch._dynamo.reset()
    fast = loaded(torch.compile(plain, backend=planned(asked), dynamic=False), plain)
    assert ran(fast, X, X * 2, by_frames) == 1
    for args, kwargs in [((), {}), ((X, 2.0, X), {}), ((X,), {"x": X}), ((X,), {"other": 1})]:
        with pytest.raises(TypeError, match="argument"):
            fast(*args, **kwargs)
    assert torch.equal(fast(X), X * 2)


def test_defaults_that_change(asked):
    def function(x, scale=2.0, *, shift=1.0):
        return x * scale + shift

    torch._dynamo.reset()
    fast = loaded(torch.compile(function, backend=planned(asked), dynamic=False), function)
    for _ in range(4):
        assert torch.equal(fast(X), X * 2 + 1)
    function.__defaults__ = (3.0,)
    for _ in range(4):
        assert torch.equal(fast(X), X * 3 + 1)
    function.__kwdefaults__["shift"] = 5.0
    for _ in range(4):
        assert torch.equal(fast(X), X * 3 + 5)


def test_what_is_not_one_graph_goes_by_way_of_the_interpreter(asked, by_frames):
    class Broken(nn.Module):
        def forward(self, x):
            y = x * 2
            torch._dynamo.graph_break()
            return y + 1

    model = Broken()
    fast = loaded(torch.compile(model, backend=planned(asked), dynamic=False), model)
    x = torch.randn(3, 4)
    with torch.no_grad():
        fast(x)
        assert ran(fast, x, x * 2 + 1, by_frames) == 3


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
