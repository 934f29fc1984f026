"""Attention whose mask is made of little is opened, so that a kernel of ours makes the mask."""

import pytest
import torch
from fusionplan.planner.capture.rewrites.open_masked_attention import open_masked_attention
from fusionplan.planner.capture.rewrites.rewrite import rewritten
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

aten = torch.ops.aten

CUDNN = aten._scaled_dot_product_cudnn_attention.default
EFFICIENT = aten._scaled_dot_product_efficient_attention.default
BATCH, HEADS, LENGTH = 2, 4, 128


def chosen(kept: torch.Tensor) -> torch.Tensor:
    kind = {"dtype": torch.bfloat16}
    return torch.where(kept, kept.new_zeros((), **kind), kept.new_full((), -65504.0, **kind))


def of_padding(keep: torch.Tensor) -> torch.Tensor:
    return chosen(keep.view(BATCH, 1, 1, LENGTH).expand(BATCH, 1, LENGTH, LENGTH))


def in_order(keep: torch.Tensor) -> torch.Tensor:
    places = torch.arange(LENGTH, device=keep.device)
    return chosen(keep.view(BATCH, 1, 1, LENGTH) & (places.unsqueeze(1) >= places))


def given_whole(mask: torch.Tensor) -> torch.Tensor:
    return mask * 2


def traced(mask_of, *, call=CUDNN, head: int = 64, whole: bool = False, logsumexp: bool = False):
    def run(query, key, value, given):
        found = call(query, key, value, mask_of(given), logsumexp, scale=0.25)
        result = found[0].transpose(1, 2).reshape(BATCH, LENGTH, HEADS * head)
        return (result, found[1]) if logsumexp else result

    with FakeTensorMode():
        kept = {"device": "cuda"}
        shape = (BATCH, LENGTH, HEADS, head)
        sides = [torch.empty(shape, dtype=torch.bfloat16, **kept).transpose(1, 2) for _ in "qkv"]
        given = torch.empty(BATCH, LENGTH, dtype=torch.bool, **kept)
        if whole:
            given = torch.empty(BATCH, 1, LENGTH, LENGTH, dtype=torch.bfloat16, **kept)
        return make_fx(run)(*sides, given)


def calls(gm: fx.GraphModule) -> list[fx.Node]:
    return [node for node in gm.graph.nodes if node.target in (CUDNN, EFFICIENT)]


def on_cpu(gm: fx.GraphModule) -> fx.GraphModule:
    """The same operations, on a CPU."""
    for node in gm.graph.nodes:
        if "device" in node.kwargs:
            node.kwargs = {**node.kwargs, "device": torch.device("cpu")}
    gm.recompile()
    return gm


@pytest.mark.parametrize("mask_of", [of_padding, in_order])
def test_such_a_mask_is_opened_and_the_result_lies_as_before(mask_of):
    gm = traced(mask_of)
    found = rewritten(gm, "inference")
    assert calls(gm)
    assert not calls(found)
    *sides, keep = torch.randn(3, BATCH, LENGTH, HEADS, 64), torch.rand(BATCH, LENGTH) < 0.7
    query, key, value = (x.to(torch.bfloat16).transpose(1, 2) for x in sides[0])
    result = on_cpu(found)(query, key, value, keep)
    wide = (x.float() for x in (query, key, value))
    wanted = torch.nn.functional.scaled_dot_product_attention(
        *wide, attn_mask=mask_of(keep).float(), scale=0.25
    )
    wanted = wanted.transpose(1, 2).reshape(BATCH, LENGTH, HEADS * 64)
    torch.testing.assert_close(result.float(), wanted, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("call, head", [(CUDNN, 128), (EFFICIENT, 256)])
def test_larger_heads_stay_with_the_library(call, head):
    assert calls(rewritten(traced(of_padding, call=call, head=head), "inference"))


def test_without_cudnn_larger_heads_are_opened():
    assert not calls(rewritten(traced(of_padding, call=EFFICIENT, head=128), "inference"))


def test_a_mask_that_is_given_stays_with_the_library():
    gm = traced(given_whole, whole=True)
    assert open_masked_attention(gm) is gm


def test_attention_of_which_more_is_read_stays():
    gm = traced(of_padding, logsumexp=True)
    assert open_masked_attention(gm) is gm


def test_with_the_numerics_of_eager_it_stays():
    gm = traced(of_padding)
    assert calls(rewritten(gm, "inference", "eager"))
