"""Bounds of a looped axis by a mask: tiles that the mask leaves empty are left out.

`where(i > j, -inf, score)` over a streamed axis: where the condition holds in a whole tile, the
scores are all -inf, their exponentials 0, and no fold of the loop gains anything. That this is so
is followed value by value from the masked one to the folds; where the tile lies relative to the
condition follows from the linear forms that it compares.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..graph.dtypes import BOUNDS
from ..graph.graph import Arg, Ref
from ..graph.op import ANDS, NEGATED, NOTS, ORS, Op
from ..graph.ops import MAX, SUM
from ..values.values import Compute, Fold, Index, Literal, Value, Values
from .linear_forms import Affine, TileAxis, affine
from .placement import Carry, Evaluate, NestBody, NestLoop

Linear = tuple[dict[int, int], int]
"""Coefficients by factor, and a constant. The number -1 - v stands for value v, which nothing is
known of: a position that lies in a tensor."""

_NEUTRAL = {SUM: "0", MAX: "-inf"}


@dataclass(frozen=True, slots=True)
class Limit:
    """A tile of the looped axis counts only if scale * index + rest <= 0 for some element of it;
    scale is 1 or -1, rest a form over the other axes. values: with their coefficients, those that
    are parts of the rest, none of which varies along the axis."""

    scale: int
    rest: Affine
    values: tuple[tuple[int, int], ...] = ()


def limits(
    values: Values,
    loop: NestLoop,
    place: Mapping[int, tuple[int, TileAxis]],
    live: Sequence[frozenset[int]],
) -> tuple[Limit, ...]:
    """The limits that masks set to the tiles of a loop; none where empty tiles would still count.
    live: the tile axes of each value."""
    items = list(_items(loop.body))
    if not loop.carries or any(not isinstance(item, (Evaluate, Carry)) for item in items):
        return ()
    inside = [item.value for item in items if isinstance(item, Evaluate)]
    found: list[Limit] = []
    for number in inside:
        value = values.values[number]
        if not isinstance(value.kind, Compute) or value.kind.op is not Op.WHERE:
            continue
        condition, masked_if, constant = _mask(value, values)
        if constant and _is_empty(values, inside, loop.carries, number, constant):
            for form in kept(values, condition, not masked_if):
                limit = _limit(form, loop.axis, place, live)
                found += [limit] if limit else []
    return tuple(dict.fromkeys(found))


def _items(body: NestBody) -> Iterator[Evaluate | Carry | object]:
    for item in body:
        if isinstance(item, NestLoop):
            yield from _items(item.body)
            yield from (Carry(c) for c in item.carries)
        else:
            yield item


# --- what becomes of a constant ------------------------------------------------------------------


def _mask(value: Value, values: Values) -> tuple[int, bool, str]:
    """The condition of a select, for which outcome it gives a constant, and which: "-inf", "0",
    or "" for any other. Of two constants, as in a mask that is added, it is the lower one."""
    assert isinstance(value.kind, Compute)
    named = dict(value.kind.operands)
    condition = named["condition"]
    assert isinstance(condition, Ref)
    both = [(_constant(named[n], {}, values), n == "self") for n in ("self", "other")]
    constant, outcome = max(both, key=lambda one: ("", "0", "-inf").index(one[0]))
    return condition.node, outcome, constant


def _constant(argument: Arg, known: Mapping[int, str], values: Values) -> str:
    number: object = argument
    if isinstance(argument, Ref):
        if argument.node in known:
            return known[argument.node]
        kind = values.values[argument.node].kind
        while isinstance(kind, Compute) and kind.op is Op.CONVERT:
            (source,) = (a for _, a in kind.operands if isinstance(a, Ref))
            kind = values.values[source.node].kind
        if not isinstance(kind, Literal):
            return ""
        number = kind.number
    if isinstance(number, (int, float)) and not isinstance(number, bool):
        return "-inf" if number == -math.inf else "0" if number == 0 else ""
    return ""


def _is_empty(
    values: Values, inside: Sequence[int], carries: Sequence[int], masked: int, constant: str
) -> bool:
    """Whether the folds gain nothing from elements where value `masked` is the constant."""
    known = {masked: constant}
    for number in sorted({*inside, *carries}):
        value = values.values[number]
        if number not in known and not known.keys().isdisjoint(value.reads):
            found = _followed(value, known, values)
            if found:
                known[number] = found
    for carry in carries:
        kind = values.values[carry].kind
        assert isinstance(kind, Fold)
        neutral = _NEUTRAL.get(kind.monoid)
        if (
            neutral is None
            or kind.about is not None
            or all(known.get(r) != neutral for r in values.values[carry].reads)
        ):
            return False
    return True


def _followed(value: Value, known: Mapping[int, str], values: Values) -> str:
    """What a value is where one of its sources is a known constant; "" where that is open. A
    product with 0 counts as 0, though 0 * inf is not: nothing is gained by an empty tile."""
    kind = value.kind
    if isinstance(kind, Fold):
        zero = any(known.get(r) == "0" for r in value.reads)
        return "0" if zero and kind.monoid == SUM else ""
    if not isinstance(kind, Compute):
        return ""
    named = {n: _constant(a, known, values) for n, a in kind.operands}
    left, right = named.get("self", ""), named.get("other", "")
    factor = dict(kind.operands).get("other")
    positive = isinstance(factor, (int, float)) and factor > 0
    match kind.op:
        case Op.CONVERT:
            return left
        case Op.ADD if "-inf" in (left, right):
            return "-inf"
        case Op.SUB if left == "-inf":
            return "-inf"
        case Op.MUL if "0" in (left, right):
            return "0"
        case Op.MUL | Op.DIV if left == "-inf" and positive:
            return "-inf"
        case Op.DIV | Op.NEG if left == "0":
            return "0"
        case Op.EXP | Op.EXP2 if left == "-inf":
            return "0"
        case Op.WHERE if left == right:
            return left
    return ""


# --- where a condition holds ---------------------------------------------------------------------


def kept(values: Values, condition: int, wanted: bool) -> Iterator[Linear]:
    """Forms that are at most 0 wherever the condition has the wanted outcome."""
    kind = values.values[condition].kind
    if not isinstance(kind, Compute):
        return
    named = dict(kind.operands)
    if kind.op in ANDS | ORS:
        if (kind.op in ANDS) == wanted:
            for operand in (named["self"], named["other"]):
                if isinstance(operand, Ref):
                    yield from kept(values, operand.node, wanted)
        return
    if kind.op in NOTS:
        operand = named["self"]
        if isinstance(operand, Ref):
            yield from kept(values, operand.node, not wanted)
        return
    if kind.op not in NEGATED:
        return
    op = kind.op if wanted else NEGATED[kind.op]
    left, right = _linear(named["self"], values), _linear(named["other"], values)
    if left is None or right is None:
        return
    if op in (Op.GT, Op.GE):
        left, right = right, left
    yield _sum(left, right, -1, 1 if op in (Op.LT, Op.GT) else 0)


def _linear(argument: Arg, values: Values) -> Linear | None:
    """An integer value as a linear form over factors."""
    if isinstance(argument, int):
        return {}, int(argument)
    if not isinstance(argument, Ref):
        return None
    value = values.values[argument.node]
    if value.dtype not in BOUNDS:
        return None
    match value.kind:
        case Index(factors=factors, start=start, step=step):
            form, scale = {}, step
            for factor in reversed(factors):
                form[factor] = scale
                scale *= values.extents[factor]
            return form, start
        case Literal(number=int() as number):
            return {}, number
        case Compute() as compute if (found := _computed(compute, values)) is not None:
            return found
    return {-1 - value.id: 1}, 0


def _computed(compute: Compute, values: Values) -> Linear | None:
    named = dict(compute.operands)
    if compute.op is Op.CONVERT:
        return _linear(next(iter(named.values())), values)
    left = _linear(named["self"], values) if "self" in named else None
    if left is None:
        return None
    if compute.op is Op.NEG:
        return _sum(({}, 0), left, -1)
    right = _linear(named.get("other"), values)
    alpha = named.get("alpha", 1)
    if right is None or not isinstance(alpha, int):
        return None
    match compute.op:
        case Op.ADD:
            return _sum(left, right, alpha)
        case Op.SUB:
            return _sum(left, right, -alpha)
        case Op.MUL if not left[0] or not right[0]:
            constant, form = (left, right) if not left[0] else (right, left)
            return _sum(({}, 0), form, constant[1])
    return None


def _sum(left: Linear, right: Linear, scale: int, more: int = 0) -> Linear:
    """left + scale * right + more."""
    form = dict(left[0])
    for factor, coefficient in right[0].items():
        form[factor] = form.get(factor, 0) + scale * coefficient
    return {f: c for f, c in form.items() if c}, left[1] + scale * right[1] + more


def _limit(
    form: Linear,
    axis: int,
    place: Mapping[int, tuple[int, TileAxis]],
    live: Sequence[frozenset[int]],
) -> Limit | None:
    whole = affine({f: c for f, c in form[0].items() if f >= 0}, place, form[1])
    given = tuple((-1 - f, c) for f, c in form[0].items() if f < 0)
    if any(axis in live[v] or abs(c) != 1 for v, c in given):
        return None
    own = [t for t in whole.terms if t.axis == axis]
    rest = tuple(t for t in whole.terms if t.axis != axis)
    if len(own) != 1 or own[0].div != 1 or own[0].mod or abs(own[0].scale) != 1:
        return None
    if any(t.div != 1 or t.mod for t in rest):
        return None
    return Limit(own[0].scale, Affine(rest, whole.base), given)
