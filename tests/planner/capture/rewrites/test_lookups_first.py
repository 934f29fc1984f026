"""Lookups of what was computed element by element come before the computation."""

import pytest
import torch
import torch.nn.functional as F
from fusionplan.planner.capture.capture import capture
from fusionplan.planner.capture.decompositions.decompose import decompositions
from fusionplan.planner.capture.rewrites.lookups_first import lookups_first
from fusionplan.planner.costs.device import H200
from fusionplan.planner.covers.cover import modelled_plan
from fusionplan.planner.groups.group import subgraph
from fusionplan.planner.lower import lower
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

aten = torch.ops.aten

LOOKUPS = (
    aten.index.Tensor,
    aten._unsafe_index.Tensor,
    aten.index_select.default,
    aten.gather.default,
    aten.embedding.default,
)


def traced(function, *inputs):
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes = [mode.from_tensor(x) for x in inputs]
        return make_fx(function, decomposition_table=decompositions())(*fakes)


def rows(x, table, scale, index):
    return torch.relu(x * 2)[index]


def of_columns(x, table, scale, index):
    return torch.index_select(x.exp(), 1, index)


def gathered(x, table, scale, index):
    return (x + scale[:, None]).gather(1, index[:, None].expand(-1, 3))


def few_bits(x, table, scale, index):
    return F.embedding(index, table.float() * scale[:, None])


def of_two(x, table, scale, index):
    return (x * table)[index, index]


def by_a_number(x, table, scale, index):
    return (x * scale.sum())[index]


MOVED = [rows, of_columns, gathered, few_bits, of_two, by_a_number]


def read_twice(x, table, scale, index):
    y = x.exp()
    return y[index] + y.sum()


def of_memory(x, table, scale, index):
    return x[index]


def of_a_sum(x, table, scale, index):
    return x.sum(-1)[index]


def many_times(x, table, scale, index):
    return x[:2].exp()[index.repeat(40) % 2]


def narrowed(x, table, scale, index):
    y = x.bfloat16()
    return y[index] + y.sum()


STAYING = [narrowed, read_twice, of_memory, of_a_sum, many_times]


def inputs():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, 8, generator=generator)
    table = torch.randint(-99, 99, (8, 8), generator=generator, dtype=torch.int8)
    return x, table, torch.rand(8, generator=generator), torch.tensor([3, 0, 7, 3, 1, 6, 2, 5])


def sources(gm):
    """What the lookups read: where they come first, no result of an operation on elements."""
    targets = [n.args[0].target for n in gm.graph.nodes if n.target in LOOKUPS]
    return [t for t in targets if getattr(t, "tags", ()) and torch.Tag.pointwise in t.tags]


@pytest.mark.parametrize("function", MOVED)
def test_the_lookup_is_first_and_the_numbers_are_the_same(function):
    before = traced(function, *inputs())
    after = lookups_first(before)
    assert sources(before)
    assert not sources(after)
    assert torch.equal(after(*inputs()), function(*inputs()))
    old, new = (g.graph.output_node().args[0].meta["val"] for g in (before, after))
    assert (old.shape, old.stride(), old.dtype) == (new.shape, new.stride(), new.dtype)


@pytest.mark.parametrize("function", STAYING)
def test_others_stay_as_they_are(function):
    gm = traced(function, *inputs())
    assert lookups_first(gm) is gm


def enlarged(x):
    at = (torch.arange(8) * 0.5).to(torch.int64)
    return [x.float()[:, :, at[:, None], at].to(torch.bfloat16)]


def test_an_image_is_enlarged_by_one_kernel():
    with FakeTensorMode():
        x = torch.empty(2, 3, 4, 4, dtype=torch.bfloat16)
        gm = make_fx(enlarged, decomposition_table=decompositions())(x)
    groups = []
    for each in (gm, lookups_first(gm)):
        plan = modelled_plan(capture(each).graph, H200)
        groups.append([node for group in plan.groups for node in group.nodes])
    nodes = {n.op: i for i, n in enumerate(capture(gm).graph.nodes)}
    assert nodes["aten.index.Tensor"] not in groups[0]  # it read what the kernel computes
    graph = capture(lookups_first(gm)).graph
    assert next(n.id for n in graph.nodes if n.op == "aten.index.Tensor") in groups[1]


def between(x):
    at, wide = torch.arange(32) * 0.5, x.float()
    low = at.to(torch.int64)
    left, right = (
        aten._unsafe_index.Tensor(wide, [None, None, None, i])
        for i in (low, (low + 1).clamp(max=15))
    )
    return [torch.lerp(left, right, at - low).to(torch.bfloat16)]


def test_a_cast_to_a_wider_type_is_done_for_each_reader():
    def function(x, index):
        wide = x.float()
        return wide[index], wide[(index + 1).repeat(99)], wide.sum()

    x, index = torch.randn(8, 8).bfloat16(), torch.tensor([3, 0, 6])
    before = traced(function, x, index)
    after = lookups_first(before)
    reads = [n.args[0].op for n in after.graph.nodes if n.target in LOOKUPS]
    assert reads == ["placeholder"] * 2
    for mine, wanted in zip(after(x, index), function(x, index), strict=True):
        assert torch.equal(mine, wanted)


def test_an_image_is_enlarged_between_its_pixels_by_one_kernel():
    """Of 16-bit numbers that both neighbours read as float32; no place is asked whether it is
    inside."""
    with FakeTensorMode():
        x = torch.empty(2, 8, 32, 16, dtype=torch.bfloat16)
        gm = make_fx(between, decomposition_table=decompositions())(x)
    graph = capture(lookups_first(gm)).graph
    plan = modelled_plan(graph, H200)
    (group,) = plan.groups
    reads = [n for n in graph.nodes if n.op == "aten._unsafe_index.Tensor"]
    assert len(reads) == 2
    assert {n.id for n in reads} <= set(group.nodes)
    assert all(graph.nodes[n.inputs[0]].type.dtype == "bfloat16" for n in reads)
    text = lower(subgraph(graph, group.nodes, group.copies).graph, group.config).kernels[0].text
    assert text.count("mask=") == 0
