"""A vendor's attention in float64: as the math of torch gives it, with gradients by autograd."""

import pytest
import torch
import torch.nn.functional as F
from fusionplan.planner.errors import PlanError
from fusionplan.planner.graph.graph import Graph, Node, Ref, TensorType
from fusionplan.tuner.trial.evaluate import evaluate
from fusionplan.tuner.trial.float64_attention import wide_attention

Q, K, V, G = (torch.randn(2, 3, n, 8, dtype=torch.float64) for n in (5, 7, 7, 5))
BIAS = torch.randn(2, 1, 5, 7, dtype=torch.float64)


def called(kind, way=""):
    return wide_attention(f"aten._scaled_dot_product_{kind}_attention{way}.default")


def wanted(bias, causal, scale):
    q, k, v = (x.clone().requires_grad_() for x in (Q, K, V))
    mask = bias if bias is None else bias.clone().requires_grad_()
    out = F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, scale=scale)
    leaves = [q, k, v] + ([] if mask is None else [mask])
    return out, torch.autograd.grad(out, leaves, G)


@pytest.mark.parametrize("causal, scale", [(False, None), (True, 0.5)])
def test_flash(causal, scale):
    out, gradients = wanted(None, causal, scale)
    found = called("flash")(Q, K, V, 0.0, causal, False, scale=scale)
    torch.testing.assert_close(found[0], out)
    assert len(found) == 9
    assert found[4:6] == (0, 0)  # lengths, which are numbers
    saved = found[1:6]
    grads = called("flash", "_backward")(
        G, Q, K, V, found[0], *saved, 0.0, causal, *found[6:8], scale=scale
    )
    torch.testing.assert_close(grads, gradients)


def test_efficient_with_a_bias():
    out, gradients = wanted(BIAS, False, None)
    found = called("efficient")(Q, K, V, BIAS, True)
    torch.testing.assert_close(found[0], out)
    scores = Q @ K.transpose(-2, -1) / 8**0.5 + BIAS
    torch.testing.assert_close(found[1][..., :5], scores.logsumexp(-1))
    assert found[1][..., 5:].isposinf().all()
    given = (G, Q, K, V, BIAS, *found, 0.0, [True] * 4)
    torch.testing.assert_close(called("efficient", "_backward")(*given), gradients)


def test_cudnn():
    out, gradients = wanted(BIAS, False, None)
    found = called("cudnn")(Q, K, V, BIAS, True)
    torch.testing.assert_close(found[0], out)
    backward = called("cudnn", "_backward")
    grads = backward(
        G, Q, K, V, *found[:2], *found[6:8], BIAS, *found[2:4], 5, 7, 0.0, False, scale=None
    )
    torch.testing.assert_close(grads, gradients[:3])


@pytest.mark.parametrize("kind", ["flash", "efficient", "cudnn"])
def test_results_are_of_the_vendors_shapes(kind):
    """As a forward graph of training gives them: the gate compares them with the vendor's own."""
    args = (Q, K, V) if kind == "flash" else (Q, K, V, None, True)
    vendors = getattr(torch.ops.aten, f"_scaled_dot_product_{kind}_attention").default
    on_meta = vendors(*(x.to("meta") if isinstance(x, torch.Tensor) else x for x in args))
    for ours, theirs in zip(called(kind)(*args)[:2], on_meta[:2], strict=True):
        assert ours.shape == theirs.shape


def test_queries_that_share_keys_and_values():
    k, v = (torch.randn(2, 1, 7, 8, dtype=torch.float64) for _ in range(2))
    leaves = [x.clone().requires_grad_() for x in (Q, k, v)]
    out = F.scaled_dot_product_attention(*leaves, enable_gqa=True)
    gradients = torch.autograd.grad(out, leaves, G)
    found = called("flash")(Q, k, v)
    torch.testing.assert_close(found[0], out)
    given = (G, Q, k, v, *found[:6], 0.0, False, *found[6:8])
    torch.testing.assert_close(called("flash", "_backward")(*given), gradients)


def test_a_row_that_sees_nothing_is_zero():
    hidden = torch.full((5, 7), float("-inf"), dtype=torch.float64)
    out, *_ = called("efficient")(Q, K, V, hidden, True)
    assert not out.any()


def test_other_operations_are_their_own_and_dropout_is_refused():
    assert wide_attention("aten.mm.default") is None
    assert wide_attention("aten._scaled_dot_product_attention_math.default") is None
    with pytest.raises(PlanError, match="dropout"):
        called("flash")(Q, K, V, 0.1)


def test_a_graph_with_the_call_is_evaluated_wide():
    kind = TensorType((2, 3, 5, 8), (120, 40, 8, 1), "bfloat16")
    call = "aten._scaled_dot_product_flash_attention.default"
    inputs = [Node(i, f"i{i}", "input", type=kind) for i in range(3)]
    graph = Graph(
        (
            *inputs,
            Node(3, "a", call, (Ref(0), Ref(1), Ref(2))),
            Node(4, "o", "operator.getitem", (Ref(3), 0), type=kind),
        ),
        (4,),
    )
    given = [torch.randn(2, 3, 5, 8).bfloat16() for _ in range(3)]
    (found,) = evaluate(graph, given, torch.device("cpu"), wide=torch.float64)
    q, k, v = (x.double() for x in given)
    torch.testing.assert_close(found, F.scaled_dot_product_attention(q, k, v))
