"""A frame that is left alone: the user's own code runs, all of it, and only for these inputs."""

import pytest
import torch
from fusionplan.planner.graph.graph import key
from fusionplan.planner.plan import GroupPlan, Plan
from fusionplan.planner.runtime.dispatch.dispatch import Dispatcher
from fusionplan.planner.runtime.dispatch.plan_runners import Policy, Sources
from torch import nn

pytestmark = pytest.mark.dynamo

SEEN = []


def eager_or(rows, lowering):
    """Plans that leave the frame alone, but for inputs of so many rows."""

    def find(captured):
        graph = captured.graph
        SEEN.append(graph)
        types = [graph.nodes[i].type for i in graph.inputs]
        name = key(graph)
        if not any(type.shape == (rows, 4) for type in types):
            return Plan(name, "cpu", (), "measured", (), frame=True)
        work = [n.id for n in graph.nodes if n.op != "input" and n.type is not None]
        return Plan(name, "cpu", (), "measured", (GroupPlan(tuple(work[:1]), lowering, ""),))

    return Dispatcher(Policy(), Sources(find))


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(x).relu()


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Inner(), Inner()
        self.calls = 0

    def forward(self, x, *more, scale=2.0, **rest):
        if not torch.compiler.is_compiling():
            self.calls += 1
        inner = lambda: self.first(x) * scale  # noqa: E731 - `scale` and `x` become cells
        return self.second(inner() + sum(more) + rest.get("bias", 0.0))


def test_the_users_code_runs_with_all_kinds_of_arguments():
    model = Outer()
    fast = torch.compile(model, backend=eager_or(0, "inductor"))
    x = torch.randn(3, 4)
    for args, kwargs in [((x,), {}), ((x, x, x), {"scale": 3.0}), ((x,), {"bias": 1.0})]:
        before = model.calls
        with torch.no_grad():
            torch.testing.assert_close(fast(*args, **kwargs), model(*args, **kwargs))
        assert model.calls == before + 2  # both calls ran the user's own code


def test_nothing_within_the_frame_is_compiled():
    model = Outer()
    SEEN.clear()
    fast = torch.compile(model, backend=eager_or(0, "inductor"))
    with torch.no_grad():
        for _ in range(3):
            fast(torch.randn(3, 4))
    assert len(SEEN) == 1  # the outer graph; none of the inner modules'


def test_other_shapes_have_their_own_plans():
    model = Outer()
    fast = torch.compile(model, backend=eager_or(5, "inductor"), dynamic=False)
    with torch.no_grad():
        for rows, by_user in [(3, 1), (5, 0), (3, 1), (5, 0)]:
            before, x = model.calls, torch.randn(rows, 4)
            found = fast(x)
            assert model.calls == before + by_user
            torch.testing.assert_close(found, model(x))


def test_another_instance_and_another_compiler_are_not_touched():
    first, second = Outer(), Outer()
    one = torch.compile(first, backend=eager_or(0, "inductor"))
    two = torch.compile(second, backend=eager_or(3, "inductor"))
    x = torch.randn(3, 4)
    with torch.no_grad():
        one(x)
        two(x)
        assert (first.calls, second.calls) == (1, 0)
        other = torch.compile(first, backend="aot_eager")
        torch.testing.assert_close(other(x), first(x))
    assert first.calls == 2  # by `one` and by the comparison: aot_eager ran its own graph


def test_free_variables_keep_their_cells():
    factor = torch.full((4,), 2.0)

    def scaled(x, /, y, *, z=1.0):
        nonlocal factor
        if not torch.compiler.is_compiling():
            seen.append(float(factor[0]))
        return (x + y) * factor * z

    seen = []
    fast = torch.compile(scaled, backend=eager_or(0, "inductor"))
    x = torch.ones(3, 4)
    assert float(fast(x, x)[0, 0]) == 4.0
    factor = torch.full((4,), 5.0)
    assert float(fast(x, x, z=2.0)[0, 0]) == 20.0
    assert seen == [2.0, 5.0]


def test_gradients_are_autograds_own():
    model = Outer()
    fast = torch.compile(model, backend=eager_or(0, "inductor"))
    x = torch.randn(3, 4, requires_grad=True)
    found = torch.autograd.grad(fast(x).sum(), [x, *model.parameters()])
    wanted = torch.autograd.grad(model(x).sum(), [x, *model.parameters()])
    torch.testing.assert_close(found, wanted)


def test_an_exception_of_the_users_code_is_the_users():
    def fails(x):
        y = x + 1
        if not torch.compiler.is_compiling() and float(x.sum()) > 10:
            raise ValueError("too large")
        return y

    fast = torch.compile(fails, backend=eager_or(0, "inductor"))
    fast(torch.zeros(4))
    with pytest.raises(ValueError, match="too large"):
        fast(torch.full((4,), 9.0))


# Sizes that vary


def varying(fast, model, calls, by_user):
    """Runs with so many rows each; the user's code has to run in those calls that are named."""
    found = []
    with torch.no_grad():
        for rows in calls:
            x = torch.randn(rows, 4)
            before = model.calls
            torch.testing.assert_close(fast(x), model(x))
            found.append(model.calls - before - 1)
    assert found == by_user


def test_the_users_code_runs_at_all_sizes_that_eager_is_best_at():
    """One dynamic graph: its first sizes, others by eager, others by a plan, and again."""
    model = Outer()
    fast = torch.compile(model, backend=eager_or(5, "inductor"), dynamic=True)
    SEEN.clear()
    varying(fast, model, [3, 7, 5, 9, 3, 5, 7], [1, 1, 0, 1, 1, 0, 1])
    assert len(SEEN) == 4  # each size is looked up once, and nothing is compiled again


def test_sizes_that_vary_after_a_plan_of_kernels():
    model = Outer()
    fast = torch.compile(model, backend=eager_or(5, "inductor"), dynamic=True)
    varying(fast, model, [5, 3, 3, 5], [0, 1, 1, 0])


def test_sizes_that_dynamo_finds_out_to_vary():
    """Without a word Dynamo captures the first sizes as they are, and then for any sizes."""
    model = Outer()
    fast = torch.compile(model, backend=eager_or(5, "inductor"))
    varying(fast, model, [3, 4, 6, 5, 3, 6], [1, 1, 1, 0, 1, 1])


def test_a_loaded_model_of_varying_sizes_goes_the_short_way(monkeypatch):
    from fusionplan.planner.runtime.dispatch import loaded as module
    from fusionplan.planner.runtime.dispatch.loaded import loaded

    model = Outer()
    fast = loaded(torch.compile(model, backend=eager_or(5, "inductor"), dynamic=True), model)
    varying(fast, model, [3, 7, 5], [1, 1, 0])
    entered, is_plain = [], module.is_plain
    monkeypatch.setattr(module, "is_plain", lambda: entered.append(1) or is_plain())
    varying(fast, model, [3, 7, 5, 7], [1, 1, 0, 1])
    assert len(entered) == 1


def test_free_variables_and_arguments_of_varying_sizes():
    factor = torch.full((4,), 2.0)

    def scaled(x, /, *more, z=1.0, **rest):
        nonlocal factor
        if not torch.compiler.is_compiling():
            seen.append(len(x))
        inner = lambda: (x + sum(more)) * z  # noqa: E731
        return inner() * factor + rest.get("bias", 0.0)

    seen = []
    fast = torch.compile(scaled, backend=eager_or(5, "inductor"), dynamic=True)
    for rows in (3, 5, 7, 5, 3):
        x = torch.ones(rows, 4)
        assert float(fast(x, x, z=3.0, bias=1.0)[-1, 0]) == 13.0
    factor = torch.full((4,), 1.0)
    for rows in (3, 5):
        x = torch.ones(rows, 4)
        assert float(fast(x, x, z=3.0, bias=1.0)[-1, 0]) == 7.0
    assert seen == [3, 7, 3, 3]


def test_what_is_compiled_behind_a_break_still_is():
    """The first part of a frame is left alone at some sizes; what follows has a graph of its own
    in calls that are not."""

    def broken(x):
        if not torch.compiler.is_compiling():
            seen.append(len(x))
        y = x * 2
        torch._dynamo.graph_break()
        return y + 1

    seen = []
    SEEN.clear()
    fast = torch.compile(broken, backend=eager_or(5, "inductor"), dynamic=True)
    for rows in (5, 3, 5, 3, 7):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(fast(x), x * 2 + 1)
    assert seen == [3, 3, 7]
    assert len(SEEN) == 4  # at 5 rows two graphs, at 3 and 7 the first one alone


def test_gradients_at_varying_sizes_are_autograds_own():
    model = Outer()
    fast = torch.compile(model, backend=eager_or(5, "inductor"), dynamic=True)
    for rows in (3, 7, 3):
        x = torch.randn(rows, 4, requires_grad=True)
        before = model.calls
        found = torch.autograd.grad(fast(x).sum(), [x, *model.parameters()])
        assert model.calls == before + 1
        wanted = torch.autograd.grad(model(x).sum(), [x, *model.parameters()])
        torch.testing.assert_close(found, wanted)


def test_an_exception_at_varying_sizes_is_the_users():
    def fails(x):
        y = x + 1
        if not torch.compiler.is_compiling() and float(x.sum()) > 10:
            raise ValueError("too large")
        return y

    fast = torch.compile(fails, backend=eager_or(0, "inductor"), dynamic=True)
    for rows in (3, 4, 3):
        fast(torch.zeros(rows, 4))
        with pytest.raises(ValueError, match="too large") as raised:
            fast(torch.full((rows, 4), 9.0))
        assert raised.value.__context__ is None
