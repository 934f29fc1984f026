"""Attention of heads that share their keys reads these as they are."""

import pytest
import torch
from fusionplan.planner.capture.rewrites.rewrite import rewritten
from fusionplan.planner.capture.rewrites.shared_heads import shared_heads
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

aten = torch.ops.aten

FLASH = aten._scaled_dot_product_flash_attention.default
CUDNN = aten._scaled_dot_product_cudnn_attention.default


def of_heads(heads: int) -> torch.Tensor:
    kept = {"dtype": torch.bfloat16, "device": "cuda"}
    return torch.empty(2, 128, heads, 64, **kept).transpose(1, 2)


def traced(call, *, side: int = 2, view=lambda x: x) -> fx.GraphModule:
    """Attention of 14 heads, whose keys and values are repeated along a new axis."""

    def repeated(x: torch.Tensor) -> torch.Tensor:
        shape = list(x.shape)
        shape.insert(side, 7)
        copy = x.unsqueeze(side).expand(shape).clone(memory_format=torch.contiguous_format)
        return copy.view(2, 14, 128, 64)

    def run(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return call(query, repeated(view(key)), repeated(view(value)))

    with FakeTensorMode():
        return make_fx(run)(of_heads(14), of_heads(2), of_heads(2))


def by_flash(query, key, value):
    return FLASH(query, key, value, 0.0, True)[0]


def by_cudnn(query, key, value):
    return CUDNN(query, key, value, None, False, 0.0, True)[0]


def names(gm: fx.GraphModule) -> list[str]:
    return [node.target.__name__ for node in gm.graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize("call", [by_flash, by_cudnn])
def test_repeated_keys_are_read_once(call):
    gm = traced(call)
    before = names(gm)
    found = rewritten(gm, "inference")
    assert {"clone.default", "expand.default"} <= set(before)
    assert len(names(found)) == 2  # the call, and its first result
    assert names(gm) == before
    (node,) = [n for n in found.graph.nodes if n.target in (FLASH, CUDNN)]
    assert [n.name for n in node.args[:3]] == [n.name for n in found.graph.nodes][:3]
    # What follows is told the same of the result.
    given = [n.meta["val"] if isinstance(n, fx.Node) else n for n in node.args]
    with given[0].fake_mode:
        again = node.target(*given)
    assert again[0].shape == node.meta["val"][0].shape
    assert again[0].stride() == node.meta["val"][0].stride()


def test_heads_that_alternate_keep_their_copies():
    """Head h reads keys h % 2: neighbours do not share."""
    gm = traced(by_flash, side=1)
    assert shared_heads(gm) is gm


def spread(x: torch.Tensor) -> torch.Tensor:
    return x.as_strided(x.shape, (0, *x.stride()[1:]))


def shifted(x: torch.Tensor) -> torch.Tensor:
    return x.as_strided(x.shape, (1, *x.stride()[1:]))


@pytest.mark.parametrize("view", [spread, shifted])
def test_keys_that_a_library_cannot_read_are_copied(view):
    """Keys of one sequence for all, and sequences that begin 2 bytes apart."""
    gm = traced(by_cudnn, view=view)
    assert shared_heads(gm) is gm


def test_keys_of_every_head_stay():
    with FakeTensorMode():
        plain = make_fx(by_flash)(of_heads(14), of_heads(14), of_heads(14))
    assert shared_heads(plain) is plain
