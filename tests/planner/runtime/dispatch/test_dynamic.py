"""Graphs with symbolic sizes: one plan and one compilation for all sizes of a bucket. Kernels run
in the interpreter, where a text that is new to the process stands for a compilation."""

import re
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from compiling import by_compiler
from fusionplan.planner.config import Config
from fusionplan.planner.cures import FusionplanWarning
from fusionplan.planner.errors import PlanError
from fusionplan.planner.graph.graph import key
from fusionplan.planner.graph.ops import is_compute
from fusionplan.planner.graph.varying import bucket_key
from fusionplan.planner.groups.group import with_free_nodes
from fusionplan.planner.plan import GroupPlan, Plan
from fusionplan.planner.runtime.cuda_graphs.graph_memory import SharedPools
from fusionplan.planner.runtime.dispatch.dispatch import Dispatcher
from fusionplan.planner.runtime.dispatch.plan_runners import Policy, Sources
from fusionplan.planner.runtime.dispatch.varying_sizes import VaryingSizes
from fusionplan.planner.runtime.machine_code.compile import compilations
from oracle import DEVICE
from torch import nn

pytestmark = pytest.mark.dynamo

torch.manual_seed(0)


def data(*shape):
    return torch.randn(*shape, device=DEVICE)


WEIGHT = data(24, 32) / 6


def tokens(n):
    return data(n, 32)


def heads(n):
    return tuple(data(2, n, 16) for _ in range(3))


def attention(q, k, v):
    return torch.softmax(q @ k.mT / 4, -1) @ v


def causal(q, k, v):
    i = torch.arange(q.shape[1], device=q.device)
    scores = torch.where(i[None, :] <= i[:, None], q @ k.mT / 4, -torch.inf)
    return torch.softmax(scores, -1) @ v


HELD = Config((("x0", 4),))
ROWS = Config((("x0", 4), ("r0", 16)), reduction="loop")
DOTS = Config((("x0", 1), ("x1", 16), ("r0", 16)), reduction="loop")
ROW = Config((("x0", 1), ("r0", 64)))
LOOPED_ROW = Config((("x0", 1), ("r0", 16)), reduction="loop")

# Function, its inputs for a size, a config, and the dimension of every input that varies.
CASES = {
    "pointwise": (lambda x, y: F.gelu(x) + y, lambda n: (tokens(n), tokens(n)), HELD, 0),
    "columns": (lambda x: x.t() * 2 + 1, lambda n: (tokens(n),), Config((("x0", 8),)), 0),
    "softmax": (lambda x: x.softmax(-1), lambda n: (data(6, n),), HELD, 1),
    "softmax_looped": (lambda x: x.softmax(-1), lambda n: (data(6, n),), ROWS, 1),
    "layer_norm": (
        lambda x: F.layer_norm(x, (x.shape[-1],)) + x,
        lambda n: (data(6, n),),
        HELD,
        1,
    ),
    "one_row": (lambda x: x.softmax(-1), lambda n: (data(7, n),), ROW, 1),
    "one_row_weighted": (
        lambda x, w: F.layer_norm(x, (x.shape[-1],)) * w + x,
        lambda n: (data(7, n), data(1, n)),
        ROW,
        1,
    ),
    "one_row_looped": (
        lambda x: F.layer_norm(x, (x.shape[-1],)) + x,
        lambda n: (data(7, n),),
        LOOPED_ROW,
        1,
    ),
    "mean": (lambda x: (x * x).mean(0) * x.shape[0], lambda n: (tokens(n),), HELD, 0),
    "slices": (lambda x: x[1:] - x[:-1], lambda n: (tokens(n),), HELD, 0),
    "joined": (
        lambda x: torch.cat([x, -x.flip(0)], 0),
        lambda n: (tokens(n),),
        Config((("x0", 4), ("x1", 16))),
        0,
    ),
    "root": (lambda x: x / x.shape[0] ** 0.5, lambda n: (tokens(n),), HELD, 0),
    "looked_up": (
        lambda x: x.repeat_interleave(2, 0)[:, :, 1:] * 2,
        lambda n: (data(n, 2, 9),),
        Config(tuple((f"x{i}", 4) for i in range(4))),
        0,
    ),
    "interpolated": (
        lambda x: F.interpolate(x, scale_factor=2.0) + 1,
        lambda n: (data(1, 2, n, 8),),
        Config(tuple((f"x{i}", 4) for i in range(4))),
        2,
    ),
    "linear": (
        lambda x: F.gelu(F.linear(x, WEIGHT)),
        lambda n: (tokens(n),),
        Config((("x0", 16), ("x1", 16), ("r0", 16)), reduction="loop", group=2),
        0,
    ),
    "attention": (attention, heads, DOTS, 1),
    "causal": (causal, heads, DOTS, 1),
}


class Made:
    """Makes a plan of one kernel for every graph that it is asked about, and counts."""

    def __init__(self, config):
        self.config, self.graphs = config, []

    def __call__(self, captured):
        self.graphs.append(captured.graph)
        return one_kernel(captured.graph, self.config)


def one_kernel(graph, config):
    nodes = with_free_nodes(graph, [n.id for n in graph.nodes if is_compute(n)])
    group = GroupPlan(nodes, "triton", "", config)
    return Plan(key(graph), DEVICE, (), "modelled", (group,))


def backend(made, find=lambda captured: "nothing is stored", **policy):
    return Dispatcher(Policy(**{"on_miss": "model", **policy}), Sources(find, model=made))


def inputs_of(name, size):
    _, make, _, dim = CASES[name]
    given = make(size)
    for x in given:
        torch._dynamo.mark_dynamic(x, dim)
    return given


def sources(live):
    return [launcher.source for launcher in live.runner.launchers]


RAGGED, ALIGNED = (17, 18, 31), (48, 64)
SETS = [(name, RAGGED) for name in CASES]
SETS += [(name, ALIGNED) for name in ("softmax", "softmax_looped", "causal")]
SETS += [(name, (17, 20, 24)) for name in CASES if name.startswith("one_row")]


@pytest.mark.parametrize("name, sizes", SETS)
def test_sizes_of_a_bucket_share_a_plan_and_a_kernel(name, sizes):
    function, _, config, _ = CASES[name]
    made = Made(config)
    dispatcher = backend(made)
    fast = torch.compile(function, backend=dispatcher)
    for size in sizes:
        before = compilations()
        inputs = inputs_of(name, size)
        torch.testing.assert_close(fast(*inputs), function(*inputs), rtol=1e-4, atol=1e-5)
        assert size == sizes[0] or compilations() == before
    assert len(made.graphs) == 1
    assert len(dispatcher.live) == len(sizes)
    found = [source for live in dispatcher.live.values() for source in sources(live)]
    assert len(found) == len(sizes)
    assert len({tuple((s.kind, s.aligned) for s in source.scalars) for source in found}) == 1
    assert any(s.aligned for source in found for s in source.scalars) >= (sizes == ALIGNED)
    assert all(live.runner.calls == 1 for live in dispatcher.live.values())
    if name.startswith("one_row"):
        assert all("r0_skip" in source.text for source in found)


def test_a_number_of_rows_has_one_kernel_whether_16_divides_it_or_not():
    dispatcher = backend(Made(HELD))
    fast = torch.compile(lambda x: x.softmax(-1), backend=dispatcher)
    for size in (17, 18, 48, 31):
        x = tokens(size)
        torch._dynamo.mark_dynamic(x, 0)
        torch.testing.assert_close(fast(x), x.softmax(-1))
    found = [source for live in dispatcher.live.values() for source in sources(live)]
    assert [len(source.scalars) for source in found] == [1] * 4
    assert not any(scalar.aligned for source in found for scalar in source.scalars)


def test_a_few_rows_of_any_number_are_the_columns_of_an_mma():
    """By one kernel, in slices of the sum as for a number of rows that is known, for more rows than
    its tile has, too."""
    config = Config((("x0", 16), ("x1", 16), ("r0", 128)), reduction="loop")
    dispatcher = backend(Made(config))
    weight = data(24, 256).to(torch.bfloat16)
    fast = torch.compile(lambda x: F.linear(x, weight).relu(), backend=dispatcher)
    before = compilations()
    for size in (5, 16, 9, 40):
        x = data(size, 256).to(torch.bfloat16)
        torch._dynamo.mark_dynamic(x, 0)
        wanted = F.linear(x.double(), weight.double()).relu()
        torch.testing.assert_close(fast(x).double(), wanted, rtol=8e-3, atol=2e-2)
    found = [source for live in dispatcher.live.values() for source in sources(live)]
    assert len(found) == 4
    texts = [re.sub(" # .*", "", source.text) for source in found]
    assert len(set(texts[:3])) == 1  # of one tile of rows
    assert all("tl.full([4, 16, 16]" in source.text for source in found)
    assert compilations() - before == 2


def test_known_sizes_are_not_lowered_again(monkeypatch):
    monkeypatch.setattr(VaryingSizes, "LIMIT", 2)
    made = Made(HELD)
    dispatcher = backend(made)
    fast = torch.compile(lambda x: x.softmax(-1), backend=dispatcher)
    for size in (17, 18, 18, 17):
        fast(*inputs_of("softmax", size))
    assert sorted(live.runner.calls for live in dispatcher.live.values()) == [2, 2]
    fast(*inputs_of("softmax", 19))  # the oldest goes
    assert sorted(live.runner.calls for live in dispatcher.live.values()) == [1, 2]


def test_all_sizes_of_a_graph_are_given_the_same_pools(monkeypatch):
    given, plain = [], Dispatcher.static

    def static(self, captured, inputs):
        given.append(inputs.pools)
        return plain(self, captured, inputs)

    monkeypatch.setattr(Dispatcher, "static", static)
    for _ in range(2):
        torch._dynamo.reset()
        fast = torch.compile(lambda x: x.softmax(-1), backend=backend(Made(HELD)))
        for size in (17, 33, 60):
            fast(*inputs_of("softmax", size))
    assert len(given) == 6
    assert isinstance(given[0], SharedPools)
    assert len({id(pools) for pools in given}) == 2  # a function's are its own
    assert given[0] is given[2] is not given[3]


def test_outside_of_the_bucket_another_plan_is_made():
    made = Made(HELD)
    fast = torch.compile(lambda x: x.softmax(-1), backend=backend(made))
    for size in (17, 31, 33, 60, 32, 48):
        (x,) = inputs_of("softmax", size)
        torch.testing.assert_close(fast(x), x.softmax(-1))
    assert [g.nodes[0].type.shape[1] for g in made.graphs] == [17, 33, 32, 48]
    assert len({bucket_key(graph) for graph in made.graphs}) == 4


def known(plan):
    """Finds the plan for its own bucket, as a store does."""

    def find(captured):
        if bucket_key(captured.graph) != plan[0]:
            return "nothing is stored for it"
        return replace(plan[1], graph_key=key(captured.graph))

    return find


def planned(config, size=17):
    """The bucket and the plan of a softmax over rows of this size."""
    made = Made(config)
    fast = torch.compile(lambda x: x.softmax(-1), backend=backend(made))
    fast(*inputs_of("softmax", size))
    torch._dynamo.reset()
    (graph,) = made.graphs
    return bucket_key(graph), one_kernel(graph, config)


def test_a_miss_outside_of_the_bucket_is_an_error_or_the_baseline():
    find = known(planned(HELD))
    for policy in ("error", "baseline"):
        torch._dynamo.reset()
        dispatcher = Dispatcher(Policy(on_miss=policy, baseline="eager"), Sources(find))
        fast = torch.compile(lambda x: x.softmax(-1), backend=dispatcher)
        for size in (17, 20):
            fast(*inputs_of("softmax", size))
        assert all(live.runner.calls == 1 for live in dispatcher.live.values())
        (x,) = inputs_of("softmax", 33)
        if policy == "error":
            with pytest.raises(PlanError, match="nothing is stored"):
                fast(x)
        else:
            with pytest.warns(FusionplanWarning, match="nothing is stored"):
                torch.testing.assert_close(fast(x), x.softmax(-1))
            assert list(dispatcher.live.values())[-1].runner is None
            with warnings.catch_warnings():
                warnings.simplefilter("error", FusionplanWarning)  # once for each bucket
                fast(*inputs_of("softmax", 34))


def test_a_plan_that_does_not_fit_its_bucket_is_a_miss_with_a_reason():
    odd = replace(ROWS, blocks=(("x0", 4),))  # names no block for the rows
    bucket, plan = planned(HELD)
    plan = replace(plan, groups=(replace(plan.groups[0], config=odd),))
    with pytest.warns(FusionplanWarning, match="no block size for axis r0"):
        torch.compile(
            lambda x: x.softmax(-1),
            backend=Dispatcher(Policy(baseline="eager"), Sources(known((bucket, plan)))),
        )(*inputs_of("softmax", 18))
    torch._dynamo.reset()
    made = Made(HELD)
    dispatcher = backend(made, find=known((bucket, plan)))
    fast = torch.compile(lambda x: x.softmax(-1), backend=dispatcher)
    for size in (18, 19):
        fast(*inputs_of("softmax", size))
    assert len(made.graphs) == 1
    assert all(live.runner.calls == 1 for live in dispatcher.live.values())


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(16), nn.Linear(16, 16)

    def forward(self, x):
        return self.linear(F.gelu(self.norm(x)))


def gradients(module, x):
    module.zero_grad()
    x = x.clone().requires_grad_()
    torch._dynamo.mark_dynamic(x, 0)
    y = module(x)
    y.square().sum().backward()
    return [y.detach(), x.grad, *(p.grad.clone() for p in module.parameters())]


def each_apart(captured):
    """A kernel for every operation: what is reduced is walked, so that no config has to fit."""
    graph = captured.graph
    groups = []
    for node in (n.id for n in graph.nodes if is_compute(n)):
        blocks = tuple((axis, 16) for axis in ("x0", "x1", "x2", "r0", "r1"))
        nodes = with_free_nodes(graph, [node])
        groups.append(GroupPlan(nodes, "triton", "", Config(blocks)))
    return Plan(key(graph), DEVICE, (), "modelled", tuple(groups))


def test_a_training_step_compiles_once():
    torch.manual_seed(0)
    block, asked = Block().to(DEVICE), []

    def make(captured):
        asked.append(captured)
        return each_apart(captured)

    dispatcher = backend(make)
    fast = torch.compile(block, backend=dispatcher)
    for rows in RAGGED[:2]:
        before = compilations()
        x = data(rows, 16)
        torch.testing.assert_close(gradients(fast, x), gradients(block, x), rtol=1e-4, atol=1e-4)
        assert rows == RAGGED[0] or compilations() == before
    assert len(asked) == 2
    assert sorted(stage for _, stage in dispatcher.live) == ["backward"] * 2 + ["forward"] * 2
    assert all(live.runner.kernels_per_call > 3 for live in dispatcher.live.values())
    assert all(live.runner.calls == 1 for live in dispatcher.live.values())


@pytest.fixture(scope="module")
def compiled():
    """What the real compiler makes for an H200, which needs a process without the interpreter."""
    return by_compiler(Path(__file__).with_name("dynamic_compiler.py"))


def test_one_compilation_for_a_bucket_with_wide_loads(compiled):
    assert compiled["aligned"] == {"sizes": 3, "compiled": 1, "wide": True, "types": ["i32"]}
    assert compiled["ragged"] == {"sizes": 3, "compiled": 1, "wide": False, "types": ["i32"]}
    assert compiled["huge"]["types"] == ["i64"]


def test_rows_of_any_length_are_read_as_vectors_by_one_kernel(compiled):
    """One more load reads the row's last elements once more, for those who store them."""
    assert compiled["rows"] == {"sizes": 4, "compiled": 1, "loads": [1], "wide": True}
