"""Attention by one call: softmax(scale * q @ k^T) @ v, perhaps causal, read off a group's values.

Scores are any multiple of one contraction, a softmax is the quotient of two sums that share their
exponentials, a mask is causal where it keeps exactly the keys up to the query's own index.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from ..graph.dtypes import MATMUL_DTYPES
from ..graph.graph import Arg, Graph, Ref
from ..graph.op import ANDS, EXPONENTIALS, NEGATED, NOTS, ORS, Op
from ..nests.mask_bounds import kept
from ..stream.online import derive
from ..stream.rewriting import Rewriting
from ..trace.aten_calls import Calls, is_one
from ..values.axes import Factors
from ..values.values import Compute, Fold, Value, Values
from .operands import Operand, Other, dtype_of, operand, plain_sum, scaled, uncopied

LARGEST_HEAD = 256
"""Elements of a head; above it the vendor has no fused kernel."""


@dataclass(frozen=True, slots=True)
class _Scores:
    """scale * (value `product`), and where they are masked a condition with its outcome for the
    elements that are kept."""

    product: int
    scale: float
    mask: tuple[int, bool] | None = None


@dataclass(frozen=True, slots=True)
class _Axes:
    """The axes of attention, each the factors of one dimension: batches; heads, those that
    queries have alone apart; queries, keys, the summed axis and that of the result."""

    batch: Factors
    heads: Factors
    shared: Factors
    queries: Factors
    keys: Factors
    summed: Factors
    result: Factors


def attention(group: Graph, values: Values) -> Graph:
    """softmax(scale * q @ k^T, perhaps causal) @ v by one call."""
    products = _contractions(values)
    if len(products) != 2:
        raise Other("attention has two products")
    over = frozenset(products[-1].reduced)
    # Streamed, a softmax is a quotient of two sums, wherever the user divided.
    streamed = derive(values, over).values
    work = Rewriting(streamed, over)
    weights, fold, times = _softmax(work, streamed.outputs[0].value)
    scores = _scores(work, *_exponent(weights))
    product = plain_sum(work.values[scores.product])
    if product.times is None:
        raise Other("the scores are no product")
    sides = [operand(work, side, product.operand) for side in (product.source, product.times)]
    k, q = sorted(sides, key=lambda side: over <= side.varies, reverse=True)
    v = operand(work, times, fold.operand)
    scale = scores.scale * q.scale * k.scale
    if v.scale != 1 or not 0 < scale < math.inf:
        raise Other("a factor that the call does not have")
    axes = _axes(work, scores, (q, k, v), fold.reduced)
    if max(streamed.size(axes.summed), streamed.size(axes.result)) > LARGEST_HEAD:
        raise Other("heads too large")
    return _call(group, streamed, (q, k, v), axes, scale, scores.mask is not None)


def _call(
    group: Graph,
    values: Values,
    operands: tuple[Operand, Operand, Operand],
    axes: _Axes,
    scale: float,
    causal: bool,
) -> Graph:
    output = values.outputs[0]
    dtype = dtype_of(operands, output.type.dtype)
    calls = Calls(group, values)
    heads = (*axes.heads, *axes.shared)
    # Of float32 the vendor has no fused kernel in which heads share their keys.
    grouped = bool(axes.heads and axes.shared) and dtype != "float32"
    own = axes.heads if grouped else heads
    layouts = (
        (axes.batch, heads, axes.queries, axes.summed),
        (axes.batch, own, axes.keys, axes.summed),
        (axes.batch, own, axes.keys, axes.result),
    )
    # Only the unfused fallback takes heads that do not lie dense.
    given = [
        calls.dense(calls.operand(o.load, dtype, x)) for o, x in zip(operands, layouts, strict=True)
    ]
    result = (axes.batch, heads, axes.queries, axes.result)
    shape = [values.size(axis) for axis in result]
    found = calls.call(
        "scaled_dot_product_attention.default",
        *given,
        None,
        0.0,
        causal,
        like=torch.empty(shape, dtype=getattr(torch, dtype), device="meta"),
        scale=scale,
        **({"enable_gqa": True} if grouped else {}),
    )
    return calls.finish(calls.result(found, result, output))


def _contractions(values: Values) -> list[Fold]:
    folds = (v.kind for v in values.values if isinstance(v.kind, Fold))
    return [fold for fold in folds if fold.times is not None]


def _softmax(work: Rewriting, output: int) -> tuple[Value, Fold, int]:
    """For sum(w * v) / sum(w): the exponential w, the first sum, and the value v."""
    above, below = _quotient(work, uncopied(work, output))
    total, norm = (plain_sum(uncopied(work, side)) for side in (above, below))
    if total.times is None or norm.times is not None or set(norm.reduced) != work.over:
        raise Other("not the sums of a softmax")
    weights = uncopied(work, norm.source)
    for one, other in ((total.source, total.times), (total.times, total.source)):
        if uncopied(work, one).id == weights.id:
            return weights, total, other
    raise Other("the two sums have other weights")


def _quotient(work: Rewriting, value: Value) -> tuple[int, int]:
    """Dividend and divisor, of a product with an inverse too."""
    kind = value.kind
    named = dict(kind.operands) if isinstance(kind, Compute) and kind.op in (Op.DIV, Op.MUL) else {}
    match kind, named.get("self"), named.get("other"):
        case Compute(op=Op.DIV), Ref(node=above), Ref(node=below):
            return above, below
        case Compute(op=Op.MUL), Ref(node=above), Ref(node=other):
            match uncopied(work, other).kind:
                case Compute(op=Op.RECIPROCAL, operands=((_, Ref(node=below)),)):
                    return above, below
    raise Other(f"{value.origin} is no quotient")


def _exponent(weights: Value) -> tuple[int, float]:
    """The exponent of e that the weights are: a multiple of a value."""
    if isinstance(weights.kind, Compute) and weights.kind.op in EXPONENTIALS:
        (argument,) = (a for _, a in weights.kind.operands)
        if isinstance(argument, Ref):
            return argument.node, 1.0 if weights.kind.op is Op.EXP else math.log(2)
    raise Other(f"{weights.origin} is no exponential")


def _scores(work: Rewriting, value: int, scale: float) -> _Scores:
    """The part of an exponent that varies over the keys; what does not cancels in the quotient."""
    own = work.values[value]
    if isinstance(own.kind, Fold):
        return _Scores(value, scale)
    if isinstance(own.kind, Compute):
        match own.kind.op:
            case Op.WHERE:
                rest, mask = _selected(work, dict(own.kind.operands), scale)
                return _masked(_scores(work, rest, scale), scale, mask)
            case Op.ADD | Op.SUB | Op.RSUB as op:
                return _sum(work, dict(own.kind.operands), op, scale)
    source, factor = scaled(work, own)
    return _scores(work, source, scale * factor)


def _masked(scores: _Scores, scale: float, mask: tuple[int, bool]) -> _Scores:
    """scale: of the -inf that stands in place of a score."""
    if scores.mask is not None or scale <= 0:
        raise Other("several masks")
    return replace(scores, mask=mask)


def _selected(
    work: Rewriting, operands: Mapping[str, Arg], scale: float
) -> tuple[int, tuple[int, bool]]:
    """For where(c, u, -inf) or where(c, -inf, u): the id of u, and when it is kept. The lowest
    number of a dtype is as good as -inf, for a causal mask leaves every query a key."""
    condition = operands["condition"]
    for name, other, wanted in (("self", "other", True), ("other", "self", False)):
        rest = operands[name]
        if not _hides(work.constant(operands[other]), scale):
            continue
        if isinstance(rest, Ref) and isinstance(condition, Ref):
            return rest.node, (condition.node, wanted)
    raise Other("a choice that is no mask")


def _sum(work: Rewriting, operands: Mapping[str, Arg], op: Op, scale: float) -> _Scores:
    alpha = work.constant(operands.get("alpha", 1))
    if alpha is None:
        raise Other("a sum with an alpha that is no number")
    left, right = operands["self"], operands["other"]
    first, second = (right, left) if op is Op.RSUB else (left, right)
    terms = [(first, scale), (second, scale * (alpha if op is Op.ADD else -alpha))]
    moving = [(a.node, c) for a, c in terms if isinstance(a, Ref) and work.streams(a)]
    if len(moving) == 1:
        return _scores(work, *moving[0])
    for (added, factor), (rest, own) in (moving, moving[::-1]):
        mask = _added(work, added, factor)
        if mask is not None:
            return _masked(_scores(work, rest, own), factor, mask)
    raise Other("a sum of two values that vary over the keys")


def _added(work: Rewriting, value: int, scale: float) -> tuple[int, bool] | None:
    """For a value that is 0 where a condition holds and -inf elsewhere, or the other way round:
    the condition, and its outcome where it is 0."""
    kind = uncopied(work, value).kind
    if not isinstance(kind, Compute) or kind.op is not Op.WHERE:
        return None
    named = dict(kind.operands)
    own, other = (work.constant(named[name]) for name in ("self", "other"))
    if not ((own == 0 and _hides(other, scale)) or (other == 0 and _hides(own, scale))):
        return None
    condition = named["condition"]
    return (condition.node, own == 0) if isinstance(condition, Ref) else None


def _hides(number: float | None, scale: float) -> bool:
    """Whether a key with this number for a score has no weight beside one with another score."""
    if number is None or scale <= 0:
        return number == -math.inf
    return number in _LOWEST and number * scale <= max(_LOWEST)


_LOWEST = (-math.inf, *(torch.finfo(getattr(torch, d)).min for d in MATMUL_DTYPES))
"""What masks put in place of a score."""


# --- axes ---


def _axes(
    work: Rewriting,
    scores: _Scores,
    operands: tuple[Operand, Operand, Operand],
    over: Factors,
) -> _Axes:
    """Which factors are what; heads and batches so that as little as possible is copied."""
    (q, k, v), values = operands, work.given
    product = work.values[scores.product]
    summed, keys = plain_sum(product).reduced, frozenset(over)
    if not (keys <= k.varies & v.varies and set(summed) <= q.varies & k.varies - v.varies):
        raise Other("an operand is repeated")
    if not keys.isdisjoint(q.varies) or not keys.isdisjoint(summed):
        raise Other("the queries vary over the keys")
    rows = q.varies - k.varies - v.varies
    result = v.varies - q.varies - k.varies
    batches = (q.varies | k.varies | v.varies) - rows - result - keys - set(summed)
    order = [f for dim in values.outputs[0].dims for f in dim]
    if set(order) != rows | result | batches:
        raise Other("the result varies over other axes than the operands")
    queries = _plain_queries(product, rows, q, values)
    if scores.mask is not None:
        over, queries = _causal(work, scores.mask, keys, rows)
    shared = tuple(f for f in order if f in rows and f not in queries)
    outer = tuple(f for f in order if f in batches)
    ends = tuple(f for f in order if f in result)
    splits = [
        _Axes(outer[:i], outer[i:], shared, queries, over, summed, ends)
        for i in range(len(outer) + 1)
    ]
    wanted = len(outer) - 1

    def price(axes: _Axes) -> tuple[int, int]:
        return _copies(axes, operands, values), abs(len(axes.batch) - wanted)

    return min(splits, key=price)


def _copies(axes: _Axes, operands: Sequence[Operand], values: Values) -> int:
    """Operands that must be copied to have these as their dimensions."""
    q, *both = (o.strides for o in operands)
    found = sum(not is_one(x, q, values) for x in (axes.batch, (*axes.heads, *axes.shared)))
    return found + sum(not is_one(x, o, values) for o in both for x in (axes.batch, axes.heads))


def _plain_queries(product: Value, rows: frozenset[int], q: Operand, values: Values) -> Factors:
    """The rows of the product, as far as one stride walks them."""
    found = next((d for d in product.dims[-2:] if d and rows.issuperset(d)), ())
    while not is_one(found, q.strides, values):
        found = found[1:]
    return found


def _causal(
    work: Rewriting, mask: tuple[int, bool], keys: frozenset[int], rows: frozenset[int]
) -> tuple[Factors, Factors]:
    """Keys and queries in the order of their indices, where the mask keeps a key if and only if
    its index is at most the query's."""
    values = work.given
    forms = list(kept(values, *_comparison(work, *mask)))
    if len(forms) != 1:
        raise Other("the mask is no comparison of indices")
    form, constant = forms[0]
    ahead = _row_major({f: c for f, c in form.items() if f in keys}, values)
    behind = _row_major({f: -c for f, c in form.items() if f in rows}, values)
    if constant or set(ahead) != keys or len(ahead) + len(behind) != len(form):
        raise Other("the mask is not causal")
    return ahead, behind


def _row_major(coefficients: Mapping[int, int], values: Values) -> Factors:
    """Factors, outer to inner, of which these are the coefficients of an index from 0."""
    order = tuple(sorted(coefficients, key=lambda f: -coefficients[f]))
    step = 1
    for factor in reversed(order):
        if coefficients[factor] != step:
            raise Other("the mask compares no plain indices")
        step *= values.extents[factor]
    return order


def _comparison(work: Rewriting, condition: int, wanted: bool) -> tuple[int, bool]:
    """The comparison that a condition comes down to, with its outcome for the wanted one."""
    own = work.values[condition]
    if not isinstance(own.kind, Compute):
        raise Other("the mask is no comparison")
    named = dict(own.kind.operands)
    left, right = named.get("self"), named.get("other")
    inner: tuple[Arg, bool] = None, wanted
    match own.kind.op:
        case op if op in NEGATED:
            return condition, wanted
        case Op.CONVERT:
            inner = left, wanted
        case op if op in NOTS and own.dtype == "bool":
            inner = left, not wanted
        case op if op in ANDS | ORS and own.dtype == "bool":
            for one, other in ((left, right), (right, left)):
                constant = work.constant(one)
                if constant is not None and bool(constant) == (op in ANDS):
                    inner = other, wanted
        case Op.WHERE:
            pair = work.constant(left), work.constant(right)
            if None not in pair and bool(pair[0]) != bool(pair[1]):
                inner = named["condition"], wanted == bool(pair[0])
        case Op.NE | Op.EQ as op if work.constant(right) == 0:
            inner = left, wanted == (op is Op.NE)
    if not isinstance(inner[0], Ref):
        raise Other("the mask is no comparison of indices")
    return _comparison(work, inner[0].node, inner[1])
