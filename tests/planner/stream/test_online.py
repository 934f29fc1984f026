"""Derived online reductions that are accepted: with which H, and that streamed evaluation in
float64 agrees."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from fusionplan.planner.graph.op import Op
from fusionplan.planner.graph.ops import MIN
from fusionplan.planner.stream.online import Proof, derive
from fusionplan.planner.values.values import Compute, Fold
from streamed import (
    assert_streams,
    buffers,
    carried,
    checked,
    folds,
    formulas,
    is_load,
    looped,
    refusal,
    streamed,
    t,
    traced,
    unstreamed,
)

pytestmark = pytest.mark.dynamo

FOLLOWS = "H(t, x, x') = t * exp(x - x'), x = amax"
Q, K, V = t(2, 3, 5, 4), t(2, 3, 7, 4), t(2, 3, 7, 6)


def causal(scores: torch.Tensor) -> torch.Tensor:
    m, n = scores.shape[-2:]
    i = torch.arange(m, device=scores.device)[:, None]
    j = torch.arange(n, device=scores.device)[None, :]
    return torch.where(j <= i, scores, -torch.inf)


def test_softmax_statistics_follow_the_maximum() -> None:
    derived = checked(lambda x: torch.softmax(x, -1).sum(-1), [t(3, 8)], "amax")
    assert folds(derived) == {"sum_1": {-1.0: "amax"}}
    assert derived.proofs[0] == Proof("sum_1", "exponent", FOLLOWS)


@pytest.mark.parametrize(
    "score",
    [
        lambda s: s,
        lambda s: s * 0.125,
        lambda s: 30 * torch.tanh(s * 0.5 / 30),
        causal,
        lambda s: causal(30 * torch.tanh(s / 30) - 0.1),
    ],
)
def test_attention_from_its_formula(score: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax(score(q @ k.transpose(-1, -2)), -1) @ v

    derived = checked(attention, [Q, K, V], "amax")
    assert folds(derived) == {"sum_1": {-1.0: "amax"}, "bmm_1": {-1.0: "amax"}}
    assert formulas(derived) == [FOLLOWS, "sum(u / x) = sum(u) / x, x = sum_1", FOLLOWS]
    last = derived.values.values[derived.values.outputs[0].value]
    assert isinstance(last.kind, Compute)
    assert last.kind.op is Op.DIV


def test_attention_in_bfloat16_moves_the_division_out_of_the_casts() -> None:
    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ k.transpose(-1, -2), -1, dtype=torch.float32).to(v.dtype) @ v

    derived = checked(attention, [x.bfloat16() for x in (Q, K, V)], "amax")
    assert "sum(u * x) = sum(u) * x, x = div" in formulas(derived)
    (dot,) = [
        v for v in derived.values.values if v.id in derived.corrections and v.origin == "bmm_1"
    ]
    assert dot.kind.operand == "bfloat16"
    assert derived.values.values[dot.kind.source].kind.op is Op.CONVERT


def test_a_copy_between_the_users_cast_and_its_product_stays_as_it_is() -> None:
    """As a dropout leaves one that drops nothing: models that write attention out have it."""

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = q @ k.transpose(-1, -2)
        weights = torch.softmax(scores, -1, dtype=torch.float32).to(v.dtype)
        return weights.clone() @ v

    derived = checked(attention, [x.bfloat16() for x in (Q, K, V)], "amax")
    assert folds(derived)["bmm_1"] == {-1.0: "amax"}


def test_grouped_queries_and_a_bias_along_the_keys() -> None:
    def attention(q, k, v, bias):
        q = q.view(2, 3, 2, 5, 4)
        scores = q @ k[:, :, None].transpose(-1, -2) + bias
        return torch.softmax(scores, -1) @ v[:, :, None]

    derived = checked(attention, [t(2, 6, 5, 4), K, V, t(7)], "amax")
    assert folds(derived)["bmm_1"] == {-1.0: "amax"}


def test_a_variance_follows_the_sum_that_gives_its_mean() -> None:
    derived = checked(lambda x: torch.var_mean(x, -1), [t(3, 24)], "sum_1")
    (proof,) = derived.proofs
    assert (proof.fold, proof.rule) == ("sum_2", "welford")
    assert proof.formula.startswith("H(t, m, m') = t + n * (m - m')**2, m = mean(")
    assert not derived.refusals


def test_log_sum_exp_beside_the_result() -> None:
    def attention(q, k, v):
        scores = q @ k.transpose(-1, -2)
        lse = torch.logsumexp(scores, -1)
        return torch.exp(scores - lse[..., None]) @ v, lse

    derived = checked(attention, [Q, K, V], "amax")
    assert folds(derived) == {"sum_1": {-1.0: "amax"}, "bmm_1": {-1.0: "amax"}}
    assert "sum(u * x) = sum(u) * x, x = exp(-log)" in formulas(derived)


def test_log_softmax_then_exp() -> None:
    derived = checked(lambda x, v: torch.log_softmax(x, -1).exp() @ v, [t(3, 8), t(8, 4)], "amax")
    assert folds(derived) == {"sum_1": {-1.0: "amax"}, "mm": {-1.0: "amax"}}


def test_softmax_with_a_sink() -> None:
    def attention(s: torch.Tensor, v: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
        top = torch.maximum(s.amax(-1, keepdim=True), sink)
        e = torch.exp(s - top)
        return (e / (e.sum(-1, keepdim=True) + torch.exp(sink - top))) @ v

    derived = checked(attention, [t(3, 8), t(8, 4), t(3, 1)], "amax")
    assert folds(derived) == {"sum_1": {-1.0: "amax"}, "mm": {-1.0: "amax"}}
    assert "sum(u * x) = sum(u) * x, x = exp(amax - maximum)" in formulas(derived)


def test_a_mask_after_the_softmax_keeps_masked_rows_zero() -> None:
    def attention(s: torch.Tensor, keep: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        p = torch.softmax(torch.where(keep, s, -torch.inf), -1)
        return torch.where(keep, p, 0.0) @ v

    inputs = [t(3, 8), t(3, 8, dtype=torch.bool), t(8, 4)]
    derived = checked(attention, inputs, "amax")
    values = traced(attention, *inputs)
    contents = buffers(values)
    (mask,) = [k for k, filled in contents.items() if filled.dtype == bool]
    contents[mask][:8] = False
    exact = unstreamed(values, contents)[0]
    mine, _ = streamed(derived, looped(values, "amax"), contents, 3)
    assert (exact == 0).any()
    np.testing.assert_allclose(mine[0], exact, atol=1e-9)


def _not_masked(s: torch.Tensor) -> torch.Tensor:
    """torch's own attention by its formula: rows of -inf are 0."""
    hidden = torch.all(s.eq(-torch.inf), -1, keepdim=True)
    return torch.where(hidden, 0.0, torch.softmax(s, -1))


def _by_maximum(s: torch.Tensor) -> torch.Tensor:
    top = s.amax(-1, keepdim=True)
    e = torch.exp(s - top)
    return torch.where(top == -torch.inf, 0.0, e / e.sum(-1, keepdim=True))


@pytest.mark.parametrize("softmax", [_not_masked, _by_maximum])
def test_rows_that_are_masked_altogether_are_known_by_their_maximum(
    softmax: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    def attention(s: torch.Tensor, keep: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return softmax(torch.where(keep, s, -torch.inf)) @ v

    inputs = [t(3, 8), t(3, 8, dtype=torch.bool), t(8, 4)]
    values = traced(attention, *inputs)
    over = looped(values, "amax")
    derived = derive(values, over)
    assert not derived.refusals
    assert folds(derived)["mm"] == {-1.0: "amax"}
    # The maximum tells such a row: nothing else is reduced for it.
    found = {derived.values.values[f].origin for f in carried(derived.values, over)}
    assert found == {"amax", "sum_1", "mm"}
    contents = buffers(values)
    (mask,) = [k for k, filled in contents.items() if filled.dtype == bool]
    contents[mask][:8] = False
    exact = unstreamed(values, contents)[0]
    mine, _ = streamed(derived, over, contents, 3)
    assert (exact == 0).any()
    np.testing.assert_allclose(mine[0], exact, atol=1e-9)


def test_dropout_and_weights_that_stream() -> None:
    derived = checked(
        lambda s, d, v: (torch.softmax(s, -1) * d * 1.25) @ v, [t(3, 8), t(3, 8), t(8, 4)], "amax"
    )
    assert folds(derived)["mm"] == {-1.0: "amax"}


def test_a_scaled_exponent() -> None:
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return torch.exp2((x - x.amax(-1, keepdim=True)) * 0.5).sum(-1)

    derived = checked(scaled, [t(3, 8)], "amax")
    (correction,) = derived.corrections.values()
    assert correction.base == "2"
    assert formulas(derived) == ["H(t, x, x') = t * exp2(0.5 * (x - x')), x = amax"]


def test_a_minimum_and_two_extrema() -> None:
    def both(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.exp(x.amin(-1, keepdim=True) - x + (y - y.amax(-1, keepdim=True)) / 2).sum(-1)

    derived = checked(both, [t(3, 8), t(3, 8)], "amin")
    assert folds(derived) == {"sum_1": {1.0: "amin", -0.5: "amax"}}
    assert formulas(derived) == [
        "H(t, x, x') = t * exp(x0' - x0 + 0.5 * (x1 - x1')), x0 = amin, x1 = amax"
    ]


def test_a_mask_between_the_maximum_and_the_exponential() -> None:
    def masked(x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        return torch.exp(torch.where(keep, x - x.amax(-1, keepdim=True), -torch.inf)).sum(-1)

    derived = checked(masked, [t(3, 8), t(3, 8, dtype=torch.bool)], "amax")
    assert folds(derived) == {"sum_1": {-1.0: "amax"}}


def test_a_norm_moves_behind_the_product() -> None:
    def normalised(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)) @ w

    derived = checked(normalised, [t(3, 8), t(8, 4)], "mm")
    assert not derived.corrections
    assert formulas(derived) == ["sum(u * x) = sum(u) * x, x = rsqrt"]


def test_a_multiplier_on_either_operand() -> None:
    def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x @ (w / w.abs().sum(0, keepdim=True))

    derived = checked(product, [t(3, 8), t(8, 4)], "mm")
    assert formulas(derived) == ["sum(u / x) = sum(u) / x, x = sum_1"]


def test_a_value_that_others_read_is_left_to_them() -> None:
    derived = checked(
        lambda s, v: (torch.softmax(s, -1) @ v, torch.softmax(s, -1)), [t(3, 8), t(8, 4)], "amax"
    )
    weights = derived.values.values[derived.values.outputs[1].value]
    assert weights.kind.op is Op.DIV
    assert weights.dims[-1], "the weights themselves are still an output"


def test_the_sum_of_a_softmax_is_not_carried_twice() -> None:
    values = traced(lambda x: torch.softmax(x, -1).sum(-1), t(3, 8))
    over = looped(values, "amax")
    assert len(carried(values, over)) == 3
    assert len(carried(derive(values, over).values, over)) == 2


def test_splade_head() -> None:
    def head(h: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.log1p(torch.relu(F.linear(h, w, b))).amax(1)

    derived = checked(head, [t(2, 5, 4), t(6, 4), t(6)], "amax")
    assert derived.proofs == (
        Proof("amax", "rising", "max(f(u)) = f(max(u)), f = addmm, then relu, then log1p"),
    )
    (fold,) = [v for v in derived.values.values if v.origin == "amax" and isinstance(v.kind, Fold)]
    assert derived.values.values[fold.kind.source].kind.times is not None


@pytest.mark.parametrize(
    "mask",
    [
        lambda y, keep: y * keep[..., None],
        lambda y, keep: keep[..., None].float() * y,
        lambda y, keep: y.masked_fill(~keep[..., None], 0.0),
        lambda y, keep: torch.where(keep[..., None], y, 0.0),
    ],
)
def test_splade_head_with_a_mask(mask: Callable[..., torch.Tensor]) -> None:
    def head(h: torch.Tensor, w: torch.Tensor, b: torch.Tensor, keep: torch.Tensor):
        return mask(torch.log1p(torch.relu(F.linear(h, w, b))), keep).amax(1)

    derived = checked(head, [t(2, 5, 4), t(6, 4), t(6), t(2, 5, dtype=torch.bool)], "amax")
    (proof,) = derived.proofs
    assert proof.rule == "rising"
    assert "log1p" in proof.formula
    last = derived.values.values[derived.values.outputs[0].value]
    assert last.kind.op is Op.LOG1P


def test_a_mask_of_any_number_keeps_the_operations_in_the_loop() -> None:
    values = traced(lambda x, m: (torch.log1p(torch.relu(x)) * m).amax(-1), t(3, 8), t(3, 8))
    assert derive(values, looped(values, "amax")).values is values


def test_falling_operations_swap_the_extremum() -> None:
    derived = checked(lambda x, b: (b - torch.tanh(x) * 2).amax(-1), [t(3, 8), t(3, 1)], "amax")
    (fold,) = [v.kind for v in derived.values.values if isinstance(v.kind, Fold)]
    assert fold.monoid is MIN
    assert formulas(derived) == ["max(f(u)) = f(min(u)), f = tanh, then mul, then sub"]


def test_a_maximum_that_waits_for_a_sum() -> None:
    derived = checked(lambda x: (x - x.mean(-1, keepdim=True)).amax(-1), [t(3, 8)], "amax")
    assert formulas(derived) == ["max(f(u)) = f(max(u)), f = sub"]


def test_a_cast_of_the_users_rounds_the_maximum_once() -> None:
    values = traced(lambda x: x.bfloat16().amax(-1), t(3, 8))
    derived = derive(values, looped(values, "amax"))
    assert formulas(derived) == ["max(f(u)) = f(max(u)), f = _to_copy"]


@pytest.mark.parametrize(
    "function",
    [
        lambda x, b: torch.log(x).amax(-1),  # not of values of at least 0
        lambda x, b: torch.cos(x).amax(-1),
        lambda x, b: (x * b).amax(-1),  # of either sign
        lambda x, b: (x * x).amax(-1),
        lambda x, b: x.amax(-1),
        lambda x, b: x.double().amax(-1),  # only a copy
    ],
)
def test_extrema_that_stay(function: Callable[..., object]) -> None:
    values = traced(function, t(3, 8), t(3, 1))
    derived = derive(values, looped(values, "amax"))
    assert derived.values is values
    assert not derived.proofs
    assert not derived.refusals


def test_what_else_reads_the_operations_keeps_them_in_the_loop() -> None:
    def shared(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.relu(x)
        z = torch.tanh(y)
        return z.amax(-1), y.sum(-1)

    derived = checked(shared, [t(3, 8)], "amax")
    assert formulas(derived) == ["max(f(u)) = f(max(u)), f = tanh"]


def test_the_target_of_a_cross_entropy_is_picked_in_passing() -> None:
    def loss(h: torch.Tensor, w: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        logits = F.log_softmax(h @ w, -1)
        hit = torch.arange(6, device=h.device) == target[:, None]
        return -torch.where(hit, logits, 0.0).sum(-1)

    inputs = [t(3, 4), t(4, 6), t(3, dtype=torch.int64)]
    values = traced(loss, *inputs)
    over = looped(values, "amax")
    derived = derive(values, over)
    assert not derived.refusals
    assert folds(derived) == {"sum_1": {-1.0: "amax"}}
    assert derived.proofs[-1].rule == "pick"
    contents = buffers(values)
    (number,) = [v.kind.input for v in values.values if v.dtype == "int64" and is_load(v)]
    contents[number] = np.array([5, 0, -100])
    assert assert_streams(values, derived, over, contents, 4) == 1
    assert unstreamed(values, contents)[0].flatten()[2] == 0, "a target that is no class"


def test_only_one_element_is_picked() -> None:
    def several(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        later = torch.arange(8, device=x.device) >= i
        return torch.where(later, torch.tanh(x * x.amax(-1, keepdim=True)), 0.0).sum(-1)

    reason = refusal(several, [t(3, 8), t(3, 1, dtype=torch.int64)], "sum_1")
    assert reason == "tanh is no product: amax cannot leave it"


def test_one_element_is_picked_only_by_an_index_that_stays() -> None:
    def moving(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        hit = torch.arange(8, device=x.device) == i
        return torch.where(hit, torch.tanh(x * x.amax(-1, keepdim=True)), 0.0).sum(-1)

    reason = refusal(moving, [t(3, 8), t(3, 8, dtype=torch.int64)], "sum_1")
    assert reason == "tanh is no product: amax cannot leave it"


def test_a_product_of_exponentials_follows_both() -> None:
    def squared(x: torch.Tensor) -> torch.Tensor:
        e = torch.exp(x - x.amax(-1, keepdim=True))
        return (e * e).sum(-1)

    derived = checked(squared, [t(3, 8)], "amax")
    assert folds(derived) == {"sum_1": {-2.0: "amax"}}
    assert formulas(derived) == ["H(t, x, x') = t * exp(2 * (x - x')), x = amax"]
