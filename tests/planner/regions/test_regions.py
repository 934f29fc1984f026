"""Regions: large values between the kernels of a backward pass are computed again, or live within
one chunk. Gradients are compared with float64, and every step counts our kernels."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from fusionplan.api import executors
from fusionplan.backend import planner
from fusionplan.planner.capture import saving
from fusionplan.planner.capture.capture import capture, decompositions
from fusionplan.planner.capture.rewrites.reassociate import reassociate
from fusionplan.planner.costs.device import builtin
from fusionplan.planner.covers import by_rule, cover
from fusionplan.planner.covers.cheapest import CoverEffort
from fusionplan.planner.covers.cover import best_cuts, partition
from fusionplan.planner.errors import PlanError, Refusal
from fusionplan.planner.explain_plan import explain_plan
from fusionplan.planner.explanation import Explanation
from fusionplan.planner.graph.graph import INPUT
from fusionplan.planner.graph.ops import is_compute, overload
from fusionplan.planner.groups.group import is_copied, subgraph
from fusionplan.planner.lowerings import chunked, recomputed
from fusionplan.planner.lowerings.nested import groups_within
from fusionplan.planner.lowerings.registry import CHUNKED, LOWERINGS, REGIONAL, lowering_of
from fusionplan.planner.module import print_module
from fusionplan.planner.plan import Plan
from fusionplan.planner.regions import recompute, regions
from fusionplan.planner.regions.chunks import Walk, walk
from fusionplan.planner.runtime.execution.executor import Executor
from fusionplan.report.collect import Subject, collect
from fusionplan.report.page import page
from oracle import DEVICE, assert_close
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

pytestmark = [pytest.mark.dynamo, pytest.mark.usefixtures("quick_prices")]

BF16 = torch.bfloat16
LARGE = 1 << 14
BUDGET = 1 << 17


def attention(q, k, v):
    scores = (q @ k.mT).float() / math.sqrt(q.shape[-1])
    i, j = torch.arange(q.shape[-2], device=q.device), torch.arange(k.shape[-2], device=q.device)
    scores = torch.where(j[None, :] <= i[:, None], 5 * torch.tanh(scores / 5), -torch.inf)
    return torch.softmax(scores, -1).to(v.dtype) @ v


def grouped(q, k, v):
    k, v = (x.repeat_interleave(2, 1) for x in (k, v))
    return torch.softmax((q @ k.mT) / math.sqrt(q.shape[-1]), -1) @ v


def cross_entropy(x, weight, labels):
    return F.cross_entropy((x @ weight.T).float(), labels)


def splade(hidden, weight, bias, mask):
    weights = torch.log1p(torch.relu(F.linear(hidden, weight, bias))) * mask[..., None]
    return torch.max(weights, dim=1).values


def leaf(*shape, dtype=BF16):
    return torch.randn(*shape, dtype=dtype, device=DEVICE).requires_grad_()


def heads(queries, keys, length=256, width=16):
    shapes = ((2, queries, length, width), (2, keys, length, width), (2, keys, length, width))
    return [leaf(*shape) for shape in shapes]


CASES = {
    "attention": (attention, lambda: heads(2, 2)),
    "short_attention": (attention, lambda: heads(2, 2, length=192)),
    "grouped": (grouped, lambda: heads(4, 2)),
    "cross_entropy": (
        cross_entropy,
        lambda: [leaf(256, 16), leaf(1000, 16), torch.randint(1000, (256,), device=DEVICE)],
    ),
    "splade": (
        splade,
        lambda: [leaf(2, 64, 16), leaf(1000, 16), leaf(1000), torch.ones(2, 64, device=DEVICE)],
    ),
}


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """What is large here would not be on a GPU."""
    monkeypatch.setattr(saving, "FLOOR_BYTES", 0)
    monkeypatch.setattr(regions, "LARGE_BYTES", LARGE)
    monkeypatch.setattr(recomputed, "LARGE_BYTES", LARGE)
    monkeypatch.setattr(chunked, "BUDGETS", (BUDGET,))
    # Of graphs as small as these the best cover is one kernel, with no region left.
    monkeypatch.setattr(cover, "CoverEffort", lambda: CoverEffort(enumerated=0, priced=0))
    monkeypatch.setattr(by_rule, "MOST", 0)
    for kept in (cover._grown, cover._searched):  # by other tests with other constants
        kept.cache_clear()
    torch.manual_seed(0)


def gradients(function, inputs, seed):
    result = function(*inputs)
    leaves = [t for t in inputs if t.requires_grad]
    torch.manual_seed(seed)
    loss = (result.double() * torch.randn(result.shape, device=DEVICE)).sum()
    return [result.detach(), *torch.autograd.grad(loss, leaves)]


def in_float64(inputs):
    wide = [t.detach().double() if t.is_floating_point() else t for t in inputs]
    return [w.requires_grad_(t.requires_grad) for w, t in zip(wide, inputs, strict=True)]


@pytest.fixture
def trained(tmp_path):
    """The executors of a training step, after its gradients were compared."""

    def run(name, only=None):
        function, make = CASES[name]
        inputs = make()
        torch._dynamo.reset()
        options = {"store": tmp_path / f"{name}.db", "on_miss": "model"}
        fast = torch.compile(function, backend=planner, options=options, dynamic=False)
        ours = gradients(fast, inputs, 1)
        exact, eager = gradients(function, in_float64(inputs), 1), gradients(function, inputs, 1)
        for number, (mine, ideal, own) in enumerate(zip(ours, exact, eager, strict=True)):
            assert_close(mine, ideal, own, f"{name}: value {number}")
        return executors(fast)

    return run


def backward(ran):
    """The executor of the backward graph, which has a region: the one with more results."""
    found = [e for e in ran if any(lowering_of(g) in REGIONAL for g in e.plan.groups)]
    if not found and DEVICE == "cuda":
        pytest.skip("the model of this device has one kernel for it; its gradients were compared")
    assert found, [[(g.lowering, len(g.nodes)) for g in e.plan.groups] for e in ran]
    return max(found, key=lambda e: len(e.plan.groups[-1].nodes))


@pytest.mark.parametrize(
    "name, lowering",
    [
        ("short_attention", "recomputed"),
        ("grouped", "chunked"),
        ("cross_entropy", "recomputed"),
        ("cross_entropy", "chunked"),
    ],
)
def test_gradients_by_region(trained, monkeypatch, name, lowering):
    monkeypatch.setattr("fusionplan.planner.covers.cover.REGIONAL", (LOWERINGS[lowering],))
    monkeypatch.setattr("fusionplan.planner.covers.cover.SPARED", math.inf)
    ran = trained(name)
    executor = backward(ran)
    (region,) = [g for g in executor.plan.groups if lowering_of(g) in REGIONAL]
    assert region.lowering == lowering
    assert executor.kernels_per_call >= len(region.bodies[0].groups) > 0
    assert executor.calls == 1


def test_a_maximum_by_index_with_a_shorter_last_chunk(trained, monkeypatch):
    """Which of two nearly equal words wins is rounding: the rule is about the values."""
    # Products this small are left to ATen otherwise, and with them the whole step.
    monkeypatch.setattr("fusionplan.planner.covers.pricing.is_vendors", lambda *given: False)
    monkeypatch.setattr("fusionplan.planner.covers.cover.SPARED", math.inf)
    monkeypatch.setattr("fusionplan.planner.covers.cover.REGIONAL", (CHUNKED,))
    torch._dynamo.reset()
    function, make = CASES["splade"]
    inputs = [t.detach().float().requires_grad_(t.requires_grad) for t in make()]
    fast = torch.compile(function, backend=planner, options={"on_miss": "model"}, dynamic=False)
    ours = gradients(fast, inputs, 1)
    exact, eager = gradients(function, in_float64(inputs), 1), gradients(function, inputs, 1)
    for mine, ideal, own in zip(ours, exact, eager, strict=True):
        assert_close(mine, ideal, own, "splade")
    executor = backward(executors(fast))
    (region,) = [g for g in executor.plan.groups if g.lowering == "chunked"]
    assert len(region.bodies) == 2
    assert executor.kernels_per_call > 2


def graph_of(name):
    """The backward graph of a case, and its region."""
    found = []
    function, make = CASES[name]

    def keep(gm, _):
        found.append(capture(gm))
        return gm

    backend = aot_autograd(
        fw_compiler=lambda gm, _: gm,
        bw_compiler=keep,
        partition_fn=saving.partition,
        decompositions=decompositions(),
    )
    torch._dynamo.reset()
    gradients(torch.compile(function, backend=backend, dynamic=False), make(), 1)
    (captured,) = found
    graph = captured.graph
    device = builtin("h200")
    groups = partition(graph, best_cuts(graph, device))
    (region,) = regions.regions(graph, groups)
    return captured, region


@pytest.mark.parametrize("name", ["attention", "cross_entropy", "grouped"])
def test_nothing_in_a_chunk_is_larger_than_it_says(name):
    captured, region = graph_of(name)
    group = subgraph(captured.graph, region).graph
    whole = max(n.type.nbytes for n in group.nodes if is_compute(n))
    found = walk(group, BUDGET)
    assert isinstance(found, Walk)
    ends = {r.type.nbytes for r in found.results}
    # The scores of one head are the least that attention can be walked by.
    assert found.largest <= BUDGET or name == "attention"
    assert found.largest <= whole / 4
    for body in found.bodies:
        # A broadcast mask is computed wherever it is read.
        stored = [n for n in body.nodes if is_compute(n) and not is_copied(body, n.id)]
        large = [n.op for n in stored if n.type.nbytes > max(found.largest, *ends)]
        assert not large
    assert found.count > 1


@pytest.mark.parametrize("name", ["attention", "cross_entropy"])
def test_a_walk_takes_and_gives_every_element_once(name):
    captured, region = graph_of(name)
    found = walk(subgraph(captured.graph, region).graph, BUDGET)
    assert isinstance(found, Walk)
    for result in found.results:
        if result.summed:
            continue
        times = torch.zeros(result.type.shape, dtype=torch.int64)
        for chunk in found.chunks():
            part = times
            for cut in result.cuts:
                first = sum(chunk.starts[a] * scale for a, scale in cut.axes)
                inner, scale = cut.axes[0]
                part = part.narrow(cut.dim, first, chunk.sizes[inner] * scale)
            part += 1
        assert bool((times == 1).all())


def test_every_large_value_computed_again_has_one_reader():
    captured, region = graph_of("attention")
    group = subgraph(captured.graph, region).graph
    found = recompute.recomputed(group, LARGE)
    assert isinstance(found, Walk)
    (body,) = found.bodies
    products = [n for n in body.nodes if "mm" in n.op and n.type.nbytes >= LARGE]
    before = [n for n in group.nodes if "mm" in n.op and n.type.nbytes >= LARGE]
    assert len(products) > len(before) > 0


def test_refused_walks():
    captured, region = graph_of("attention")
    group = subgraph(captured.graph, region).graph
    assert walk(group, 1 << 30) == Refusal("walk", "no value of the group is large")
    assert isinstance(recompute.recomputed(group, 1 << 30), Refusal)
    assert CHUNKED.walk(group, "many") == Refusal("options", "'many' is no number of bytes")


def test_a_sum_over_a_value_that_is_read_again_is_no_axis():
    """Softmax needs its whole row: only the rows can be walked."""

    def function(x, y):
        scores = x @ y.T
        return torch.softmax(scores, -1).sum(0), scores.amax()

    found = make_fx(function)(torch.randn(64, 16), torch.randn(128, 16))
    captured = capture(_tagged(found, torch.randn(64, 16), torch.randn(128, 16)))
    group = captured.graph
    nodes = tuple(n.id for n in group.nodes if n.op != INPUT)
    refused = walk(subgraph(group, nodes).graph, 1 << 10)
    assert isinstance(refused, Refusal)
    assert refused.rule in ("walk", "opaque")


def _tagged(gm, *inputs):
    """A traced graph with a flat list of results and fake values, as AOTAutograd gives it."""
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(t) for t in inputs]
        return make_fx(lambda *a: list(gm(*a)))(*fakes)


def test_a_plan_that_does_not_fit_says_so(trained, monkeypatch):
    monkeypatch.setattr("fusionplan.planner.covers.cover.SPARED", math.inf)
    executor = backward(trained("cross_entropy"))
    captured, plan = executor.captured, executor.plan
    assert Plan.from_json(plan.to_json()) == plan
    (region,) = [g for g in plan.groups if lowering_of(g) in REGIONAL]
    others = [g for g in plan.groups if g is not region]
    for changed, text in (
        (replace(region, options=""), "no number of bytes"),
        (replace(region, bodies=()), "0 bodies"),
    ):
        with pytest.raises(PlanError, match=text):
            Executor(captured, replace(plan, groups=(*others, changed)), torch.device(DEVICE))


def test_what_stands_for_a_region_is_shown(trained, monkeypatch):
    monkeypatch.setattr("fusionplan.planner.covers.cover.SPARED", math.inf)
    executor = backward(trained("cross_entropy"))
    graph, plan = executor.captured.graph, executor.plan
    numbers = [each.number for each in groups_within(graph, plan)]
    inner = [n for n in numbers if n.count(".") == 2]
    assert inner
    text = print_module(graph, plan)
    assert f"def group_{inner[0].replace('.', '_')}(" in text
    explained = explain_plan(graph, plan, builtin("h200"))
    assert Explanation.from_json(explained.to_json()) == explained
    (region,) = [g for g in explained.groups if g.bodies]
    assert sum(times for times, _ in region.bodies) >= 1
    assert all(body.groups[0].kernels for _, body in region.bodies)
    report = collect("step", [Subject("step", graph, plan, "")], builtin("h200"), None)
    (step,) = [s for s in report.graphs[0].steps if s.group == region.number]
    assert step.lowering == region.lowering
    told = page(report)
    assert "Runs instead of the region" in told
    assert f"a region of several graphs ({region.lowering})" in told


def test_the_row_sums_of_a_softmax_come_from_its_result():
    def function(p, v, grad):
        result = torch.bmm(p, v)
        sums = (torch.bmm(grad, v.mT) * p).sum(-1)
        return [result, sums]

    inputs = [torch.randn(2, 64, 64), torch.randn(2, 64, 8), torch.randn(2, 64, 8)]
    with FakeTensorMode() as mode:
        found = make_fx(function)(*(mode.from_tensor(t) for t in inputs))
    assert reassociate(found.graph) == 1
    found.recompile()
    assert sum(n.target is torch.ops.aten.bmm.default for n in found.graph.nodes) == 1
    torch.testing.assert_close(found(*inputs), function(*inputs), rtol=1e-4, atol=1e-4)


def test_a_sum_of_another_product_is_left_alone():
    def function(p, v, w, grad):
        return [torch.bmm(p, w), (torch.bmm(grad, v.mT) * p).sum(-1)]

    inputs = [torch.randn(2, 64, 64), *(torch.randn(2, 64, 8) for _ in range(3))]
    with FakeTensorMode() as mode:
        found = make_fx(function)(*(mode.from_tensor(t) for t in inputs))
    assert reassociate(found.graph) == 0


def test_operators_of_our_own_are_known():
    assert overload("fusionplan.bitcast.default")
