"""Sums of w * (v + x) that follow x: divergences, entropies, losses of soft labels in one sweep."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from fusionplan.planner.config import LOOP, Config, Layout
from fusionplan.planner.graph.op import Op
from fusionplan.planner.nests.group_nests import Schedule, schedule_group
from fusionplan.planner.values.values import Compute
from oracle import DEVICE, captured, check, whole_group
from streamed import checked, formulas, refusal, t

pytestmark = pytest.mark.dynamo


def divergence(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    left, right = F.log_softmax(p, -1), F.log_softmax(q, -1)
    return F.kl_div(left, right, reduction="none", log_target=True).sum(-1)


def soft_labels(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return -(q.softmax(-1) * F.log_softmax(p, -1)).sum(-1)


def entropy(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    left = F.log_softmax(p + q, -1)
    return -(left.exp() * left).sum(-1) / 3


def smoothing(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return F.log_softmax(p - q, -1).mean(-1)


def by_log_sum(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    left = p - torch.logsumexp(p, -1, keepdim=True)
    right = q - torch.logsumexp(q, -1, keepdim=True)
    return (2 * right.exp() * (right - left)).sum(-1)


def masked(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return torch.where(q > 0, q.softmax(-1) * F.log_softmax(p, -1), 0.0).sum(-1)


def from_below(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return (p - p.amin(-1, keepdim=True)).mean(-1) + (q.amax(-1, keepdim=True) - q).sum(-1)


FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    each.__name__: each
    for each in (divergence, soft_labels, entropy, smoothing, by_log_sum, masked, from_below)
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_one_pass_in_exact_arithmetic(name: str) -> None:
    first = {"entropy": "amax", "smoothing": "amax", "from_below": "amin"}.get(name, "amax_1")
    derived = checked(FUNCTIONS[name], [t(3, 8), t(3, 8)], first)
    assert "shift" in {proof.rule for proof in derived.proofs}


def test_the_statement_of_an_entropy() -> None:
    derived = checked(lambda x: (F.log_softmax(x, -1).exp() * F.log_softmax(x, -1)).sum(-1), [
        t(3, 8)
    ], "amax")  # fmt: skip
    assert formulas(derived)[1:] == [
        "sum(u * x) = sum(u) * x, x = exp(-log)",
        "sum(w * (v + x)) = sum(w * v) + x * sum(w), x = log",
        "H(t, x, x') = (t + (x - x') * s) * exp(x - x'), s = sum(w), x = amax",
    ]


def test_logits_of_16_bits_have_one_exponential_each() -> None:
    """The weights and the sum that they are divided by, whatever casts stand between them."""
    inputs = [torch.ones(6, 1000, dtype=torch.bfloat16, device=DEVICE) for _ in range(2)]
    found = schedule_group(whole_group(captured(divergence, inputs)[0].graph).graph, LOOP)
    assert isinstance(found, Schedule), found
    kinds = [value.kind for value in found.kernels[0].nest.values]
    exponentials = [k for k in kinds if isinstance(k, Compute) and k.op is Op.EXP]
    assert len(exponentials) == 3  # one of them of a row


def rows(kind: str, length: int) -> list[torch.Tensor]:
    p, q = (3 * torch.randn(6, length, generator=torch.Generator().manual_seed(s)) for s in (1, 2))
    half = length // 2
    match kind:
        case "far from zero":
            p, q = p + 3000, q - 2000
        case "minus infinity":
            p[0, 5], q[1, 7], p[2], q[3], q[4, :half], p[5, :half] = [-torch.inf] * 6
        case "large negative":
            p[5, :half], q[5, :half], q[4, :half] = -1e30, -1e30, -3e38
        case "no numbers":
            p[0, 5], q[1, 5], p[2, 9], q[3, length - 1] = torch.nan, torch.nan, torch.inf, torch.inf
    return [p.to(DEVICE), q.to(DEVICE)]


KINDS = ("plain", "far from zero", "minus infinity", "large negative", "no numbers")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_one_loop_gives_what_eager_gives(name: str, kind: str) -> None:
    """Every lane its own state, blocks that end past the row."""
    inputs = rows(kind, 1000)
    group = whole_group(captured(FUNCTIONS[name], inputs)[0].graph).graph
    config = Config((("r0", 128), ("x0", 2)), reduction="loop", num_warps=1)
    found = schedule_group(group, config.layout)
    assert isinstance(found, Schedule), found
    (loop,) = found.kernels[0].nest.loops()
    assert loop.carries
    assert check(FUNCTIONS[name], inputs, [config]) == 1


@pytest.mark.parametrize("name", FUNCTIONS)
def test_one_loop_over_columns(name: str) -> None:
    """The weights of every lane have fewer dimensions than what they are weights of."""

    def columns(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        return FUNCTIONS[name](p.mT, q.mT)

    inputs = [x.mT.contiguous() for x in rows("plain", 100)]
    configs = [
        Config((("r0", r), ("x0", 8)), reduction="loop", num_warps=1)
        for r in (32, 8)  # with as many of both a wrong dimension would be no error
    ]
    group = whole_group(captured(columns, inputs)[0].graph).graph
    found = schedule_group(group, configs[0].layout)
    assert isinstance(found, Schedule), found
    assert check(columns, inputs, configs) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_of_several_lanes(kind: str) -> None:
    """Whole vectors of a thread have one state."""
    inputs = rows(kind, 1024)
    config = Config((("r0", 256), ("x0", 1)), reduction="loop", num_warps=1)
    assert check(divergence, inputs, [config]) == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["divergence", "smoothing", "masked"])
def test_parts_of_a_row_are_put_together(name: str, kind: str) -> None:
    inputs = rows(kind, 4096)
    group = whole_group(captured(FUNCTIONS[name], inputs)[0].graph).graph
    found = schedule_group(group, Layout("natural", "loop", 8))
    assert isinstance(found, Schedule), found
    names = sorted({axis.name for kernel in found.kernels for axis in kernel.nest.axes})
    sizes = {"r": 256, "x": 1, "y": 2, "s": 8}
    config = Config(tuple((n, sizes[n[0]]) for n in names), reduction="loop", split=8, num_warps=1)
    assert check(FUNCTIONS[name], inputs, [config]) == 2


@pytest.mark.parametrize(
    "function, why",
    [
        (
            lambda x, y: (y * (x - x.mean(-1, keepdim=True))).sum(-1),
            "sub adds sum_1, which is no running extremum and no logarithm",
        ),
        (
            lambda x, y: (x - (x + y).amax(-1, keepdim=True)).sum(-1),
            "sub adds amax, which is no running extremum of that value",
        ),
        (
            lambda x, y: (x + y - 2 * x.amax(-1, keepdim=True)).sum(-1),
            "sub adds amax, which is no running extremum of that value",
        ),
        (
            lambda x, y: ((x - x.amax(-1, True)) * (y - y.amax(-1, True))).sum(-1),
            "two factors of the source add folds that are under way",
        ),
    ],
)
def test_what_would_lose_digits_keeps_its_pass(function: Callable[..., object], why: str) -> None:
    fold = "sum_2" if "mean" in why or "sum_1" in why else "sum_1"
    assert refusal(function, [t(3, 8), t(3, 8)], fold) == why
