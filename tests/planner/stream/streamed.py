"""Values evaluated in float64, whole and streamed over factors with the corrections that were
derived for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from corpus import graph_of
from fusionplan.planner.graph.graph import Ref
from fusionplan.planner.graph.op import Op
from fusionplan.planner.stream.online import Derived, derive, followed
from fusionplan.planner.trace.trace import trace
from fusionplan.planner.values.values import Compute, Fold, Index, Literal, Load, Value, Values
from oracle import whole_group

Array = np.ndarray
Inputs = Mapping[int, Array]


FUNCTIONS: dict[Op, Callable[..., Array]] = {
    Op.CONVERT: lambda self: self,
    Op.ADD: lambda self, other, alpha=1: self + other * alpha,
    Op.SUB: lambda self, other, alpha=1: self - other * alpha,
    Op.RSUB: lambda self, other, alpha=1: other - self * alpha,
    Op.MUL: lambda self, other: self * other,
    Op.DIV: lambda self, other: self / other,
    Op.NEG: lambda self: -self,
    Op.EXP: np.exp,
    Op.EXP2: np.exp2,
    Op.WHERE: np.where,
    Op.TANH: np.tanh,
    Op.LOG: np.log,
    Op.LOG1P: np.log1p,
    Op.SQRT: np.sqrt,
    Op.RSQRT: lambda self: 1 / np.sqrt(self),
    Op.RECIPROCAL: lambda self: 1 / self,
    Op.COS: np.cos,
    Op.ABS: np.abs,
    Op.RELU: lambda self: np.where(self < 0, 0, self),
    Op.SIGMOID: lambda self: 1 / (1 + np.exp(-self)),
    Op.MAXIMUM: np.maximum,
    Op.CLAMP_MIN: np.maximum,
    Op.EQ: np.equal,
    Op.LE: np.less_equal,
    Op.GE: np.greater_equal,
    Op.GT: np.greater,
    Op.LT: np.less,
    Op.LOGICAL_NOT: lambda self: self == 0,
    Op.LOGICAL_AND: np.logical_and,
}
REDUCE = {"sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min, "any": np.any}
COMBINE = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "any": np.logical_or,
}
IDENTITY = {"sum": 0.0, "prod": 1.0, "max": -math.inf, "min": math.inf, "any": False}


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
            case Compute(op=op, operands=operands):
                return FUNCTIONS[op](
                    *(self[a.node] if isinstance(a, Ref) else a for _, a in operands)
                )
            case Fold() as fold:
                return self.finished(fold, self.part(fold))
        raise AssertionError(value)

    def part(self, fold: Fold) -> Array:
        """The fold of the indices there are; squared distances are from their own mean."""
        if fold.about is not None:
            return self._spread(fold)
        source = self[fold.source] * (1 if fold.times is None else self[fold.times])
        order = list(self.values.extents)
        shape = [len(self.at[f]) if f in fold.reduced else 1 for f in order]
        source = source + np.zeros(shape) if fold.monoid.name == "sum" else source
        axes = tuple(order.index(f) for f in fold.reduced)
        return REDUCE[fold.monoid.name](source, axis=axes, keepdims=True)

    def _spread(self, fold: Fold) -> Array:
        order = list(self.values.extents)
        shape = [len(self.at[f]) if f in fold.reduced else 1 for f in order]
        source = self[fold.source] + np.zeros(shape)
        axes = tuple(order.index(f) for f in fold.reduced)
        return ((source - source.mean(axis=axes, keepdims=True)) ** 2).sum(axis=axes, keepdims=True)

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
    """The folds of the next sweep: they wait for nothing, or follow extrema of the same sweep."""
    reads: list[frozenset[int]] = []
    here: list[int] = []
    for value in derived.values.values:
        own = frozenset().union(*(reads[r] for r in value.reads))
        if value.id in folds:
            joined = set(here) & followed(derived.values.values, derived.corrections, value.id)
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
                scale = np.exp2(power) if correction.base == "2" else np.exp(power)
                total = total * scale
                for k, x in correction.shift:
                    before = np.where(old[x] == _identity(derived, x), 0.0, old[x])
                    total = total + k * (known[x] - before) * (old[kind.weight] * scale)
        new[fold] = COMBINE[name](total, part)
        if kind.about is not None and old:
            new[fold] = new[fold] + _apart(kind, at, old[kind.about], new[kind.about])
        known[fold] = np.where(new[fold] == IDENTITY[name], 0.0, new[fold])
    return new


def _identity(derived: Derived, extremum: int) -> float:
    return IDENTITY[derived.values.values[extremum].kind.monoid.name]


def _apart(fold: Fold, at: Mapping[int, Array], before: Array, after: Array) -> Array:
    """What the squared distances of two sets grow by when each is taken from the mean of both.
    before, after: the sums of the first and of both."""
    here = math.prod(len(at[f]) for f in fold.reduced)
    earlier = max(int(at[f][0]) * here // len(at[f]) for f in fold.reduced)
    mean = after / (earlier + here)
    first, second = before / earlier, (after - before) / here
    return earlier * (first - mean) ** 2 + here * (second - mean) ** 2


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
    """The derivation for a function, streamed over the axis of its fold `origin`; one sweep."""
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


def refusal(
    function: Callable[..., object], inputs: Sequence[torch.Tensor], fold: str, axis: str = ""
) -> str:
    """Why a fold keeps a later sweep, streamed over the axis of the fold `axis`, or its own."""
    values = traced(function, *inputs)
    over = looped(values, axis or fold)
    derived = derive(values, over)
    assert assert_streams(values, derived, over, buffers(values), 3) > 1
    assert derived.refusals[fold].rule == "online"
    return derived.refusals[fold].reason
