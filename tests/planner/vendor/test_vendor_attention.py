"""Attention that a vendor's call computes: found however it is written, with equal numbers, and not
found where the group computes something else."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from vendor_equals import Function, compared, found, normal, the_call

pytestmark = pytest.mark.dynamo

B, H, S, D = 2, 4, 24, 16


def several(count: int, *shape: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [normal(*shape, dtype=dtype) + i for i in range(count)]


QKV = several(3, B, H, S, D)
HALVES = several(3, B, H, S, D, dtype=torch.bfloat16)
BSHD = several(3, B, S, H, D)
GROUPED = [normal(B, H, S, D), *several(2, B, 2, S, D)]
PACKED = [normal(B, S, 3 * H * D)]


def indices(count: int, q: torch.Tensor) -> torch.Tensor:
    return torch.arange(count, device=q.device)


# --- attention, as users write it ----------------------------------------------------------------


def plain(q, k, v):
    return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(D), dim=-1) @ v


def scaled_queries(q, k, v):
    return torch.softmax((q * D**-0.5) @ k.permute(0, 1, 3, 2), dim=-1) @ v


def scaled_both(q, k, v):
    root = D**-0.25
    return F.softmax((q * root) @ (k / (1 / root)).mT, -1) @ v


def by_einsum(q, k, v):
    scores = torch.einsum("bhid,bhjd->bhij", q, k) * 0.3
    return torch.einsum("bhij,bhjd->bhid", scores.softmax(-1), v)


def keys_first(q, k, v):
    """Scores transposed: softmax over the rows."""
    weights = torch.softmax(k @ q.mT * 0.25, dim=-2)
    return weights.mT @ v


def divided_last(q, k, v):
    scores = q @ k.mT * 0.25
    weights = torch.exp(scores - scores.amax(-1, keepdim=True))
    return (weights @ v) / weights.sum(-1, keepdim=True)


def powers_of_two(q, k, v):
    scores = q @ k.mT * (0.25 * math.log2(math.e))
    weights = torch.exp2(scores - scores.amax(-1, keepdim=True))
    return (weights / weights.sum(-1, keepdim=True)) @ v


def wide_scores(q, k, v):
    weights = torch.softmax((q @ k.mT).float() * 0.25, dim=-1)
    return weights.to(q.dtype) @ v


def wide_throughout(q, k, v):
    return (torch.softmax(q.float() @ k.float().mT * 0.25, dim=-1) @ v.float()).to(q.dtype)


def row_shifted(q, k, v):
    """What is the same for all keys cancels."""
    scores = q @ k.mT * 0.25
    return torch.softmax(scores + q.sum(-1, keepdim=True), -1) @ v


def layout_bshd(q, k, v):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return plain(q, k, v).transpose(1, 2).reshape(B, S, H * D)


def packed(x):
    q, k, v = (part.view(B, S, H, D).transpose(1, 2) for part in x.split(H * D, dim=-1))
    return plain(q, k, v)


def self_attention(x):
    return plain(x, x, x)


def by_heads(q, k, v):
    """Three dimensions only."""
    return torch.softmax(torch.bmm(q, k.transpose(1, 2)) * 0.25, -1).bmm(v)


def grouped(q, k, v):
    k, v = (x.repeat_interleave(H // 2, dim=1) for x in (k, v))
    return plain(q, k, v)


def grouped_in_rows(q, k, v):
    """The heads that share their keys as further queries."""
    found = plain(q.reshape(B, 2, H // 2 * S, D), k, v)
    return found.reshape(B, H, S, D)


PLAIN = {
    plain: QKV,
    scaled_queries: QKV,
    scaled_both: QKV,
    by_einsum: QKV,
    keys_first: QKV,
    divided_last: QKV,
    powers_of_two: QKV,
    row_shifted: QKV,
    wide_scores: HALVES,
    wide_throughout: HALVES,
    layout_bshd: BSHD,
    packed: PACKED,
    self_attention: QKV[:1],
    by_heads: several(3, H, S, D),
    grouped: GROUPED,
    grouped_in_rows: GROUPED,
}


def tril(q, k, v):
    mask = torch.tril(torch.ones(S, S, dtype=torch.bool, device=q.device))
    return torch.softmax((q @ k.mT * 0.25).masked_fill(~mask, -math.inf), -1) @ v


def tril_of_numbers(q, k, v):
    mask = torch.tril(torch.ones(S, S, device=q.device))
    return torch.softmax((q @ k.mT * 0.25).masked_fill(mask == 0, -math.inf), -1) @ v


def triu_added(q, k, v):
    mask = torch.triu(torch.full((S, S), -math.inf, device=q.device), diagonal=1)
    return torch.softmax(q @ k.mT * 0.25 + mask, -1) @ v


def by_where(q, k, v):
    i = indices(S, q)
    return torch.softmax(torch.where(i[:, None] >= i, q @ k.mT * 0.25, -math.inf), -1) @ v


def by_strict_where(q, k, v):
    i = indices(S, q)
    hidden = i[None, :] > i[:, None]
    scores = torch.where(hidden, -math.inf, (q @ k.mT).float())
    return torch.softmax(scores * 0.25, -1).to(q.dtype) @ v


def lowest_by_where(q, k, v):
    i = indices(S, q)
    scores = q @ k.mT * 0.25
    return torch.softmax(torch.where(i[:, None] >= i, scores, torch.finfo(q.dtype).min), -1) @ v


def lowest_added(q, k, v):
    i = indices(S, q)
    lowest = torch.finfo(q.dtype).min
    mask = torch.zeros(S, S, dtype=q.dtype, device=q.device).masked_fill(i[:, None] < i, lowest)
    return torch.softmax((q @ k.mT * 0.25 + mask).float(), -1).to(q.dtype) @ v


def fewer_keys(q, k, v):
    mask = indices(S, q)[:, None] >= indices(10, q)
    return torch.softmax((q @ k.mT).masked_fill(~mask, -math.inf), -1) @ v


def grouped_causal(q, k, v):
    k, v = (x[:, :, None].expand(B, 2, H // 2, S, D).reshape(B, H, S, D) for x in (k, v))
    return by_where(q, k, v)


CAUSAL = {
    tril: QKV,
    tril_of_numbers: QKV,
    triu_added: QKV,
    by_where: QKV,
    by_strict_where: HALVES,
    lowest_by_where: HALVES,
    lowest_added: HALVES,
    fewer_keys: [normal(B, H, S, D), *several(2, B, H, 10, D)],
    grouped_causal: GROUPED,
}


@pytest.mark.parametrize("function", PLAIN, ids=lambda f: f.__name__)
def test_plain_attention_is_found_however_it_is_written(function: Function) -> None:
    graph = compared(function, PLAIN[function], "attention")
    call = the_call(graph, "scaled_dot_product_attention")
    assert call.args[5] is False
    copies = [n.op for n in graph.nodes if n.op in ("aten.clone.default", "aten._to_copy.default")]
    assert copies == []


@pytest.mark.parametrize("function", CAUSAL, ids=lambda f: f.__name__)
def test_causal_attention_is_found_however_it_is_masked(function: Function) -> None:
    graph = compared(function, CAUSAL[function], "attention")
    assert the_call(graph, "scaled_dot_product_attention").args[5] is True


def test_heads_that_share_keys_are_not_copied_for_a_kernel_that_knows_of_them() -> None:
    inputs = [x.bfloat16() for x in GROUPED]
    call = the_call(compared(grouped_causal, inputs, "attention"), "scaled_dot_product_attention")
    assert dict(call.kwargs)["enable_gqa"] is True


def test_heads_that_do_not_lie_dense_are_copied() -> None:
    def turned(q, k, v):
        return torch.softmax(q @ k, -1) @ v

    inputs = [normal(B, H, S, D), normal(B, H, D, S), normal(B, H, S, D)]
    graph = compared(turned, inputs, "attention")
    (copy,) = (n for n in graph.nodes if n.op == "aten.clone.default")
    assert copy.type is not None
    assert (copy.type.shape, copy.type.stride[-1]) == ((B, H, S, D), 1)


def test_narrow_operands_of_wide_scores_stay_narrow() -> None:
    _, (only,) = found(wide_throughout, HALVES)
    call = the_call(only.graph, "scaled_dot_product_attention")
    assert call.type is not None
    assert call.type.dtype == "bfloat16"


# --- what is something else ----------------------------------------------------------------------


def soft_cap(q, k, v):
    return torch.softmax(30 * torch.tanh(q @ k.mT / 30), -1) @ v


def alibi(q, k, v):
    i = indices(S, q)
    return torch.softmax(q @ k.mT - 0.5 * (i[:, None] - i).abs(), -1) @ v


def sliding_window(q, k, v):
    i = indices(S, q)
    near = (i[:, None] >= i) & (i[:, None] - i < 8)
    return torch.softmax((q @ k.mT).masked_fill(~near, -math.inf), -1) @ v


def anti_causal(q, k, v):
    i = indices(S, q)
    return torch.softmax((q @ k.mT).masked_fill(i[:, None] >= i, -math.inf), -1) @ v


def strictly_causal(q, k, v):
    i = indices(S, q)
    return torch.softmax((q @ k.mT).masked_fill(i[:, None] <= i, -math.inf), -1) @ v


def every_other(q, k, v):
    i = indices(S, q)
    return torch.softmax((q @ k.mT).masked_fill(i[:, None] < 2 * i, -math.inf), -1) @ v


def bottom_right(q, k, v):
    mask = torch.ones(10, S, dtype=torch.bool, device=q.device).tril(S - 10)
    return torch.softmax((q[:, :, :10] @ k.mT).masked_fill(~mask, -math.inf), -1) @ v


def with_sum(q, k, v):
    scores = q @ k.mT
    return torch.softmax(scores, -1) @ v, torch.logsumexp(scores, -1)


def with_dropout(q, k, v):
    return F.dropout(torch.softmax(q @ k.mT, -1), 0.5) @ v


def learned_scale(q, k, v, scale):
    return torch.softmax(q @ k.mT * scale, -1) @ v


def learned_bias(q, k, v, bias):
    return torch.softmax(q @ k.mT + bias, -1) @ v


def negative(q, k, v):
    return torch.softmax(-(q @ k.mT), -1) @ v


def scaled_result(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ (2 * v)


def squared_weights(q, k, v):
    weights = torch.softmax(q @ k.mT, -1)
    return (weights * weights) @ v


def other_norm(q, k, v):
    scores = q @ k.mT
    return (torch.exp(scores) @ v) / torch.exp(2 * scores).sum(-1, keepdim=True)


def finite_mask(q, k, v):
    i = indices(S, q)
    return torch.softmax((q @ k.mT).masked_fill(i[:, None] < i, -5.0), -1) @ v


def rectified_result(q, k, v):
    return F.relu(plain(q, k, v))


OTHERS = {
    **dict.fromkeys(
        (soft_cap, alibi, sliding_window, anti_causal, strictly_causal, every_other), QKV
    ),
    **dict.fromkeys((bottom_right, with_sum, with_dropout, negative, scaled_result), QKV),
    **dict.fromkeys((squared_weights, other_norm, finite_mask, rectified_result), QKV),
    learned_scale: [*QKV, normal(1)],
    learned_bias: [*QKV, normal(S, S)],
    plain: [x.double() for x in QKV],
    wide_throughout: several(3, 1, 1, 8, 512, dtype=torch.bfloat16),
}


@pytest.mark.parametrize("function", OTHERS, ids=lambda f: f.__name__)
def test_what_no_call_computes_has_no_equal(function: Function) -> None:
    _, equal_calls = found(function, OTHERS[function])
    assert equal_calls == ()


def test_a_wider_result_is_not_what_the_call_gives() -> None:
    def attention(q, k, v):
        return torch.softmax(q.float() @ k.float().mT, -1) @ v.float()

    assert found(attention, HALVES)[1] == ()
