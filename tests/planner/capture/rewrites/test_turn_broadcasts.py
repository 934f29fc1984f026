"""A small tensor that many elements read across its order is copied into theirs first."""

import pytest
import torch
from fusionplan.planner.capture.capture import capture
from fusionplan.planner.capture.decompositions.decompose import decompositions
from fusionplan.planner.capture.rewrites.turn_broadcasts import turn_broadcasts
from fusionplan.planner.costs.device import H200
from fusionplan.planner.covers.cover import modelled_plan
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

aten = torch.ops.aten
SCORES, TABLE, BUCKETS = (8, 4, 256, 256), (32, 4), (256, 256)


def traced(function, *shapes):
    with FakeTensorMode() as mode:
        del mode
        scores, table = (torch.empty(s) for s in shapes[:2])
        index = torch.zeros(shapes[2], dtype=torch.long)
        listed = lambda *inputs: [function(*inputs)]  # noqa: E731
        return make_fx(listed, decomposition_table=decompositions())(scores, table, index)


def copies(gm):
    return [n for n in gm.graph.nodes if n.target is aten.clone.default]


def looked_up(scores, table, index):
    return scores + table[index].permute(2, 0, 1).unsqueeze(0)


def by_two_layers(scores, table, index):
    bias = table[index].permute(2, 0, 1)[None]
    return (scores + bias).relu() + bias.expand(8, -1, -1, -1)


def computed(scores, table, index):
    return scores * (table[index].permute(2, 0, 1) * 2)


def chosen_in_each_layer(scores, table, index):
    bias = table[index].permute(2, 0, 1)[None]
    for bound in (-1.0, 0.0, 1.0):
        kept = scores[:, :1, :1] > bound  # another mask for each sequence
        scores = scores + torch.where(kept, bias, -1e9).mul(2)
    return scores


@pytest.mark.parametrize("function", [looked_up, by_two_layers, computed, chosen_in_each_layer])
def test_the_bias_is_copied_once_and_read_side_by_side(function):
    gm = traced(function, SCORES, TABLE, BUCKETS)
    turned = turn_broadcasts(gm)
    (copy,) = copies(turned)
    assert copy.meta["val"].is_contiguous()
    assert copy.meta["val"].shape[-3:] == (4, 256, 256)
    large = [n for n in turned.graph.nodes if n.op == "call_function" and n.meta["val"].dim() == 4]
    for node in large:
        for read in node.all_input_nodes:
            assert not read.meta["val"].dim() or read.meta["val"].stride(-1) == 1, (node, read)
    inputs = torch.randn(SCORES), torch.randn(TABLE), torch.randint(0, 32, BUCKETS)
    (wanted,), (got,) = (m(*inputs) for m in (gm, turned))
    assert torch.equal(got, wanted)
    assert got.stride() == wanted.stride()


def test_the_copy_is_made_by_the_kernel_that_looks_up():
    gm = turn_broadcasts(traced(looked_up, SCORES, TABLE, BUCKETS))
    captured = capture(gm)
    plan = modelled_plan(captured.graph, H200)
    names = [{captured.graph.nodes[n].name for n in group.nodes} for group in plan.groups]
    assert [("index" in each, "add" in each) for each in names] == [(True, False), (False, True)]


@pytest.mark.parametrize(
    "function, shapes",
    [
        # Read once, or by what is laid out like it, or too small, or a product's operand.
        (lambda s, t, i: s + t[i].permute(2, 0, 1), ((4, 256, 256), TABLE, BUCKETS)),
        (lambda s, t, i: s.permute(2, 3, 0, 1) + t[i][..., None, :], (SCORES, TABLE, BUCKETS)),
        (looked_up, ((64, 4, 16, 16), TABLE, (16, 16))),
        (lambda s, t, i: s @ t[i].permute(2, 1, 0), (SCORES, TABLE, BUCKETS)),
    ],
    ids=["read once", "same order", "small", "product"],
)
def test_what_gains_nothing_stays(function, shapes):
    gm = traced(function, *shapes)
    assert turn_broadcasts(gm) is gm
