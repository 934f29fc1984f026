"""Derived online reductions that are refused: at which step, and in how many passes they run."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from fusionplan.planner.stream.online import derive
from streamed import assert_streams, buffers, folds, looped, refusal, t, traced

pytestmark = pytest.mark.dynamo


def test_refused_where_the_fold_reduces_what_the_multiplier_varies_over() -> None:
    reason = refusal(lambda x: torch.softmax(x, -1).sum(), [t(3, 8)], "sum_2", "sum_1")
    assert reason == "amax in the exponent varies over what the sum reduces"


def test_refused_part_of_the_looped_axis() -> None:
    values = traced(lambda x: (x.view(3, 4, 2).sum(-1), x.amax(-1)), t(3, 8))
    derived = derive(values, looped(values, "amax"))
    assert derived.refusals["sum_1"].reason == "sum_1 reduces only a part of the looped axis"


def test_refused_product_of_what_is_under_way() -> None:
    reason = refusal(lambda x: (x / x.amax(-1, keepdim=True)).prod(-1), [t(3, 8)], "prod")
    assert reason == "no rule corrects a prod under way"


def test_refused_distances_that_are_not_squared() -> None:
    def weighted(x):
        return ((x - x.mean(-1, keepdim=True)) * x).sum(-1)

    reason = refusal(weighted, [t(3, 8)], "sum_2")
    assert reason == "sub adds sum_1, which is no running extremum and no logarithm"


def test_refused_sum_of_a_nonlinear_function() -> None:
    reason = refusal(lambda x: torch.tanh(x * x.sum(-1, keepdim=True)).sum(-1), [t(3, 8)], "sum_2")
    assert reason == "tanh is no product: sum_1 cannot leave it"


def test_refused_exponent_that_follows_a_sum() -> None:
    reason = refusal(lambda x: torch.exp(x - x.mean(-1, keepdim=True)).sum(-1), [t(3, 8)], "sum_2")
    assert reason == "the exponent of exp follows sum_1, which is no running maximum or minimum"


def test_refused_exponent_that_is_not_linear() -> None:
    reason = refusal(
        lambda x: torch.exp(-torch.tanh(x.amax(-1, keepdim=True) - x)).sum(-1), [t(3, 8)], "sum_1"
    )
    assert reason == "tanh in the exponent is not linear in amax"


def test_refused_maximum_of_something_else() -> None:
    reason = refusal(
        lambda x, y: torch.exp(x * y - y.amax(-1, keepdim=True)).sum(-1),
        [t(3, 8), t(3, 8)],
        "sum_1",
    )
    assert reason == "exp is not bounded while amax, no extremum of its exponent, is under way"


def test_refused_exponent_with_the_wrong_sign() -> None:
    reason = refusal(lambda x: torch.exp(x - x.amin(-1, keepdim=True)).sum(-1), [t(3, 8)], "sum_1")
    assert "not bounded while amin" in reason


def test_refused_two_bases() -> None:
    def both(x: torch.Tensor) -> torch.Tensor:
        d = x - x.amax(-1, keepdim=True)
        return (torch.exp(d) * torch.exp2(d)).sum(-1)

    assert refusal(both, [t(3, 8)], "sum_1") == "the source holds both exp and exp2"


def test_refused_streamed_divisor() -> None:
    reason = refusal(lambda x: (1 / (x + x.amax(-1, keepdim=True))).sum(-1), [t(3, 8)], "sum_1")
    assert reason == "reciprocal is no product: amax cannot leave it"


def test_refused_choice_by_a_fold() -> None:
    reason = refusal(
        lambda x: torch.where(x == x.amax(-1, keepdim=True), x, 0.0).sum(-1), [t(3, 8)], "sum_1"
    )
    assert reason == "where chooses by eq"


@pytest.mark.parametrize(
    "hidden",
    [
        lambda s, other: torch.all(s.eq(torch.inf), -1, keepdim=True),
        lambda s, other: torch.all((s * other).eq(-torch.inf), -1, keepdim=True),
        lambda s, other: s.amax(-1, keepdim=True) == 0,
    ],
    ids=["other infinity", "other elements", "other number"],
)
def test_refused_choice_by_what_does_not_tell_a_masked_row(
    hidden: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> None:
    def attention(s: torch.Tensor, other: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.where(hidden(s, other), 0.0, torch.softmax(s, -1)) @ v

    reason = refusal(attention, [t(3, 8), t(3, 8), t(8, 4)], "mm")
    assert reason.startswith("where chooses by ")


def test_refused_maximum_of_what_does_not_rise() -> None:
    reason = refusal(lambda x: torch.cos(x - x.amax(-1, keepdim=True)).amin(-1), [t(3, 8)], "amin")
    assert reason == "cos does not rise with all that is streamed in it"


def test_a_later_pass_has_its_own_online_sums() -> None:
    def twice(x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(x * x.sum(-1, keepdim=True))
        top = y.amax(-1, keepdim=True)
        return torch.exp(y - top).sum(-1)

    values = traced(twice, t(3, 8))
    over = looped(values, "sum_1")
    derived = derive(values, over)
    assert set(derived.refusals) == {"amax"}
    assert folds(derived) == {"sum_2": {-1.0: "amax"}}
    assert assert_streams(values, derived, over, buffers(values), 3) == 2
