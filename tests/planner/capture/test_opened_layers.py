"""Layers that torch runs as one operation, opened in a graph from Dynamo, compute the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fusionplan.planner.capture import attention_calls
from fusionplan.planner.capture.opened_layers import (
    encoder_layer,
    equal_bags,
    layers_opened,
    multi_head,
    self_attention,
)
from torch import fx, nn

B, L, D, H = 3, 6, 16, 2
X = torch.randn(B, L, D, generator=torch.Generator().manual_seed(0))
LATER = torch.triu(torch.ones(L, L, dtype=torch.bool), 1)
PADDED = torch.arange(L) >= torch.tensor([[6], [2], [4]])
MASKS = [(None, None), (LATER, 0), (PADDED.float() * -1e30, 1), (LATER.expand(B, H, L, L), 2)]


def call_of(target: Callable[..., Any], *args: Any, **kwargs: Any) -> fx.GraphModule:
    """A graph of one call, as from Dynamo: each tensor is an input with an example."""
    graph = fx.Graph()

    def put(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        node = graph.placeholder(f"x{len(graph.nodes)}")
        node.meta["example_value"] = value
        return node

    seen = {id(a): put(a) for a in args}
    named = {name: put(value) for name, value in kwargs.items()}
    graph.output(graph.call_function(target, tuple(seen[id(a)] for a in args), named))
    return fx.GraphModule({}, graph)


def target_of(gm: fx.GraphModule) -> Any:
    (call,) = (n for n in gm.graph.nodes if n.op == "call_function")
    return call.target


def weights_of(module: nn.Module, *names: str) -> list[torch.Tensor]:
    return [module.get_parameter(name).detach() for name in names]


@pytest.mark.parametrize("mask, kind", MASKS)
@pytest.mark.parametrize("norm_first, gelu", [(True, False), (False, True)])
def test_an_encoder_layer(norm_first: bool, gelu: bool, mask: Any, kind: Any) -> None:
    layer = nn.TransformerEncoderLayer(D, H, 24, batch_first=True)
    attended = weights_of(layer.self_attn, "in_proj_weight", "in_proj_bias")
    attended += weights_of(layer.self_attn.out_proj, "weight", "bias")
    modules = layer.norm1, layer.norm2, layer.linear1, layer.linear2
    rest = [w for module in modules for w in weights_of(module, "weight", "bias")]
    given = (X, D, H, *attended, gelu, norm_first, 1e-5, *rest, mask, kind)
    gm = call_of(torch._transformer_encoder_layer_fwd, *given)
    opened = layers_opened(gm, "fast")
    assert target_of(opened) is encoder_layer
    assert target_of(gm) is not encoder_layer
    assert layers_opened(gm, "eager") is gm
    tensors = [n.meta["example_value"] for n in gm.graph.find_nodes(op="placeholder")]
    torch.testing.assert_close(opened(*tensors), gm(*tensors))


@pytest.mark.parametrize("mask, kind", MASKS)
@pytest.mark.parametrize("need, average", [(False, True), (True, True), (True, False)])
def test_attention_of_a_tensor_with_itself(mask: Any, kind: Any, need: bool, average: bool) -> None:
    module = nn.MultiheadAttention(D, H, batch_first=True)
    weights = weights_of(module, "in_proj_weight", "in_proj_bias")
    weights += weights_of(module.out_proj, "weight", "bias")
    given = (X, X, X, D, H, *weights, mask, need, average, kind)
    gm = call_of(torch._native_multi_head_attention, *given)
    assert target_of(layers_opened(gm, "fast")) is self_attention
    wanted = torch._native_multi_head_attention(*given)
    torch.testing.assert_close(self_attention(*given), (wanted[0], wanted[1] if need else None))
    others = (X, X + 1, X, *given[3:])
    assert (
        layers_opened(there := call_of(torch._native_multi_head_attention, *others), "fast")
        is there
    )


def test_attention_within_a_call_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(attention_calls, "_has_kernel", lambda *given: bool(asked.append(given)))
    module, x = nn.MultiheadAttention(D, H).bfloat16(), X.bfloat16()
    given = (x, x, x, D, H, module.in_proj_weight, module.in_proj_bias, None, None, False, 0.0)
    given += (module.out_proj.weight, module.out_proj.bias)
    more = {"training": False, "need_weights": False}
    found, _ = multi_head(*given, **more)
    assert len(asked) == 1
    wanted, _ = F.multi_head_attention_forward(*given, **more)
    torch.testing.assert_close(found, wanted, rtol=0.02, atol=0.02)
    assert len(asked) == 1


@pytest.mark.parametrize("mode, padding", [("sum", None), ("mean", 0), ("sum", -20), ("max", None)])
@pytest.mark.parametrize("size", [1, 5])
def test_bags_of_one_size(mode: str, padding: int | None, size: int) -> None:
    table = torch.randn(20, 8)
    bags = torch.randint(0, 20, (6, size))
    bags[2] = 0
    gm = call_of(F.embedding_bag, bags, table, mode=mode, padding_idx=padding)
    opened = layers_opened(gm, "fast")
    assert target_of(opened) is equal_bags
    torch.testing.assert_close(opened(bags, table), gm(bags, table))


def test_other_bags_stay() -> None:
    table, flat = torch.randn(20, 8), torch.randint(0, 20, (12,))
    bags = flat.view(4, 3)
    others = [
        call_of(F.embedding_bag, flat, table, torch.tensor([0, 3, 8])),
        call_of(F.embedding_bag, bags, table, max_norm=1.0),
        call_of(F.embedding_bag, bags, table, mode="max", padding_idx=1),
        call_of(F.embedding_bag, bags, table.clone().requires_grad_()),
        call_of(F.embedding_bag, bags, table.double()),
    ]
    assert [layers_opened(gm, "fast") is gm for gm in others] == [True] * 5
    with torch.no_grad():
        assert target_of(layers_opened(others[3], "fast")) is equal_bags
