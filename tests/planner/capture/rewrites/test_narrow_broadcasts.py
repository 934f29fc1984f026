"""An operation that gives the same for every element of an axis is computed for one of them."""

import pytest
import torch
from fusionplan.planner.capture.capture import capture
from fusionplan.planner.capture.decompositions.decompose import decompositions
from fusionplan.planner.capture.rewrites.narrow_broadcasts import narrow_broadcasts
from fusionplan.planner.capture.rewrites.rewrite import rewritten
from fusionplan.planner.costs.device import H200
from fusionplan.planner.covers.cover import modelled_plan
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

aten = torch.ops.aten
BIAS, SCORES = (4, 64, 64), (8, 4, 64, 64)


def traced(function, *shapes):
    with FakeTensorMode():
        inputs = [torch.empty(shape) for shape in shapes]
        listed = lambda *given: [function(*given)]  # noqa: E731
        return make_fx(listed, decomposition_table=decompositions())(*inputs)


def shapes_of(gm, target):
    return [tuple(n.meta["val"].shape) for n in gm.graph.nodes if n.target is target]


def causal(n):
    places = torch.arange(n)
    return (places[:, None] >= places).expand(8, 1, n, n)


def chosen(bias, scores):
    return torch.where(causal(64), bias, -1e9) * scores


def chosen_and_scaled(bias, scores):
    return scores + torch.where(causal(64), bias, -1e9).neg().mul(0.5)


@pytest.mark.parametrize("function", [chosen, chosen_and_scaled])
def test_a_bias_is_chosen_for_one_sequence(function):
    gm = traced(function, BIAS, SCORES)
    narrow = narrow_broadcasts(gm)
    assert shapes_of(gm, aten.where.self) == [SCORES]
    assert shapes_of(narrow, aten.where.self) == [BIAS]
    inputs = torch.randn(BIAS), torch.randn(SCORES)
    (wanted,), (got,) = (m(*inputs) for m in (gm, narrow))
    assert torch.equal(got, wanted)
    assert got.stride() == wanted.stride()


def test_all_operations_of_a_chain_are_narrow():
    narrow = narrow_broadcasts(traced(chosen_and_scaled, BIAS, SCORES))
    assert shapes_of(narrow, aten.neg.default) == [BIAS]
    assert shapes_of(narrow, aten.mul.Tensor) == [BIAS]


@pytest.mark.parametrize(
    "function, shapes",
    [
        # A result lies as eager's; what differs along the axis, or has lost none, stays.
        (lambda b, s: torch.where(causal(64), b, -1e9), (BIAS, SCORES)),
        (lambda b, s: torch.where(causal(64), s, b).relu(), (BIAS, SCORES)),
        (lambda b, s: b.expand(4, 64, 64).neg() + s, (BIAS, SCORES)),
        (lambda b, s: b.expand(8, 4, 64, 64).clone().view(32, 64, 64).neg(), (BIAS, SCORES)),
    ],
    ids=["result", "varies", "same shape", "copy"],
)
def test_what_must_be_wide_stays(function, shapes):
    gm = traced(function, *shapes)
    assert narrow_broadcasts(gm) is gm


def test_random_numbers_stay_apart():
    gm = traced(lambda p, s: torch.bernoulli(p.expand(8, 4, 64, 64)) + s, BIAS, SCORES)
    assert narrow_broadcasts(gm) is gm


def layers(table, index, scores):
    """Layers of attention's scores, each with the bias of positions that its mask lets through."""
    bias = table[index.long()].permute(2, 0, 1)[None]
    for _ in range(2):
        masked = torch.where(causal(256), bias, -1e9)
        scores = torch.softmax(scores + masked, -1)
    return scores


def test_layers_read_the_bias_of_one_sequence_side_by_side():
    gm = rewritten(traced(layers, (32, 4), (256, 256), (8, 4, 256, 256)), "inference")
    graph = capture(gm).graph
    first, second = modelled_plan(graph, H200).groups
    assert (first.kernels, second.kernels) == (1, 1)
    read = {i for n in second.nodes for i in graph.nodes[n].inputs} & set(first.nodes)
    (bias,) = (graph.nodes[each].type for each in read)
    assert bias.nbytes == 4 * 4 * 256 * 256
    assert bias.stride[-1] == 1
