"""The step of generating text that is timed: it computes what attention without a cache does."""

from dataclasses import replace
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from fusionplan.bench import decode
from fusionplan.bench.decode_models import GEOMETRIES, DecodeStep, Geometry, given, made, turned
from fusionplan.planner.costs.device import H100
from fusionplan.planner.covers.cover import modelled_plan
from fusionplan.planner.runtime.execution.executor import Executor
from fusionplan.planner.runtime.execution.overlapping import overlapping
from fusionplan.tuner.capture.capture_model import CallArguments, capture_model

SMALL = Geometry(layers=2, width=32, heads=4, key_heads=2, head=8, inner=64, words=50, cache=16)
CPU = torch.device("cpu")


def whole(model: DecodeStep, tokens: torch.Tensor) -> torch.Tensor:
    """The logits of the last position from all tokens at once."""
    of, (batch, length) = model.of, tokens.shape
    x, cos, sin = model.words(tokens), model.cos[:length], model.sin[:length]
    for layer in model.layers:
        y = layer.before(x)
        projected = [f(y).view(batch, length, -1, of.head) for f in (layer.q, layer.k, layer.v)]
        q, k, v = (each.transpose(1, 2) for each in projected)
        q, k = q * cos + turned(q) * sin, k * cos + turned(k) * sin
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + layer.o(y.transpose(1, 2).reshape(batch, length, -1))
        y = layer.between(x)
        x = x + layer.down(F.silu(layer.gate(y)) * layer.up(y))
    return F.linear(model.after(x), model.words.weight)[:, -1:]


@torch.no_grad()
def test_steps_give_what_all_tokens_at_once_give() -> None:
    model = made(SMALL, 3, CPU).float()
    tokens = torch.randint(SMALL.words, (3, 5))
    for place in range(5):
        found = model(tokens[:, place], torch.tensor([place]))
    torch.testing.assert_close(found, whole(model, tokens))


def test_the_least_is_the_weights_and_what_the_caches_hold() -> None:
    model = made(SMALL, 1, CPU)
    weights = 2 * sum(p.numel() for p in model.parameters())
    assert model.nbytes(7) == weights + 2 * 2 * 2 * 8 * 8 * 2


def test_a_packed_head_is_read_in_place_of_the_embeddings() -> None:
    tied, packed = (made(SMALL, 1, CPU, "int8", packs_head=own) for own in (False, True))
    words = SMALL.words * SMALL.width
    assert tied.nbytes(7) - packed.nbytes(7) == 2 * words - (words + 2 * SMALL.words)
    tokens, position = given(SMALL, 1, 7, CPU)
    assert packed.head is not None
    packed.head.weight.zero_()
    assert not packed(tokens, position).any()
    assert tied(tokens, position).any()


def test_inputs_are_a_token_of_each_sequence_and_the_position() -> None:
    tokens, position = given(SMALL, 3, 7, CPU)
    assert tokens.shape == (3,)
    assert position.tolist() == [7]


def test_without_a_gpu_it_says_so(monkeypatch, capsys) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert decode.main([]) == 1
    assert "no GPU" in capsys.readouterr().err


def test_the_names_of_the_ways_tell_them_apart() -> None:
    names = [name for name, _ in decode.ways(made(SMALL, 1, CPU), (), ("default",))]
    assert names == ["eager", "ours", "ours, overlapping", "torch.compile default"]


@cache
def groups_of(weights: str) -> list[list[str]]:
    """The operations of each group in the plan of a step of one layer, at its full size. All of
    them are kernels of ours, attention two."""
    of = replace(GEOMETRIES["llama-3.2-1b"], layers=1)
    with torch.device("meta"):
        model = DecodeStep(of, 1, weights).to(torch.bfloat16).eval()
        for name, each in model.named_buffers():
            if weights == "int8" and name.startswith("layers") and name.endswith("weight"):
                each.data = each.to(getattr(torch, weights))
        inputs = given(of, 1, 160, torch.device("meta"))
    with torch.no_grad():
        (part,) = capture_model(model, CallArguments(tuple(inputs))).parts
    plan = modelled_plan(part.captured.graph, H100)
    assert {group.lowering for group in plan.groups} == {"triton"}
    assert sorted(group.kernels for group in plan.groups) == [*[1] * (len(plan.groups) - 1), 2]
    nodes = part.captured.graph.nodes
    return [[nodes[n].op for n in group.nodes] for group in plan.groups]


@pytest.mark.dynamo
def test_a_layer_has_six_kernels() -> None:
    """Queries, keys and values; attention in two, which writes keys and values into their caches;
    its output; the gated unit in two. After the layer are the last norm and the head. No cache is
    copied."""
    groups = groups_of("bfloat16")
    assert len(groups) <= 5 + 2
    (attention,) = (ops for ops in groups if "aten.index_put_.default" in ops)
    assert [ops for ops in attention if "put" in ops or "bmm" in ops] == [
        *["aten.index_put_.default"] * 2,
        *["aten.bmm.default"] * 2,
    ]


@pytest.mark.dynamo
def test_a_norm_squares_what_its_kernel_reads() -> None:
    """No kernel before it stores the squares."""
    groups = groups_of("bfloat16")
    squared = [ops for ops in groups if "aten.pow.Tensor_Scalar" in ops]
    assert len(squared) == 3
    assert all("aten.rsqrt.default" in ops for ops in squared)


@pytest.mark.dynamo
@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_packed_weights_take_no_kernel_more(weights: str) -> None:
    assert len(groups_of(weights)) <= len(groups_of("bfloat16"))


PACKED = Geometry(layers=1, width=128, heads=4, key_heads=2, head=32, inner=256, words=50, cache=16)


@pytest.mark.interpreter
@pytest.mark.dynamo
@pytest.mark.parametrize("weights", ["bfloat16", "int8", "int4", "float8"])
@torch.no_grad()
def test_a_step_is_eagers_at_both_ends_of_the_cache(
    weights: str, monkeypatch: pytest.MonkeyPatch, few_looks: None
) -> None:
    """One plan, as a CUDA graph of it would be recorded, for each position, and what it leaves in
    the caches."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    model = made(PACKED, 1, CPU, weights)
    exact = made(PACKED, 1, CPU, weights).float()
    tokens, position = given(PACKED, 1, 0, CPU)
    (part,) = capture_model(model, CallArguments((tokens, position))).parts
    plan = overlapping(modelled_plan(part.captured.graph, H100), part.captured.graph, H100, (9, 0))
    run = Executor(part.captured, plan, CPU)
    for name, each in model.named_buffers():
        if name.startswith(("keys", "values")):  # Capture has written a row of each.
            each.normal_()
    before = {name: each.clone() for name, each in model.named_buffers()}
    for place in (0, 7, PACKED.cache - 1):
        for name, each in [*model.named_buffers(), *exact.named_buffers()]:
            each.copy_(before[name])
        position.fill_(place)
        wanted = exact(tokens, position)
        eager = model(tokens, position)
        kept = {name: each.clone() for name, each in model.named_buffers()}
        for name, each in model.named_buffers():
            each.copy_(before[name])
        (found, *_) = run(*part.inputs)
        for name, each in model.named_buffers():
            if name.startswith(("keys", "values")):
                torch.testing.assert_close(each, kept[name], rtol=2**-6, atol=2**-6)
                assert not torch.equal(each, before[name])
        allowed = 2 * (eager.float() - wanted).norm() + 2**-9 * wanted.norm()
        assert (found.float() - wanted).norm() <= allowed
