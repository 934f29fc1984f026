"""Derived online reductions: what is accepted with which H, what is refused at which step, and
streamed against unstreamed evaluation in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from corpus import graph_of
from fusionplan.planner.graph import Ref, TensorType
from fusionplan.planner.online import Correction, Derived, Proof, derive
from fusionplan.planner.ops import MAX, MIN, OPS, SUM, Monoid, Pointwise
from fusionplan.planner.trace import trace
from fusionplan.planner.values import (
    Compute,
    Fold,
    Index,
    Literal,
    Load,
    LoadDim,
    Output,
    Value,
    Values,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import whole_group

# --- evaluation in float64 ---------------------------------------------------------------------

Array = np.ndarray
Inputs = Mapping[int, Array]


def row(name: str) -> Pointwise:
    found = OPS[f"aten.{name}"]
    assert isinstance(found, Pointwise)
    return found


FUNCTIONS: dict[str, Callable[..., Array]] = {
    text: function
    for name, function in {
        "tanh.default": np.tanh,
        "log.default": np.log,
        "log1p.default": np.log1p,
        "sqrt.default": np.sqrt,
        "rsqrt.default": lambda self: 1 / np.sqrt(self),
        "reciprocal.default": lambda self: 1 / self,
        "cos.default": np.cos,
        "abs.default": np.abs,
        "relu.default": lambda self: np.where(self < 0, 0, self),
        "sigmoid.default": lambda self: 1 / (1 + np.exp(-self)),
        "maximum.default": np.maximum,
        "clamp_min.default": np.maximum,
        "eq.Scalar": np.equal,
        "le.Tensor": np.less_equal,
        "ge.Tensor": np.greater_equal,
        "logical_not.default": lambda self: self == 0,
        "logical_and.default": np.logical_and,
        "ge.Scalar": np.greater_equal,
        "lt.Scalar": np.less,
    }.items()
    for text in (row(name).expr, row(name).relaxed, row(name).wide)
    if text
}
LAWS: dict[str, Callable[..., Array]] = {
    "copy": lambda x: x,
    "add": lambda self, other, alpha=1: self + other * alpha,
    "sub": lambda self, other, alpha=1: self - other * alpha,
    "rsub": lambda self, other, alpha=1: other - self * alpha,
    "mul": lambda self, other: self * other,
    "div": lambda self, other: self / other,
    "neg": lambda self: -self,
    "exp": np.exp,
    "exp2": np.exp2,
    "select": np.where,
}
REDUCE = {"sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min}
COMBINE = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
IDENTITY = {"sum": 0.0, "prod": 1.0, "max": -math.inf, "min": math.inf}


@dataclass
class Evaluation:
    """Values as arrays with one axis for every factor, over the indices `at` of each factor;
    `known` are values that need not be computed."""

    values: Values
    inputs: Inputs
    at: Mapping[int, Array]
    known: dict[int, Array] = field(default_factory=dict)

    def index(self, factors: Sequence[int]) -> Array:
        order = list(self.values.extents)
        total = np.zeros((1,) * len(order), dtype=np.int64)
        for factor in factors:
            shape = [-1 if f == factor else 1 for f in order]
            total = total * self.values.extents[factor] + self.at[factor].reshape(shape)
        return total

    def __getitem__(self, value: int) -> Array:
        if value not in self.known:
            with np.errstate(all="ignore"):
                self.known[value] = self._evaluate(self.values.values[value])
        return self.known[value]

    def _evaluate(self, value: Value) -> Array:
        match value.kind:
            case Load(input=number, dims=dims):
                offset = np.zeros((1,) * len(self.values.extents), dtype=np.int64)
                for dim in dims:
                    assert dim.limit is None
                    offset = offset + dim.stride * (dim.start + dim.step * self.index(dim.factors))
                return self.inputs[number][offset]
            case Index(factors=factors, start=start, step=step):
                return start + step * self.index(factors)
            case Literal(number=number):
                return np.full((1,) * len(self.values.extents), number)
            case Compute(operands=operands, law=law, expr=expr):
                function = LAWS[law] if law in LAWS else FUNCTIONS[expr]
                return function(*(self[a.node] if isinstance(a, Ref) else a for _, a in operands))
            case Fold() as fold:
                return self.finished(fold, self.part(fold))
        raise AssertionError(value)

    def part(self, fold: Fold) -> Array:
        """The fold of the indices there are."""
        source = self[fold.source] * (1 if fold.times is None else self[fold.times])
        order = list(self.values.extents)
        shape = [len(self.at[f]) if f in fold.reduced else 1 for f in order]
        source = source + np.zeros(shape) if fold.monoid.name == "sum" else source
        axes = tuple(order.index(f) for f in fold.reduced)
        return REDUCE[fold.monoid.name](source, axis=axes, keepdims=True)

    def finished(self, fold: Fold, total: Array) -> Array:
        count = math.prod(self.values.extents[f] for f in fold.reduced)
        return total / count if fold.mean else total


def whole(values: Values) -> dict[int, Array]:
    return {f: np.arange(n) for f, n in values.extents.items()}


def unstreamed(values: Values, inputs: Inputs) -> list[Array]:
    found = Evaluation(values, inputs, whole(values))
    return [found[o.value] for o in values.outputs]


def carried(values: Values, over: frozenset[int]) -> list[int]:
    return [v.id for v in values.values if isinstance(v.kind, Fold) and over <= set(v.kind.reduced)]


def streamed(
    derived: Derived, over: frozenset[int], inputs: Inputs, block: int
) -> tuple[list[Array], int]:
    """The outputs, computed block by block along the first of the looped factors, and how many
    passes that took."""
    values, along = derived.values, min(over)
    blocks = np.split(np.arange(values.extents[along]), range(block, values.extents[along], block))
    folds = carried(values, over)
    done: dict[int, Array] = {}
    passes = 0
    while len(done) < len(folds):
        here = _ready(derived, folds, done)
        assert here, "folds wait for each other"
        state: dict[int, Array] = {}
        for indices in blocks:
            state = _turn(derived, here, state, done, {**whole(values), along: indices}, inputs)
        every = Evaluation(values, inputs, whole(values))
        done |= {f: every.finished(values.values[f].kind, t) for f, t in state.items()}
        passes += 1
    final = Evaluation(values, inputs, whole(values), dict(done))
    return [final[o.value] for o in values.outputs], passes


def _ready(derived: Derived, folds: list[int], done: Mapping[int, Array]) -> list[int]:
    """The folds of the next pass: they wait for nothing, or follow extrema of the same pass."""
    reads: list[frozenset[int]] = []
    here: list[int] = []
    for value in derived.values.values:
        own = frozenset().union(*(reads[r] for r in value.reads))
        if value.id in folds:
            correction = derived.corrections.get(value.id, Correction(()))
            joined = {x for _, x in correction.exponent} & set(here)
            if value.id not in done and own <= joined | set(done):
                here.append(value.id)
            own = frozenset({value.id})
        reads.append(own)
    return here


def _turn(
    derived: Derived,
    here: list[int],
    old: dict[int, Array],
    done: Mapping[int, Array],
    at: Mapping[int, Array],
    inputs: Inputs,
) -> dict[int, Array]:
    """One block: extrema first, then what follows them. An extremum that is still infinite counts
    as 0 in an exponent."""
    new: dict[int, Array] = {}
    known = dict(done)
    for fold in here:
        kind = derived.values.values[fold].kind
        name = kind.monoid.name
        part = Evaluation(derived.values, inputs, at, dict(known)).part(kind)
        total = old.get(fold, np.full_like(part, IDENTITY[name]))
        correction = derived.corrections.get(fold)
        if correction is not None and old:
            with np.errstate(all="ignore"):
                power = sum(
                    np.where(old[x] == new[x], 0.0, c * (new[x] - old[x]))
                    for c, x in correction.exponent
                )
                total = total * (np.exp2(power) if correction.base == "2" else np.exp(power))
        new[fold] = COMBINE[name](total, part)
        known[fold] = np.where(new[fold] == IDENTITY[name], 0.0, new[fold])
    return new


def assert_streams(
    values: Values, derived: Derived, over: frozenset[int], inputs: Inputs, block: int
) -> int:
    """Both evaluations agree to 1e-9, NaN included; returns the passes."""
    exact = unstreamed(values, inputs)
    rewritten = unstreamed(derived.values, inputs)
    mine, passes = streamed(derived, over, inputs, block)
    for want, same, own in zip(exact, rewritten, mine, strict=True):
        scale = np.abs(want[np.isfinite(want)]).max(initial=1e-300)
        np.testing.assert_allclose(same, want, rtol=1e-9, atol=1e-9 * scale)
        np.testing.assert_allclose(own, want, rtol=1e-9, atol=1e-9 * scale)
    return passes


# --- graphs as users write them ----------------------------------------------------------------


def traced(function: Callable[..., object], *inputs: torch.Tensor) -> Values:
    return trace(whole_group(graph_of(function, inputs)).graph)


def looped(values: Values, origin: str) -> frozenset[int]:
    """The factors that the first fold of this name reduces."""
    return frozenset(
        next(
            v.kind.reduced for v in values.values if isinstance(v.kind, Fold) and v.origin == origin
        )
    )


def buffers(values: Values, seed: int = 0) -> dict[int, Array]:
    """Random contents of every input that the values load."""
    rng = np.random.default_rng(seed)
    found = {}
    for value in values.values:
        if isinstance(value.kind, Load):
            last = sum(
                d.stride
                * (d.start + d.step * (math.prod(values.extents[f] for f in d.factors) - 1))
                for d in value.kind.dims
            )
            filled = rng.standard_normal(last + 1)
            found[value.kind.input] = filled > 0 if value.dtype == "bool" else filled
    return found


def checked(
    function: Callable[..., object], inputs: Sequence[torch.Tensor], origin: str
) -> Derived:
    """The derivation for a function, streamed over the axis of its fold `origin`; one pass."""
    values = traced(function, *inputs)
    over = looped(values, origin)
    derived = derive(values, over)
    assert not derived.refusals
    for block in (1, 3, 64):
        assert assert_streams(values, derived, over, buffers(values), block) == 1
    again = derive(derived.values, over)
    assert again.values is derived.values, "nothing is left to rewrite"
    assert again.corrections == derived.corrections
    return derived


def is_load(value: Value) -> bool:
    return isinstance(value.kind, Load)


def folds(derived: Derived) -> dict[str, dict[float, str]]:
    """By origin of each corrected fold: origins of the extrema by their coefficients."""
    origins = [v.origin for v in derived.values.values]
    return {
        origins[fold]: {c: origins[x] for c, x in h.exponent}
        for fold, h in derived.corrections.items()
    }


def formulas(derived: Derived) -> list[str]:
    return [proof.formula for proof in derived.proofs]


def t(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


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
    assert last.kind.law == "div"


def test_attention_in_bfloat16_moves_the_division_out_of_the_casts() -> None:
    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ k.transpose(-1, -2), -1, dtype=torch.float32).to(v.dtype) @ v

    derived = checked(attention, [x.bfloat16() for x in (Q, K, V)], "amax")
    assert "sum(u / x) = sum(u) / x, x = sum_1" in formulas(derived)
    (dot,) = [
        v for v in derived.values.values if v.id in derived.corrections and v.origin == "bmm_1"
    ]
    assert dot.kind.operand == "bfloat16"
    assert derived.values.values[dot.kind.source].kind.law == "copy"


def test_grouped_queries_and_a_bias_along_the_keys() -> None:
    def attention(q, k, v, bias):
        q = q.view(2, 3, 2, 5, 4)
        scores = q @ k[:, :, None].transpose(-1, -2) + bias
        return torch.softmax(scores, -1) @ v[:, :, None]

    derived = checked(attention, [t(2, 6, 5, 4), K, V, t(7)], "amax")
    assert folds(derived)["bmm_1"] == {-1.0: "amax"}


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
    assert weights.kind.law == "div"
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
    assert last.kind.expr == row("log1p.default").expr


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


@pytest.mark.parametrize(
    "function",
    [
        lambda x, b: torch.log(x).amax(-1),  # not of values of at least 0
        lambda x, b: torch.cos(x).amax(-1),
        lambda x, b: (x * b).amax(-1),  # of either sign
        lambda x, b: (x * x).amax(-1),
        lambda x, b: x.amax(-1),
        lambda x, b: x.bfloat16().amax(-1),  # only a copy
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
        return torch.where(later, x - x.amax(-1, keepdim=True), 0.0).sum(-1)

    reason = refusal(several, [t(3, 8), t(3, 1, dtype=torch.int64)], "sum_1")
    assert reason == "sub is no product: amax cannot leave it"


def test_one_element_is_picked_only_by_an_index_that_stays() -> None:
    def moving(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        hit = torch.arange(8, device=x.device) == i
        return torch.where(hit, x - x.amax(-1, keepdim=True), 0.0).sum(-1)

    reason = refusal(moving, [t(3, 8), t(3, 8, dtype=torch.int64)], "sum_1")
    assert reason == "sub is no product: amax cannot leave it"


def test_a_product_of_exponentials_follows_both() -> None:
    def squared(x: torch.Tensor) -> torch.Tensor:
        e = torch.exp(x - x.amax(-1, keepdim=True))
        return (e * e).sum(-1)

    derived = checked(squared, [t(3, 8)], "amax")
    assert folds(derived) == {"sum_1": {-2.0: "amax"}}
    assert formulas(derived) == ["H(t, x, x') = t * exp(2 * (x - x')), x = amax"]


# --- refusals ----------------------------------------------------------------------------------


def refusal(
    function: Callable[..., object], inputs: Sequence[torch.Tensor], fold: str, axis: str = ""
) -> str:
    """Why a fold keeps a later pass, streamed over the axis of the fold `axis`, or its own."""
    values = traced(function, *inputs)
    over = looped(values, axis or fold)
    derived = derive(values, over)
    assert assert_streams(values, derived, over, buffers(values), 3) > 1
    assert derived.refusals[fold].rule == "online"
    return derived.refusals[fold].reason


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


def test_refused_variance() -> None:
    reason = refusal(lambda x: torch.var(x, -1), [t(3, 8)], "sum_2")
    assert reason == "sub is no product: sum_1 cannot leave it"


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


# --- random expressions ------------------------------------------------------------------------

ROWS, KEYS, INNER, WIDTH = 0, 1, 2, 3
EXTENTS = {ROWS: 3, KEYS: 12, INNER: 2, WIDTH: 4}
OVER = frozenset({KEYS})


class Builder:
    """Values of float64 over the factors above."""

    def __init__(self) -> None:
        self.values: list[Value] = []

    def add(self, kind: object, axes: Sequence[int], dtype: str, origin: str) -> int:
        number = len(self.values)
        name = f"{origin}_{number}"
        self.values.append(Value(number, kind, tuple((a,) for a in axes), dtype, name))
        return number

    def axes(self, *values: int) -> list[int]:
        return sorted({f for v in values for f in self.values[v].axes})

    def load(self, *axes: int, dtype: str = "float64") -> int:
        strides = [math.prod(EXTENTS[a] for a in axes[i + 1 :]) for i in range(len(axes))]
        dims = tuple(LoadDim((a,), s) for a, s in zip(axes, strides, strict=True))
        return self.add(Load(len(self.values), dims, dtype), axes, dtype, "load")

    def op(
        self, name: str, *operands: int | float, names: Sequence[str] = ("self", "other")
    ) -> int:
        found = row(name)
        refs = [v for v in operands if type(v) is int]
        named = tuple(
            (n, Ref(v) if type(v) is int else v) for n, v in zip(names, operands, strict=False)
        )
        expr = (found.wide or found.expr).replace(" * {alpha}", "")
        result = "bool" if found.promotion == "bool" else "float64"
        kind = Compute(expr, named, "float64", result, found.cost, found.law)
        return self.add(kind, self.axes(*refs), result, name.partition(".")[0])

    def where(self, mask: int, value: int, otherwise: float) -> int:
        other = self.add(Literal(otherwise), (), "float64", "literal")
        return self.op("where.self", mask, value, other, names=("condition", "self", "other"))

    def copy(self, value: int) -> int:
        kind = Compute("{x}", (("x", Ref(value)),), None, "float64", "move", "copy")
        return self.add(kind, self.axes(value), "float64", "copy")

    def fold(
        self, monoid: Monoid, source: int, times: int | None = None, over: int = KEYS, mean=False
    ) -> int:
        axes = self.axes(source, *(() if times is None else (times,)))
        kind = Fold(monoid, source, (over,), mean, times, "" if times is None else "float64")
        return self.add(kind, [a for a in axes if a != over], "float64", monoid.name)

    def finish(self, outputs: Sequence[int]) -> Values:
        stores = tuple(
            Output(
                i,
                v,
                self.values[v].dims,
                TensorType(tuple(EXTENTS[a] for a in self.axes(v)), (), "float64"),
            )
            for i, v in enumerate(outputs)
        )
        return Values(tuple(self.values), stores, EXTENTS)


def scores(b: Builder, draw: Callable[..., object], mask: int) -> int:
    """A streamed value: products, biases, caps and masks."""
    score = b.load(ROWS, KEYS)
    if draw(st.booleans()):
        score = b.fold(SUM, b.load(ROWS, INNER), b.load(KEYS, INNER), over=INNER)
    for step in draw(
        st.lists(st.sampled_from(["scale", "cap", "bias", "cast", "shift"]), max_size=3)
    ):
        match step:
            case "scale":
                score = b.op("mul.Tensor", score, draw(st.sampled_from([0.5, 3.0, 40.0])))
            case "cap":
                score = b.op("mul.Tensor", b.op("tanh.default", score), 5.0)
            case "bias":
                score = b.op("add.Tensor", b.load(KEYS), score)
            case "cast":
                score = b.copy(score)
            case "shift":
                score = b.op("sub.Tensor", score, 700.0)
    return b.where(mask, score, -math.inf) if draw(st.booleans()) else score


def weight(b: Builder, draw: Callable[..., object], score: int, mask: int) -> int:
    """exp of a difference to a running extremum, in the forms that users write."""
    name = draw(st.sampled_from(["exp.default", "exp2.default"]))
    form = draw(st.sampled_from(["plain", "scaled", "least", "sink", "guard", "lse", "masked"]))
    if form == "least":
        least = b.fold(MIN, b.op("neg.default", score))
        return b.op(name, b.op("add.Tensor", least, score))
    top = b.fold(MAX, score)
    match form:
        case "sink":
            top = b.op("maximum.default", top, b.load(ROWS))
        case "guard":
            literal = b.add(Literal(0.0), (), "float64", "literal")
            infinite = b.op("eq.Scalar", b.op("abs.default", top), math.inf)
            names = ("condition", "self", "other")
            top = b.op("where.self", infinite, literal, top, names=names)
        case "lse":
            total = b.fold(SUM, b.op(name, b.op("sub.Tensor", score, top)))
            top = b.op("add.Tensor", b.op("log.default", total), top)
    difference = b.op("sub.Tensor", score, top)
    if form == "scaled":
        difference = b.op("div.Tensor", difference, 1.5)
    if form == "masked":
        difference = b.where(mask, difference, -math.inf)
    return b.op(name, difference)


def multiplied(b: Builder, draw: Callable[..., object], value: int, mask: int, total: int) -> int:
    """The value times what streams, what a mask selects and what folds give."""
    steps = ["streamed", "mask", "total", "norm", "neg", "cast", "square"]
    for step in draw(st.lists(st.sampled_from(steps), max_size=4)):
        match step:
            case "streamed":
                value = b.op("mul.Tensor", b.load(ROWS, KEYS), value)
            case "mask":
                value = b.where(mask, value, 0.0)
            case "total":
                value = b.op("div.Tensor", value, b.op("add.Tensor", total, 0.5))
            case "norm":
                other = b.load(ROWS, KEYS)
                squares = b.fold(SUM, b.op("mul.Tensor", other, other))
                value = b.op("mul.Tensor", value, b.op("rsqrt.default", squares))
            case "neg":
                value = b.op("neg.default", value)
            case "square":
                value = b.op("mul.Tensor", value, value)
            case "cast":
                value = b.copy(value)
    return value


def expressions(draw: Callable[..., object]) -> Values:
    b = Builder()
    mask = b.load(ROWS, KEYS, dtype="bool")
    score = scores(b, draw, mask)
    e = weight(b, draw, score, mask)
    total = b.fold(SUM, e)
    outputs = [total]
    for kind in draw(
        st.lists(st.sampled_from(["sum", "mean", "dot", "max"]), min_size=1, max_size=3)
    ):
        product = multiplied(b, draw, e, mask, total)
        match kind:
            case "sum" | "mean":
                outputs.append(b.fold(SUM, product, mean=kind == "mean"))
            case "dot":
                outputs.append(b.fold(SUM, b.copy(product), b.load(KEYS, WIDTH)))
            case "max":
                rising = b.op("tanh.default", b.op("sub.Tensor", b.load(ROWS), score))
                outputs.append(b.fold(MAX, rising))
    return b.finish(outputs)


@given(st.data(), st.integers(0, 2**16), st.integers(1, 12), st.integers(0, 11))
@settings(deadline=None, max_examples=150)
def test_streamed_agrees_with_unstreamed(
    data: st.DataObject, seed: int, block: int, masked: int
) -> None:
    """Rows start with `masked` keys that count -inf where the mask is used."""
    values = expressions(data.draw)
    derived = derive(values, OVER)
    assert not derived.refusals
    assert derived.corrections
    contents = buffers(values, seed)
    mask = contents[0].reshape(EXTENTS[ROWS], EXTENTS[KEYS])
    mask[0, :masked], mask[:, -1] = False, True
    assert assert_streams(values, derived, OVER, contents, block) == 1
