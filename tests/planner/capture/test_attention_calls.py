"""Attention in graphs from Dynamo: masks that follow from positions are taken away, and 16-bit
numbers of which torch has no kernel get a formula on tensor cores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fusionplan.planner.capture import attention_calls
from fusionplan.planner.capture.attention_calls import attention, attention_chosen
from fusionplan.planner.capture.capture import capture, decompositions
from fusionplan.planner.graph.graph import Numerics
from fusionplan.planner.graph.ops import Contraction, row
from fusionplan.planner.trace.precision import product_dtypes
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

pytestmark = pytest.mark.dynamo

L = 24
Q = torch.randn(2, 4, L, 16, generator=torch.Generator().manual_seed(0))


def masks_of(function: Callable[..., Any], *inputs: torch.Tensor) -> list[tuple[bool, bool]]:
    """Of each call in the chosen graph: whether it has a mask, whether it is causal. What the
    graph computes is what the function does."""
    found = list[tuple[bool, bool]]()

    def backend(gm: fx.GraphModule, given: list[torch.Tensor]) -> Callable[..., Any]:
        before = str(gm.graph)
        chosen = attention_chosen(gm, "fast")
        assert str(gm.graph) == before
        for node, copy in zip(
            gm.graph.find_nodes(op="placeholder"), chosen.graph.nodes, strict=False
        ):
            # torch 2.11's AOTAutograd wants it of every input.
            assert getattr(copy, "_dynamo_source", None) == getattr(node, "_dynamo_source", None)
        for node in chosen.graph.nodes:
            if node.target is F.scaled_dot_product_attention:
                given = attention_calls._arguments(node)
                found.append((given.get("attn_mask") is not None, bool(given.get("is_causal"))))
        return chosen.forward

    torch._dynamo.reset()
    got = torch.compile(function, backend=backend, dynamic=False)(*inputs)
    torch.testing.assert_close(got, function(*inputs))
    return found


def positions(q: torch.Tensor) -> torch.Tensor:
    return torch.arange(q.shape[-2], device=q.device)


def attended(q: torch.Tensor, mask: torch.Tensor | None, **more: Any) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, q, q, attn_mask=mask, **more)


def all_true(q: torch.Tensor) -> torch.Tensor:
    return attended(q, torch.ones(2, 1, L, L, dtype=torch.bool))


def causal(q: torch.Tensor) -> torch.Tensor:
    here = positions(q)
    return attended(q, (here[:, None] >= here).expand(2, 1, L, L))


def added(q: torch.Tensor) -> torch.Tensor:
    return attended(q, torch.triu(torch.full((L, L), float("-inf")), 1))


def window(q: torch.Tensor) -> torch.Tensor:
    here = positions(q)
    return attended(q, (here[:, None] >= here) & (here[:, None] - here < 4))


def slope(q: torch.Tensor) -> torch.Tensor:
    here = positions(q)
    return attended(q, (here - here[:, None]).to(q.dtype))


def written(q: torch.Tensor) -> torch.Tensor:
    mask = torch.ones(L, L, dtype=torch.bool)
    mask[3, 5] = False
    return attended(q, mask)


def shifted(q: torch.Tensor) -> torch.Tensor:
    here = positions(q)
    return attended(q, here[:, None] + 1 >= here)


@pytest.mark.parametrize(
    "function, wanted",
    [
        (all_true, (False, False)),
        (causal, (False, True)),
        (added, (False, True)),
        (window, (True, False)),
        (slope, (True, False)),
        (written, (True, False)),
        (shifted, (True, False)),
    ],
)
def test_a_mask_of_positions(function: Callable[..., Any], wanted: tuple[bool, bool]) -> None:
    assert masks_of(function, Q) == [wanted]


def test_a_mask_of_the_user_stays() -> None:
    mask = torch.rand(2, 1, L, L) > 0.3
    assert masks_of(attended, Q, mask) == [(True, False)]


def test_causal_of_fewer_queries_than_keys_is_not_torchs() -> None:
    """Torch's lets the first query see the first key alone."""

    def last(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        here = torch.arange(L)[-8:]
        return F.scaled_dot_product_attention(q, k, k, here[:, None] >= torch.arange(L))

    assert masks_of(last, Q[:, :, -8:], Q) == [(True, False)]


def test_one_call_of_two_loses_its_mask() -> None:
    def both(q: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return attended(causal(q), mask)

    assert masks_of(both, Q, torch.rand(L, L) > 0.3) == [(False, True), (True, False)]


# --- models of transformers ---


def test_masks_that_share_what_they_are_computed_from_are_traced_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A model has one in each layer; to trace all that is behind it takes half a second."""
    traces: list[int] = []
    make = attention_calls.make_fx
    monkeypatch.setattr(attention_calls, "make_fx", lambda *of, **more: counted(make(*of, **more)))

    def counted(trace: Callable[..., Any]) -> Callable[..., Any]:
        traces.append(1)
        return trace

    def layers(q: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        keeps = positions(q)[:, None] >= positions(q)
        for number in range(3):
            q = attended(q, torch.where(keeps, 0.0, -torch.inf) + number * 0.0)
            q = attended(q, torch.where(keeps, bias, -torch.inf))
        return q

    assert masks_of(layers, Q, torch.randn(L, L)) == [(False, True), (True, False)] * 3
    assert len(traces) == 1


def test_a_mask_that_cannot_be_traced_costs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    value = attention_calls._value

    def refuse(node: Any) -> torch.Tensor:
        if isinstance(node, fx.Node) and tuple(node.meta["example_value"].shape) == (L, L):
            raise ValueError("it has sizes that vary")
        return value(node)

    monkeypatch.setattr(attention_calls, "_value", refuse)

    def two(q: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return attended(all_true(q), bias)

    assert masks_of(two, Q, torch.randn(L, L)) == [(False, False), (True, False)]


def _bert(transformers: Any) -> Any:
    config = transformers.BertConfig(num_hidden_layers=1, hidden_size=64, num_attention_heads=4)
    return transformers.BertModel(config)


def _gpt2(transformers: Any) -> Any:
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=1, n_embd=64, n_head=4))


def _llama(transformers: Any) -> Any:
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.LlamaConfig(num_hidden_layers=1, vocab_size=999, **sizes)
    return transformers.LlamaForCausalLM(config)


@pytest.mark.parametrize(
    "make, wanted",
    [(_bert, (False, False)), (_gpt2, (False, True)), (_llama, (False, True))],
    ids=["bert", "gpt2", "llama"],
)
def test_models_without_padding_have_no_mask(make: Any, wanted: tuple[bool, bool]) -> None:
    model = make(pytest.importorskip("transformers")).eval()
    words = torch.randint(0, 999, (2, 32))
    with torch.no_grad():
        assert masks_of(lambda x: model(input_ids=x)[0], words) == [wanted]


# --- the formula ---


def _inputs(dtype: torch.dtype, heads: int = 4) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = [(2, 4, L, 16), (2, heads, L + 8, 16), (2, heads, L + 8, 16)]
    return [torch.randn(s, generator=generator).to(dtype).requires_grad_() for s in shapes]


def _kept(row_without_keys: bool) -> torch.Tensor:
    mask = torch.rand(2, 1, L, L + 8, generator=torch.Generator().manual_seed(2)) > 0.4
    mask[0, 0, 3] = not row_without_keys
    return mask


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True},
    "scale": {"scale": 0.7},
    "shared heads": {"enable_gqa": True},
    "mask": {"attn_mask": _kept(row_without_keys=False)},
    "rows without keys": {"attn_mask": _kept(row_without_keys=True)},
    "bias": {"attn_mask": torch.linspace(-3, 3, 4 * L * (L + 8)).view(4, L, L + 8)},
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CASES)
def test_the_formula_is_as_near_as_torchs(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_calls, "_has_kernel", lambda *_: False)
    given, case = _inputs(dtype, 2 if name == "shared heads" else 4), dict(CASES[name])
    wide = [x.detach().double().requires_grad_() for x in given]
    torchs = [x.detach().clone().requires_grad_() for x in given]
    bias = case.get("attn_mask")
    if bias is not None and bias.is_floating_point():
        case["attn_mask"] = bias.to(dtype)
    exact = {**case}
    if bias is not None and bias.is_floating_point():
        exact["attn_mask"] = bias.to(dtype).double()
    results = [
        attention(*given, **case),
        F.scaled_dot_product_attention(*torchs, **case),
        F.scaled_dot_product_attention(*wide, **exact),
    ]
    for result in results:
        result.backward(torch.ones_like(result))
    mine, theirs, true = (
        [r.detach(), *(x.grad for x in xs)]
        for r, xs in zip(results, (given, torchs, wide), strict=True)
    )
    for got, eager, value in zip(mine, theirs, true, strict=True):
        assert got.dtype == dtype
        floor = torch.finfo(dtype).eps * float(value.abs().max())
        error = float((got.double() - value).abs().max())
        assert error <= 2 * float((eager.double() - value).abs().max()) + floor / 2


def test_products_of_the_formula_are_of_16_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_calls, "_has_kernel", lambda *_: False)
    bias = CASES["bias"]["attn_mask"].to(torch.bfloat16)
    given = [*(x.detach() for x in _inputs(torch.bfloat16)), bias]
    traced = make_fx(
        lambda *x: [attention(*x)], decomposition_table=decompositions(), tracing_mode="fake"
    )(*given)
    graph = capture(traced).graph
    products = [n for n in graph.nodes if isinstance(row(n), Contraction)]
    assert len(products) == 2
    for node in products:
        assert product_dtypes(graph, node, *node.inputs[:2]) == ("bfloat16", "ieee")


@pytest.mark.parametrize("numerics", ["fast", "eager"])
def test_on_cuda_a_bias_is_opened_but_not_with_the_numerics_of_eager(numerics: Numerics) -> None:
    def function(q: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return attended(q, bias)

    graphs: list[fx.GraphModule] = []

    def backend(gm: fx.GraphModule, given: list[torch.Tensor]) -> Callable[..., Any]:
        graphs.append(gm)
        return gm.forward

    torch.compile(function, backend=backend, dynamic=False)(Q.bfloat16(), Q.new_zeros(L, L))
    (gm,) = graphs
    with FakeTensorMode():
        there = torch.empty(2, 4, L, 16, dtype=torch.bfloat16, device="cuda")
    for node in gm.graph.nodes:
        if node.op == "placeholder" and node.meta["example_value"].dim() == 4:
            node.meta["example_value"] = there
    targets = [n.target for n in attention_chosen(gm, numerics).graph.nodes]
    assert (attention in targets) == (numerics == "fast")
    assert (F.scaled_dot_product_attention in targets) == (numerics == "eager")
