"""A maximum's gradient where its operand is computed again with other last bits."""

import pytest
import torch
from fusionplan.planner.capture.ties import compared, settle
from torch.fx.experimental.proxy_tensor import make_fx

aten = torch.ops.aten


def settled(function, x):
    """The function's graph, settled, its test made of a second input: x computed again."""
    gm = make_fx(function, tracing_mode="fake")(x, x.clone())
    node, again = [n for n in gm.graph.nodes if n.op == "placeholder"]
    ((test, _),) = compared(node)
    assert settle(gm.graph, node)
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
    assert compared(node)
    assert not settle(gm.graph, node)
    assert str(gm.graph) == before
