"""Calls that ask Dynamo's guards themselves, without the way through the interpreter."""

import pytest
import torch
from dispatch_plans import Scaled, planned
from fusionplan.planner.graph.graph import key
from fusionplan.planner.plan import GroupPlan, Plan
from fusionplan.planner.runtime.dispatch.dispatch import Dispatcher
from fusionplan.planner.runtime.dispatch.graph_alone import graph_alone
from fusionplan.planner.runtime.dispatch.loaded import loaded
from fusionplan.planner.runtime.dispatch.plan_runners import Policy, Sources
from torch import nn

pytestmark = pytest.mark.dynamo


@pytest.fixture
def asked():
    return []


@pytest.fixture
def by_frames(monkeypatch):
    """Grows with each call that goes by way of the interpreter to Dynamo."""
    from fusionplan.planner.runtime.dispatch import front_end

    found, made = [], front_end.Frames

    def counting(model, forward, enter):
        return made(model, forward, lambda *a, **k: found.append(a) or enter(*a, **k))

    monkeypatch.setattr(front_end, "Frames", counting)
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


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        self.count += 1
        return x * self.count


def test_a_graph_with_a_wrapper_is_called_by_it(by_frames):
    """AOTAutograd's, which writes to the buffer behind the graph; it has the graph's attributes."""

    def find(captured):
        work = [n.id for n in captured.graph.nodes if n.op != "input"]
        group = GroupPlan((work[0],), "inductor", "")
        return Plan(key(captured.graph), "cpu", (), "measured", (group,))

    torch._dynamo.reset()
    model, dispatcher = Counting(), Dispatcher(Policy(baseline="eager"), Sources(find))
    fast = loaded(torch.compile(model, backend=dispatcher), model)
    for count in range(1, 6):
        x = torch.randn(3, 4, requires_grad=True)
        torch.testing.assert_close(fast(x), x * count)
    assert len(by_frames) == 1


def test_code_that_only_calls_its_graph_is_known():
    graph = object()

    def known(result, graph=graph):
        text = f"def run(self, x, *more, y=1, **named):\n found = __compiled_fn(x, y)\n {result}"
        names = {"__compiled_fn": graph}
        exec(text, names)
        given = {"self": None, "x": 1, "more": (2, 3), "y": 4, "named": {"b": 5}}
        return graph_alone(names["run"], given)

    assert known("return found[0]") == (graph, "x, y")
    assert known("return __compiled_fn(more[1], named['b'])[0]") is None, "two calls"
    assert known("return found") is None, "another result"
    assert known("return found[0] if x else found[0]") is None, "a branch"
    assert known("return [found[0], x.shape][0]") is None, "it asks an argument"
    names = {"__compiled_fn": graph}
    exec("def run(*more, **named): return __compiled_fn(more[1], named['b'])[0]", names)
    given = {"more": (2, 3), "named": {"b": 5}}
    assert graph_alone(names["run"], given) == (graph, "more[1], named['b']")
