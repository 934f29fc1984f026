"""Reductions over more axes than a reduction inside them: in two steps, so that the first is part
of the kernel of what it contains."""

import pytest
import torch
import torch.nn.functional as F
from fusionplan.planner.capture.capture import capture
from fusionplan.planner.capture.decompositions.decompose import decompositions
from fusionplan.planner.capture.rewrites.nest_reductions import nest_reductions
from fusionplan.planner.costs.device import H200
from fusionplan.planner.covers.cover import modelled_plan
from oracle import assert_close
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

aten = torch.ops.aten


def traced(function, *inputs):
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes = [mode.from_tensor(x) for x in inputs]
        return make_fx(function, decomposition_table=decompositions())(*fakes)


def divergence(x, y):
    return F.kl_div(x.log_softmax(-1), y.log_softmax(-1), reduction="batchmean", log_target=True)


def soft_labels(x, y):
    return F.cross_entropy(x, y.softmax(-1))


def entropy(x, y):
    p = x.log_softmax(-1)
    return -(p.exp() * p).sum()


def cosine(x, y):
    return F.mse_loss(F.normalize(x, dim=-1), F.normalize(y, dim=-1))


def of_columns(x, y):
    return (x - x.mean(0)).square().sum()


def largest(x, y):
    return (x / x.abs().sum(-1, keepdim=True)).amax()


def of_two_axes(x, y):
    x = x.view(4, -1, x.shape[-1])
    return (x.softmax(-1) * y.view(x.shape)).sum((0, 2))


def kept(x, y):
    return (x.softmax(-1) + y).sum((0, 1), keepdim=True)


NESTED = [divergence, soft_labels, entropy, cosine, of_columns, largest, of_two_axes, kept]


def plain(x, y):
    return (x * y).sum()


def of_rows(x, y):
    return (x.softmax(-1) * y).sum(-1)


def along_the_others(x, y):
    return ((x - x.mean(-1, keepdim=True)) * y).sum(0)


def both_ways(x, y):
    return (x.softmax(0) * y.softmax(1)).sum()


def by_parameter(x, y):
    return (x * y[:1]).sum()


SIMPLE = [plain, of_rows, along_the_others, both_ways, by_parameter]


def reductions(gm):
    kinds = (aten.sum.dim_IntList, aten.amax.default)
    return [n.meta["val"].shape for n in gm.graph.nodes if n.target in kinds]


def inputs(dtype):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(12, 37, generator=generator).to(dtype) for _ in range(2)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("function", NESTED)
def test_a_nested_reduction_is_divided_and_equal(function, dtype):
    x, y = inputs(dtype)
    before = traced(function, x, y)
    after = nest_reductions(before)
    assert len(reductions(after)) == len(reductions(before)) + 1
    exact, eager = function(x.double(), y.double()), function(x, y)
    assert_close(after(x, y), exact, eager, function.__name__)
    last, value = (next(iter(reversed(g.graph.nodes))) for g in (before, after))
    old, new = last.args[0].meta["val"], value.args[0].meta["val"]
    assert (old.shape, old.stride(), old.dtype) == (new.shape, new.stride(), new.dtype)


@pytest.mark.parametrize("function", SIMPLE)
def test_others_stay_as_they_are(function):
    gm = traced(function, *inputs(torch.float32))
    assert nest_reductions(gm) is gm


def test_a_sum_of_16_bits_is_rounded_once():
    def function(x):
        return (x * x.amax(-1, keepdim=True)).sum()

    x = torch.ones(256, 129, dtype=torch.bfloat16)  # 129 is no bfloat16; 256 of them are one
    gm = nest_reductions(traced(function, x))
    steps = [n for n in gm.graph.nodes if n.target is aten.sum.dim_IntList]
    assert [n.meta["val"].dtype for n in steps] == [torch.float32] * 2
    assert gm(x).dtype == torch.bfloat16
    assert gm(x) == 256 * 129


def test_the_users_own_rounding_of_the_terms_stays():
    def function(x):
        return x.softmax(-1).sum(dtype=torch.bfloat16)

    gm = traced(function, inputs(torch.float32)[0])
    assert nest_reductions(gm) is gm


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64, torch.uint8], ids=str)
@pytest.mark.parametrize("result", [None, torch.int8, torch.int32, torch.float32], ids=str)
def test_integers_are_summed_exactly(dtype, result):
    def function(x):
        return (x - x.amax(-1, keepdim=True)).sum(dtype=result)

    x = torch.arange(60).view(4, 15).to(dtype)
    gm = nest_reductions(traced(function, x))
    assert len(reductions(gm)) == 3
    eager, found = function(x), gm(x)
    assert found.dtype == eager.dtype
    assert found == eager


def test_reductions_without_axes_keep_nobody_back():
    def function(x):
        whole = aten.sum.dim_IntList(x, None)
        return (x.softmax(-1) * whole).sum() + aten.sum.dim_IntList(whole, None)

    x = torch.randn(6, 5)
    gm = nest_reductions(traced(function, x))
    assert len(reductions(gm)) == len(reductions(traced(function, x))) + 1
    torch.testing.assert_close(gm(x), function(x))


@pytest.mark.slow
def test_the_matrix_is_never_stored(few_looks):
    """The divergence of two matrices reads them and stores a number a row: the matrix of its
    terms, 2 GB, would take longer than all the rest."""
    x = torch.empty(4096, 128256, dtype=torch.bfloat16, device="meta")
    found = []
    for change in (lambda gm: gm, nest_reductions):
        with FakeTensorMode():
            fakes = [torch.empty(x.shape, dtype=x.dtype) for _ in range(2)]
            gm = make_fx(
                lambda x, y: [divergence(x.float(), y.float())],
                decomposition_table=decompositions(),
            )(*fakes)
        graph = capture(change(gm)).graph
        plan = modelled_plan(graph, H200)
        inside = {n for g in plan.groups for n in g.nodes}
        stored = 0
        for group in plan.groups:
            for n in set(group.nodes) & inside:
                readers = [m.id for m in graph.nodes if n in m.inputs and m.id not in group.nodes]
                stored = max(stored, graph.nodes[n].type.numel if readers else 0)
        found.append((stored, plan.predicted))
    (before, slow), (after, fast) = found
    assert (before, after) == (x.numel(), x.shape[0])
    assert fast < slow - H200.stream_s(2 * 4 * x.numel())
