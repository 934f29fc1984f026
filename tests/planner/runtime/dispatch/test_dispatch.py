"""The back end as torch.compile uses it: what runs on a hit, on a miss, and when ours fails."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from fusionplan.planner.config import Config
from fusionplan.planner.cures import FusionplanWarning
from fusionplan.planner.errors import PlanError
from fusionplan.planner.graph.graph import key
from fusionplan.planner.lowerings import inductor
from fusionplan.planner.plan import GroupPlan, Plan
from fusionplan.planner.runtime.dispatch.dispatch import Dispatcher
from fusionplan.planner.runtime.dispatch.plan_runners import Policy, Sources, Unreadable
from torch import nn

pytestmark = pytest.mark.dynamo


class Store:
    """Finds a plan that `make` writes for every graph, and remembers the graphs."""

    def __init__(self, make):
        self.make, self.asked = make, []

    def __call__(self, captured):
        self.asked.append(captured)
        return self.make(captured)


def no_plan(captured):
    return "nothing is stored"


def plan_of(captured, *groups, **options):
    return Plan(key(captured.graph), "cpu", (), "measured", groups, **options)


def opaque(captured):
    """Everything by ATen, but through our executor: a group of Inductor's that nothing needs
    keeps the plan from meaning "as eager"."""
    work = [n.id for n in captured.graph.nodes if n.op != "input" and n.type is not None]
    return plan_of(captured, GroupPlan(tuple(work[:1]), "inductor", ""))


def backend(make, **policy):
    return Dispatcher(Policy(**policy), Sources(Store(make)))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(16), nn.Linear(16, 16)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen += 1
        return x + F.gelu(self.linear(self.norm(x)))


def hand_back(module, x):
    module.zero_grad()
    y = module(x)
    (y.pow(2).sum() * 0.1).backward()
    return [y.detach(), *(p.grad.clone() for p in module.parameters())]


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_training_step_equals_eager(dynamic):
    torch.manual_seed(0)
    block = Block()
    dispatcher = backend(opaque)
    fast = torch.compile(block, backend=dispatcher, dynamic=dynamic)
    for rows in (3, 5):
        x = torch.randn(rows, 4, 16)
        torch.testing.assert_close(hand_back(fast, x), hand_back(block, x))
    stages = {stage for _, stage in dispatcher.live}
    assert stages == {"forward", "backward"}
    assert all(live.runner is not None for live in dispatcher.live.values())
    assert all(live.runner.calls > 0 for live in dispatcher.live.values())


def test_buffers_are_written_once_a_call():
    block = Block().eval()
    fast = torch.compile(block, backend=backend(opaque))
    with torch.no_grad():
        for _ in range(3):
            fast(torch.randn(2, 16))
    assert block.seen == 3


FUNCTIONS = {
    "views": lambda x: (x.t(), x.view(-1)[3:], x[0]),
    "view_of_a_result": lambda x: ((y := x + 1), y.view(-1), y.t()),
    "the_same_twice": lambda x: (y := x + 1, y),
    "input_out": lambda x: (x, x * 2),
    "none": lambda x: (None, x * 2, 3),
    "int_and_bool": lambda x: ((x * 4).long(), x > 0, x.argmax()),
    "write_to_input": lambda x: x.mul_(2).sin() + x,
    "cond": lambda x: torch.cond(x.sum() > 0, lambda a: a.sin(), lambda a: a.cos(), (x,)),
    "complex": lambda x: torch.fft.fft(x).abs(),
    "break": lambda x: (print(end="") or x.sin() + x.sum().item()) * 2,
    "shape": lambda x: x * x.shape[0] + x.numel(),
    "nothing": lambda x: x,
}


@pytest.mark.parametrize("make", [no_plan, opaque], ids=["baseline", "executor"])
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.filterwarnings("ignore:fusionplan")
def test_results_equal_eager(name, make, dynamic):
    function, x = FUNCTIONS[name], torch.randn(4, 6)
    other, want = x.clone(), function(x)
    got = torch.compile(function, backend=backend(make), dynamic=dynamic)(other)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(other, x)
    if name == "view_of_a_result":
        assert got[1].data_ptr() == got[0].data_ptr()


def test_a_miss_warns_once_and_runs_as_eager(recwarn):
    store = Store(no_plan)
    dispatcher = Dispatcher(Policy(), Sources(store))
    fast = torch.compile(lambda x: F.gelu(x).softmax(-1), backend=dispatcher)
    x = torch.randn(4, 8)
    for _ in range(3):
        assert torch.equal(fast(x), F.gelu(x).softmax(-1))  # the very same kernels
    (warning,) = [w for w in recwarn if w.category is FusionplanWarning]
    text = str(warning.message)
    assert key(store.asked[0].graph)[:12] in text
    assert "nothing is stored" in text
    assert "planner tune" in text
    (live,) = dispatcher.live.values()
    assert live.runner is None
    assert live.why == "nothing is stored"


def test_a_miss_can_be_an_error():
    fast = torch.compile(lambda x: x * 2, backend=backend(no_plan, on_miss="error"))
    with pytest.raises(PlanError, match="`planner tune`"):
        fast(torch.randn(3))


@pytest.mark.parametrize("on_miss", ["tune", "model"])
def test_a_miss_can_make_a_plan(on_miss):
    made = []

    def make(captured, *_):
        made.append(captured)
        return opaque(captured)

    sources = Sources(no_plan, tune=make, model=make)
    dispatcher = Dispatcher(Policy(on_miss=on_miss), sources)
    x = torch.randn(4, 8)
    fast = torch.compile(lambda x: x.softmax(-1).digamma(), backend=dispatcher)
    torch.testing.assert_close(fast(x), x.softmax(-1).digamma())
    assert len(made) == 1
    (live,) = dispatcher.live.values()
    assert live.runner.calls == 1


def test_equal_blocks_that_are_captured_apart_are_planned_once():
    planned = []

    def make(captured, *_):
        planned.append(captured)
        return opaque(captured)

    def blocks(x):
        x = x.softmax(-1).sin()
        torch._dynamo.graph_break()
        return x.softmax(-1).sin()

    dispatcher = Dispatcher(Policy(on_miss="model"), Sources(no_plan, model=make))
    x = torch.randn(4, 8)
    torch.testing.assert_close(torch.compile(blocks, backend=dispatcher)(x), blocks(x))
    assert len(planned) == 1
    (live,) = dispatcher.live.values()
    assert live.runner.calls == 1


def test_a_tuner_that_fails_falls_back():
    def fail(captured, inputs):
        raise ValueError("no device")

    dispatcher = Dispatcher(Policy(on_miss="tune"), Sources(no_plan, tune=fail))
    with pytest.warns(FusionplanWarning, match="tune failed: ValueError: no device"):
        result = torch.compile(lambda x: x * 2, backend=dispatcher)(torch.ones(3))
    assert torch.equal(result, torch.full((3,), 2.0))


@pytest.mark.parametrize(
    "group, cause",
    [
        (GroupPlan((1,), "triton", ""), "needs a config"),
        (GroupPlan((99,), "triton", "", Config(())), "graph of"),
        (GroupPlan((1, 2), "inductor", "", options="fastest"), "fastest"),
    ],
)
def test_a_plan_that_cannot_be_built_falls_back_and_says_why(group, cause):
    dispatcher = backend(lambda c: plan_of(c, group))
    x = torch.randn(4, 8)
    with pytest.warns(FusionplanWarning, match=cause):
        result = torch.compile(lambda x: (x * 2).digamma() + 1, backend=dispatcher)(x)
    torch.testing.assert_close(result, (x * 2).digamma() + 1)


def test_inductor_as_the_baseline():
    dispatcher = backend(no_plan, baseline="inductor")
    block, x = Block(), torch.randn(3, 16)
    with pytest.warns(FusionplanWarning, match="Inductor"):
        got = hand_back(torch.compile(block, backend=dispatcher), x)
    torch.testing.assert_close(got, hand_back(block, x))


@pytest.mark.filterwarnings("ignore:fusionplan")
def test_an_inductor_that_fails_is_left(monkeypatch):
    def fail(gm, inputs, mode):
        raise RuntimeError("no C++ compiler")

    monkeypatch.setattr(inductor, "compile_whole", fail)
    dispatcher = backend(no_plan, baseline="inductor")
    with pytest.warns(FusionplanWarning, match=r"no C\+\+ compiler"):
        assert torch.compile(lambda x: x * 2, backend=dispatcher)(torch.ones(1)) == 2


def test_a_plan_may_say_eager_or_torch_compile():
    def inductor(captured):
        work = tuple(n.id for n in captured.graph.nodes if n.op != "input")
        return plan_of(captured, GroupPlan(work, "inductor", "", options="default"))

    x = torch.randn(4, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FusionplanWarning)
        for make in (plan_of, inductor):
            torch._dynamo.reset()
            dispatcher = backend(make)
            result = torch.compile(lambda x: x.softmax(-1), backend=dispatcher)(x)
            torch.testing.assert_close(result, x.softmax(-1))
            (live,) = dispatcher.live.values()
            assert live.runner is None
            assert not live.why


def test_every_shape_of_a_dynamic_graph_has_its_own_plan():
    store = Store(opaque)
    dispatcher = Dispatcher(Policy(), Sources(store))
    fast = torch.compile(lambda x: x.softmax(-1).digamma(), backend=dispatcher, dynamic=True)
    for rows in (3, 4, 5, 4, 3):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(fast(x), x.softmax(-1).digamma())
    assert len(dispatcher.live) == 3
    assert len(store.asked) == 3
    assert sorted(live.runner.calls for live in dispatcher.live.values()) == [1, 2, 2]


@pytest.mark.filterwarnings("ignore:fusionplan")
def test_a_dynamic_miss_does_not_keep_other_shapes_from_their_plans():
    def only_four(captured):
        shape = captured.graph.nodes[captured.graph.inputs[0]].type.shape
        return opaque(captured) if shape[0] == 4 else no_plan(captured)

    dispatcher = backend(only_four)
    fast = torch.compile(lambda x: x.softmax(-1).digamma(), backend=dispatcher, dynamic=True)
    for rows in (3, 4, 5):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(fast(x), x.softmax(-1).digamma())
    assert sum(live.runner is not None for live in dispatcher.live.values()) == 1


@pytest.mark.parametrize("dynamic", [False, True])
def test_tuning_on_a_miss_sees_the_inputs_of_the_call(dynamic):
    seen = []

    def tune(captured, given):
        seen.append(given)
        return opaque(captured)

    block, x = Block().eval(), torch.randn(3, 16)
    fast = torch.compile(block, dynamic=dynamic, backend=tuning(tune))
    with torch.no_grad():
        fast(x)
        (given,) = seen
        assert given.stage == "inference"
        assert any(torch.equal(x, real) for real in given.real)
        torch.testing.assert_close(given.eager(given.real)[0], block(x))


def test_tuning_on_a_miss_has_no_inputs_of_a_backward_graph():
    seen = {}

    def tune(captured, given):
        seen[given.stage] = given
        return opaque(captured)

    hand_back(torch.compile(Block(), backend=tuning(tune)), torch.randn(3, 16))
    assert seen["forward"].real is not None
    assert seen["backward"].real is None


def tuning(tune):
    return Dispatcher(Policy(on_miss="tune"), Sources(no_plan, tune=tune))


def test_a_graph_with_nothing_to_fuse_is_no_miss():
    with warnings.catch_warnings():
        warnings.simplefilter("error", FusionplanWarning)
        for on_miss in ("baseline", "error"):
            torch._dynamo.reset()
            dispatcher = backend(no_plan, on_miss=on_miss)
            x = torch.randn(4, 4)
            compiled = torch.compile(lambda x: x.digamma(), backend=dispatcher)
            torch.testing.assert_close(compiled(x), x.digamma())
            (live,) = dispatcher.live.values()
            assert live.why == "nothing to fuse"


def test_what_is_no_matter_of_the_graph_is_told_once(captured):
    dispatcher = Dispatcher(Policy(), Sources(lambda _: "not asked"))
    first, second = (captured(f, torch.ones(4)) for f in (torch.sin, torch.cos))

    def refuse() -> None:
        for graph in (first, second):
            dispatcher._missed(key(graph.graph), graph, Unreadable("the store stayed locked"))
            dispatcher._missed(key(graph.graph), graph, "no plan is stored for it")

    with pytest.warns(FusionplanWarning) as told:
        refuse()
    assert [str(w.message).count("locked") for w in told] == [1, 0, 0]
