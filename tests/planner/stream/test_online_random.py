"""Derived online reductions of random expressions: streamed evaluation in float64 agrees with
unstreamed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
from fusionplan.planner.graph.graph import Ref, TensorType
from fusionplan.planner.graph.op import Op
from fusionplan.planner.graph.ops import MAX, MIN, SUM, Monoid
from fusionplan.planner.stream.online import derive
from fusionplan.planner.values.values import (
    Fold,
    Literal,
    Load,
    LoadDim,
    Output,
    Value,
    Values,
    compute,
    conversion,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from streamed import assert_streams, buffers

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

    def op(self, op: Op, *operands: int | float, names: Sequence[str] = ("self", "other")) -> int:
        refs = [v for v in operands if type(v) is int]
        named = {n: Ref(v) if type(v) is int else v for n, v in zip(names, operands, strict=False)}
        kind = compute(op, "float64", **named)
        return self.add(kind, self.axes(*refs), kind.result, op.value)

    def where(self, mask: int, value: int, otherwise: float) -> int:
        other = self.add(Literal(otherwise), (), "float64", "literal")
        return self.op(Op.WHERE, mask, value, other, names=("condition", "self", "other"))

    def copy(self, value: int) -> int:
        kind = conversion(self.values[value], "float64")
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
                score = b.op(Op.MUL, score, draw(st.sampled_from([0.5, 3.0, 40.0])))
            case "cap":
                score = b.op(Op.MUL, b.op(Op.TANH, score), 5.0)
            case "bias":
                score = b.op(Op.ADD, b.load(KEYS), score)
            case "cast":
                score = b.copy(score)
            case "shift":
                score = b.op(Op.SUB, score, 700.0)
    return b.where(mask, score, -math.inf) if draw(st.booleans()) else score


def weight(b: Builder, draw: Callable[..., object], score: int, mask: int) -> int:
    """exp of a difference to a running extremum, in the forms that users write."""
    power = draw(st.sampled_from([Op.EXP, Op.EXP2]))
    form = draw(st.sampled_from(["plain", "scaled", "least", "sink", "guard", "lse", "masked"]))
    if form == "least":
        least = b.fold(MIN, b.op(Op.NEG, score))
        return b.op(power, b.op(Op.ADD, least, score))
    top = b.fold(MAX, score)
    match form:
        case "sink":
            top = b.op(Op.MAXIMUM, top, b.load(ROWS))
        case "guard":
            literal = b.add(Literal(0.0), (), "float64", "literal")
            infinite = b.op(Op.EQ, b.op(Op.ABS, top), math.inf)
            names = ("condition", "self", "other")
            top = b.op(Op.WHERE, infinite, literal, top, names=names)
        case "lse":
            total = b.fold(SUM, b.op(power, b.op(Op.SUB, score, top)))
            top = b.op(Op.ADD, b.op(Op.LOG, total), top)
    difference = b.op(Op.SUB, score, top)
    if form == "scaled":
        difference = b.op(Op.DIV, difference, 1.5)
    if form == "masked":
        difference = b.where(mask, difference, -math.inf)
    return b.op(power, difference)


def multiplied(b: Builder, draw: Callable[..., object], value: int, mask: int, total: int) -> int:
    """The value times what streams, what a mask selects and what folds give."""
    steps = ["streamed", "mask", "total", "norm", "neg", "cast", "square"]
    for step in draw(st.lists(st.sampled_from(steps), max_size=4)):
        match step:
            case "streamed":
                value = b.op(Op.MUL, b.load(ROWS, KEYS), value)
            case "mask":
                value = b.where(mask, value, 0.0)
            case "total":
                value = b.op(Op.DIV, value, b.op(Op.ADD, total, 0.5))
            case "norm":
                other = b.load(ROWS, KEYS)
                squares = b.fold(SUM, b.op(Op.MUL, other, other))
                value = b.op(Op.MUL, value, b.op(Op.RSQRT, squares))
            case "neg":
                value = b.op(Op.NEG, value)
            case "square":
                value = b.op(Op.MUL, value, value)
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
                rising = b.op(Op.TANH, b.op(Op.SUB, b.load(ROWS), score))
                outputs.append(b.fold(MAX, rising))
    return b.finish(outputs)


@pytest.mark.slow
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
