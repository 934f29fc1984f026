"""A maximum's gradient where its operand is computed again with other last bits."""

import pytest
import torch
from fusionplan.planner.capture.ties import anchors, settle
from torch.fx.experimental.proxy_tensor import make_fx

aten = torch.ops.aten


def settled(function, x):
    """The function's graph, settled, its test made of a second input: x computed again."""
    gm = make_fx(function, tracing_mode="fake")(x, x.clone())
    node, again = [n for n in gm.graph.nodes if n.op == "placeholder"]
    tests = anchors(gm.graph)[node]
    assert settle(gm.graph, node, tests)
    ((test, _),) = tests
    test.replace_input_with(node, again)
    gm.graph.lint()
    gm.recompile()
    return gm


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("dims", [[-1], [0], [0, 1], []])
def test_every_maximum_has_an_element_with_its_gradient(dtype, sign, dims):
    fold = torch.amax if sign > 0 else torch.amin
    x = torch.randn(40, 30, dtype=dtype)
    gm = settled(lambda x, again: x == fold(x, dims, keepdim=True), x)
    found = gm(x, x + 1000)
    assert (found.sum(dims, keepdim=True) == 1).all()
    torch.testing.assert_close(x[found].sort().values, fold(x, dims).flatten().sort().values)


def test_elements_that_tie_all_have_a_share():
    x = torch.tensor([[1.0, 3.0, 3.0, 0.0], [5.0, 5.0, 5.0, 5.0], [0.0, -0.0, -1.0, 0.0]])
    gm = settled(lambda x, again: x == x.amax(-1, keepdim=True), x)
    assert gm(x, x).tolist() == (x == x.amax(-1, keepdim=True)).tolist()


def test_a_maximum_of_nan_has_no_element_as_for_eager():
    x = torch.tensor([[1.0, float("nan")], [2.0, 1.0]])
    gm = settled(lambda x, again: x == x.amax(-1, keepdim=True), x)
    assert gm(x, x).tolist() == [[False, False], [True, False]]


def test_what_is_no_plain_extremum_is_left_as_it_was():
    gm = make_fx(lambda x: x == x.sum(-1, keepdim=True), tracing_mode="fake")(torch.randn(3, 4))
    before = str(gm.graph)
    (node,) = [n for n in gm.graph.nodes if n.op == "placeholder"]
    assert not settle(gm.graph, node, anchors(gm.graph)[node])
    assert str(gm.graph) == before


def test_what_a_value_is_made_of_alone_is_kept_in_its_place():
    """Autograd takes the absolute value again, and widens it again; a fold may be in two steps."""

    def function(a, b):
        x = a + b
        largest = x.float().abs().amax(1, keepdim=True).amax(0, keepdim=True).detach()
        other = x.float() * a
        return x.float().abs() == largest, other == largest, x == x, x == b.amax(0)

    x = torch.randn(4, 3, dtype=torch.bfloat16)
    graph = make_fx(function, tracing_mode="fake")(x, x.clone()).graph
    ((kept, tests),) = anchors(graph).items()
    assert kept.target is aten.add.Tensor
    assert [(t.target, f.target) for t, f in tests] == [(aten.eq.Tensor, aten.amax.default)]
    assert not settle(graph, kept, tests)
