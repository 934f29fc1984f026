"""Plans that run: by hand-written kernels in Triton's interpreter, by ATen, by Inductor."""

import gc
import sys
import weakref

import pytest
import torch
import torch.nn.functional as F
from fusionplan.planner.codegen.source import Buffer, KernelSource, Program
from fusionplan.planner.config import Config
from fusionplan.planner.errors import PlanError, Refusal
from fusionplan.planner.graph.graph import TensorType, key
from fusionplan.planner.plan import GroupPlan, Plan
from fusionplan.planner.runtime.execution import executor as running
from fusionplan.planner.runtime.execution.executor import Executor
from fusionplan.planner.runtime.execution.strides import match
from oracle import DEVICE
from torch import nn

pytestmark = pytest.mark.dynamo

HERE, CPU = torch.device(DEVICE), torch.device("cpu")


def plan_of(captured, *groups):
    return Plan(key(captured.graph), "cpu", (), "modelled", groups)


def triton(*nodes):
    return GroupPlan(nodes, "triton", "", Config(()))


def lowering(*programs):
    """A `lower` that gives these programs, one for each group, in order."""
    rest = iter(programs)
    return lambda group, config, interpreted: next(rest)


def _names(captured):
    """Node ids by the names of their operations."""
    return {n.op.split(".")[1]: n.id for n in captured.graph.nodes if "." in n.op}


def by_aten(captured, **options):
    return Executor(captured, plan_of(captured), CPU, **options)


def check(executor, function, *inputs, calls=1):
    want = function(*inputs)
    want = want if isinstance(want, (tuple, list)) else (want,)
    for _ in range(calls):
        got = executor(*inputs)
        torch.testing.assert_close(list(got), list(want), equal_nan=True)


def test_kernels_of_all_groups_are_compiled_ahead(captured, kernel, monkeypatch):
    asked = []
    monkeypatch.setattr(running, "compile_ahead", lambda *asking: asked.append(asking))
    found = captured(lambda x: (x * 2, (x + 1).digamma()), torch.randn(1000, device=DEVICE))
    programs = [Program((kernel(text, 1000),)) for text in ("x * 2", "x + 1")]
    named = _names(found)
    plan = plan_of(found, triton(named["mul"]), triton(named["add"]))
    executor = Executor(found, plan, HERE, lower=lowering(*programs))
    ((kernels, device),) = asked
    assert kernels == [each.kernels[0] for each in programs]
    assert device == executor.device


def test_one_kernel(captured, kernel):
    x = torch.randn(1000, device=DEVICE)
    found = captured(lambda x: x * 2, x)
    executor = Executor(
        found, plan_of(found, triton(1)), HERE, lower=lowering(Program((kernel("x * 2", 1000),)))
    )
    check(executor, lambda x: x * 2, x)
    assert executor.kernels_per_call == 1
    assert executor.calls == 1
    assert "f1" not in executor.text  # nothing ran by ATen


def test_kernels_between_aten(captured, kernel):
    def function(x):
        return ((x + 1).digamma() * 3).view(10, 20), x - 1

    x = torch.randn(200, device=DEVICE)
    found = captured(function, x)
    names = _names(found)
    plan = plan_of(found, triton(names["mul"]), triton(names["add"]))
    programs = (Program((kernel("x * 3", 200),)), Program((kernel("x + 1", 200),)))
    executor = Executor(found, plan, HERE, lower=lowering(*programs))
    check(executor, function, x)
    assert executor.kernels_per_call == 2


def test_several_kernels_of_a_group_with_a_temporary(captured, kernel):
    x = torch.randn(200, device=DEVICE)
    found = captured(lambda x: (x * 2).sin(), x)
    first, second = kernel("x * 2", 200), kernel("tl.sin(x)", 200)
    tmp, out = Buffer("tmp", 0, "float32"), second.buffers[1]
    program = Program(
        (
            KernelSource(first.name, first.text, (first.buffers[0], tmp), first.grid, 4, 2),
            KernelSource(second.name, second.text, (tmp, out), second.grid, 4, 2),
        ),
        (TensorType((200,), (1,), "float32"),),
    )
    executor = Executor(found, plan_of(found, triton(1, 2)), HERE, lower=lowering(program))
    check(executor, lambda x: (x * 2).sin(), x)
    assert executor.kernels_per_call == 2
    assert "del t0" in executor.text


def test_a_value_that_two_groups_compute(captured, kernel):
    """`x * 2` is an output and is computed again by the group of `sin`."""
    x = torch.randn(128, device=DEVICE)
    found = captured(lambda x: ((x * 2).sin(), x * 2), x)
    mul, sin = (next(n.id for n in found.graph.nodes if o in n.op) for o in (".mul.", ".sin."))
    duplicate = next(n.id for n in reversed(found.graph.nodes) if ".mul." in n.op)
    programs = (
        Program((kernel("x * 2", 128),)),
        Program((kernel("tl.sin(x)", 128),)),
    )
    plan = plan_of(found, triton(mul), triton(sin))
    executor = Executor(found, plan, HERE, lower=lowering(*programs))
    check(executor, lambda x: ((x * 2).sin(), x * 2), x)
    assert duplicate >= mul


def test_groups_that_wait_for_each_other_are_refused(captured, kernel):
    found = captured(lambda x: x.sin().cos().exp().sqrt(), torch.randn(128))
    nodes = _names(found)
    plan = plan_of(found, triton(nodes["sin"], nodes["exp"]), triton(nodes["cos"], nodes["sqrt"]))
    with pytest.raises(PlanError, match="wait for each other"):
        Executor(found, plan, CPU, lower=lowering())


def test_a_refused_group_and_a_plan_for_another_graph(captured):
    found = captured(lambda x: x * 2, torch.randn(8))
    refused = lowering(Refusal("convex", "a path leaves the group"))
    with pytest.raises(PlanError, match="convex: a path leaves"):
        Executor(found, plan_of(found, triton(1)), CPU, lower=refused)
    with pytest.raises(PlanError, match="graph of 2 nodes"):
        Executor(found, plan_of(found, triton(7)), CPU)
    with pytest.raises(PlanError, match="needs a config"):
        Executor(found, plan_of(found, GroupPlan((1,), "triton", "")), CPU)


def test_a_group_that_reads_no_tensor_is_refused(captured):
    found = captured(lambda x: x.median(0), torch.randn(8, 3))
    getitem = next(n.id for n in found.graph.nodes if n.op == "operator.getitem")
    with pytest.raises(PlanError, match="no tensors"):
        Executor(found, plan_of(found, triton(getitem)), CPU)


def test_nothing_to_compute(captured, kernel):
    x = torch.randn(0, 4, device=DEVICE)
    found = captured(lambda x: x * 2, x)
    program = Program((kernel("x * 2", 0),))
    executor = Executor(found, plan_of(found, triton(1)), HERE, lower=lowering(program))
    assert executor.kernels_per_call == 0
    assert executor(x)[0].shape == (0, 4)


def test_memory_is_freed_after_the_last_use(captured, young):
    alive, watched = [], []

    @torch.library.custom_op("fusionplan_test::watch", mutates_args=())
    def watch(x: torch.Tensor) -> torch.Tensor:
        gc.collect()
        alive.append([r() is not None for r in watched])
        return x.clone()

    @watch.register_fake
    def _(x):
        return torch.empty_like(x)

    def function(x, y):
        return watch(watch(x + y).sin())

    found = captured(function, torch.randn(8), torch.randn(8))
    executor = by_aten(found)
    args = [torch.randn(8), torch.randn(8)]
    watched += [weakref.ref(a) for a in args]
    executor.boxed(args)
    assert args == []
    assert alive[-2:] == [[False, False]] * 2
    # Every value but the output is dropped.
    assert executor.text.count("del ") == 4


def test_strides_that_differ_are_copied(captured, kernel):
    """A kernel has its strides as literals. ATen or a caller may give others."""
    x = torch.randn(16, 8, device=DEVICE)
    found = captured(lambda x: x * 2, x)
    program = Program((kernel("x * 2", 128),))
    plan = plan_of(found, triton(1))
    executor = Executor(found, plan, HERE, lower=lowering(program), guard=True)
    other = torch.randn(8, 16, device=DEVICE).t()
    check(executor, lambda x: x * 2, other, calls=2)  # the first asks more than the others
    assert executor(other)[0].stride() == (8, 1)


def test_match():
    x = torch.randn(4, 1, 3)
    assert match(x, (4, 1, 3), (3, 99, 1)) is x
    y = match(x, (4, 1, 3), (1, 1, 4))
    assert torch.equal(x, y)
    assert y.stride() == (1, 1, 4)


def test_inductor_runs_a_part(captured):
    def function(x):
        return (x.softmax(-1) * 2).digamma(), x + 1

    x = torch.randn(8, 16)
    found = captured(function, x)
    inside = [n.id for n in found.graph.nodes if n.op != "input" and "digamma" not in n.op]
    group = GroupPlan(tuple(inside), "inductor", "", options="default")
    executor = Executor(found, plan_of(found, group), CPU)
    check(executor, function, x)
    assert executor.kernels_per_call == 0
    assert "f" + str(inside[0]) not in executor.text


def test_an_unknown_mode_is_named(captured):
    found = captured(lambda x: x * 2, torch.randn(8))
    group = GroupPlan((1,), "inductor", "", options="fastest")
    with pytest.raises(PlanError, match="'fastest'"):
        Executor(found, plan_of(found, group), CPU)


LINEAR = nn.Linear(16, 4)
ATEN = {
    "views": lambda x: (x.t(), x.view(2, 4, 16)[0], x[:, ::2]),
    "same_twice": lambda x: (y := x + 1, y, y.view(-1)),
    "input_out": lambda x: (x, x * 2),
    "int_and_bool": lambda x: ((x * 4).long(), x > 0, x.argmax(-1)),
    "numbers": lambda x: (x * 2, torch.full((), float("inf")), x.clamp(max=float("inf"))),
    "complex": lambda x: torch.fft.fft(x).abs() + torch.view_as_real(x + 1j).sum(-1),
    "complex_scalar": lambda x: torch.view_as_real(x * (1 + 2j)),
    "cond": lambda x: torch.cond(x.sum() > 0, lambda a: a.sin(), lambda a: a.cos(), (x,)),
    "tuple_op": lambda x: x.sort(-1),
    "mask": lambda x: x.masked_fill(x > 0, float("-inf")).softmax(-1),
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]),
    "scalar_tensor": lambda x: x * torch.tensor(3.0),
    "dtype_views": lambda x: x.view(torch.int32) + 1,
    "index": lambda x: x[torch.tensor([0, 2])],
    "empty": lambda x: x[:0] + 1,
    "strings": lambda x: F.gelu(x, approximate="tanh") + torch.div(x, 2, rounding_mode="floor"),
}


@pytest.mark.parametrize("name", ATEN)
def test_all_by_aten(captured, name):
    x = torch.randn(8, 16)
    executor = by_aten(captured(ATEN[name], x))
    # AOTAutograd may keep views of inputs out of the graph: what it left is the reference here.
    torch.testing.assert_close(executor(x), list(executor.captured.gm(x)), equal_nan=True)


def test_random_numbers_follow_the_seed(captured):
    def function(x):
        return F.dropout(x, 0.5) + torch.rand_like(x)

    x = torch.randn(64, 64)
    executor = by_aten(captured(function, x))
    torch.manual_seed(3)
    first = executor(x)[0]
    torch.manual_seed(3)
    assert torch.equal(first, executor(x)[0])
    assert not torch.equal(first, executor(x)[0])


def test_writes_stay_in_order(captured):
    """Functionalisation leaves writes to inputs at the end of a graph, as `copy_`."""
    gm = torch.fx.experimental.proxy_tensor.make_fx(
        lambda x: [x.sin(), torch.ops.aten.copy_.default(x, x * 2).cos()]
    )(torch.randn(8))
    from fusionplan.planner.capture.capture import capture

    executor = by_aten(capture(gm))
    x = torch.randn(8)
    before = x.clone()
    sin, cos = executor(x)
    torch.testing.assert_close(sin, before.sin())
    torch.testing.assert_close(cos, (before * 2).cos())
    torch.testing.assert_close(x, before * 2)


def test_parameters_need_no_gradient_here(captured):
    executor = by_aten(captured(LINEAR, torch.randn(3, 16)))
    inputs = [n.type.shape for n in executor.captured.graph.nodes if n.op == "input"]
    known = {(4, 16): LINEAR.weight, (4,): LINEAR.bias, (3, 16): torch.ones(3, 16)}
    (result,) = executor(*[known[s] for s in inputs])
    assert not result.requires_grad


def test_host_overhead_is_small(captured, kernel):
    """Our own Python around one launch, with a launcher that does nothing. The goal is under
    4 us; its calls are counted, which are as many on a busy machine."""

    class Nothing:
        takes_tensors = False

        def __init__(self, source, device):
            self.aligned = self.unaligned = lambda stream, *pointers: None

    x, y = torch.randn(1000), torch.randn(1000)
    found = captured(lambda x, y: x * y, x, y)
    executor = Executor(
        found,
        plan_of(found, triton(2)),
        CPU,
        lower=lowering(Program((kernel("x * y", 1000, "xy"),))),
        load=Nothing,
    )
    executor.boxed([x, y])
    calls: list[str] = []

    def count(frame, event, called):
        if event == "call":
            calls.append(frame.f_code.co_qualname)
        elif event == "c_call":
            calls.append(called.__qualname__)

    given = [x, y]
    sys.setprofile(count)
    executor.boxed(given)
    sys.setprofile(None)
    calls.remove("setprofile")
    # Itself, the profiler's question, the list's end, a new tensor, three pointers, the launcher.
    assert len(calls) <= 10, calls
