"""A streamed value as a product: what moves behind a sum, what its exponents follow, and what is
left (see `online.py`)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal as OneOf

from ..errors import Refused
from ..graph.dtypes import FLOATS
from ..graph.graph import Arg, Ref
from ..graph.op import Accuracy, Op
from ..graph.ops import MAX
from ..values.values import Compute, Fold, Value, compute
from .masked_rows import infinite_extremum, multiplier
from .rewriting import Rewriting
from .shifts import Shift, shift_of

ExponentBase = OneOf["e", "2"]


@dataclass(frozen=True, slots=True)
class Factor:
    """A multiplier (`op` MUL) or divisor (DIV) that moves behind the sum; `text` names it."""

    value: int
    text: str
    op: Op = Op.MUL
    accuracy: Accuracy = Accuracy.EXACT

    def of(self, total: int, dtype: str) -> Compute:
        """The sum with it."""
        operands = {"self": Ref(total), "other": Ref(self.value)}
        return compute(self.op, dtype, self.accuracy, **operands)


@dataclass(frozen=True, slots=True)
class Product:
    """A value as `kept` times what moves. `kept` (None for 1) reads the folds it waits for only
    through its exponentials, whose exponents hold `exponent`: coefficient by extremum.
    masked: zeros are selected in place of some elements, whatever the multipliers are.
    shift: what one factor adds to what varies; its extrema are in `kept`, its logarithms not."""

    kept: int | None
    moved: tuple[Factor, ...] = ()
    exponent: Mapping[int, float] = field(default_factory=dict)
    base: ExponentBase = "e"
    masked: bool = False
    shift: Shift | None = None


def combined(kept: int | None, *parts: Product) -> Product:
    exponent: dict[int, float] = {}
    for part in parts:
        for x, c in part.exponent.items():
            exponent[x] = exponent.get(x, 0.0) + c
    bases = {part.base for part in parts if part.exponent}
    if len(bases) > 1:
        raise Refused("online", "the source holds both exp and exp2")
    moved = tuple(factor for part in parts for factor in part.moved)
    masked = any(part.masked for part in parts)
    shifts = [part.shift for part in parts if part.shift]
    if len(shifts) > 1:
        raise Refused("online", "two factors of the source add folds that are under way")
    shift = shifts[0] if shifts else None
    return Product(kept, moved, exponent, bases.pop() if bases else "e", masked, shift)


def product(work: Rewriting, value: int) -> Product:
    """A value as a product. Raises Refused where it is none."""
    own = work.values[value]
    if not work.waits(value):
        return Product(value)
    if not work.streams(Ref(value)):
        return Product(None, (Factor(value, own.origin),))
    if isinstance(own.kind, Compute) and own.dtype in FLOATS:
        match own.kind.op:
            case Op.CONVERT | Op.NEG:
                return _product_through(work, own, own.kind)
            case Op.MUL:
                return _product_of_both(work, own, own.kind)
            case Op.DIV:
                return _quotient(work, own, own.kind)
            case Op.WHERE:
                return _selected(work, own, own.kind)
            case Op.EXP | Op.EXP2:
                return _exponential(work, own, own.kind)
            case Op.ADD | Op.SUB | Op.RSUB:
                return _sum(work, own)
    raise Refused("online", _no_product(work, own))


def _no_product(work: Rewriting, own: Value) -> str:
    return f"{own.origin} is no product: {work.names(work.waits(own.id))} cannot leave it"


def _product_through(work: Rewriting, own: Value, kind: Compute) -> Product:
    ((name, argument),) = kind.operands
    assert isinstance(argument, Ref)
    if work.values[argument.node].dtype not in FLOATS:
        raise Refused("online", f"{own.origin} converts what is no floating-point number")
    part = product(work, argument.node)
    assert part.kept is not None
    shift = part.shift
    if shift and kind.op is Op.NEG:
        shift = shift.scaled(-1.0)
    elif shift and shift.weight is not None:
        shift = shift.weighted(work.cast(shift.weight, own.dtype))
    return replace(part, kept=work.rebuilt(own.id, {name: part.kept}), shift=shift)


def _product_of_both(work: Rewriting, own: Value, kind: Compute) -> Product:
    parts = {n: product(work, a.node) for n, a in kind.operands if isinstance(a, Ref)}
    kept = {n: part.kept for n, part in parts.items() if part.kept is not None}
    if len(kept) == len(parts):
        left = work.rebuilt(own.id, kept)
    else:
        (alone,) = kept.values()
        left = work.cast(alone, own.dtype)
    whole = combined(left, *parts.values())
    if whole.shift is None:
        return whole
    (name,) = (n for n, part in parts.items() if part.shift)
    return replace(whole, shift=_weighted(work, own, kind, name, whole.shift, kept))


def _weighted(
    work: Rewriting, own: Value, kind: Compute, name: str, shift: Shift, kept: Mapping[str, int]
) -> Shift:
    """What a factor `name` of a product adds to it; kept: what is left of each factor."""
    ((other, argument),) = ((n, a) for n, a in kind.operands if n != name)
    number = work.constant(argument)
    if number is not None:
        return shift.scaled(number)
    if other not in kept:
        return shift
    if shift.weight is None:
        return shift.weighted(work.cast(kept[other], own.dtype))
    return shift.weighted(work.rebuilt(own.id, {name: shift.weight, other: kept[other]}))


def _sum(work: Rewriting, own: Value) -> Product:
    """v + x: extrema stay beside what they bound, logarithms leave."""
    try:
        form = _linear(work, own.id, selects=False)
    except Refused as refused:
        raise Refused("online", _no_product(work, own)) from refused
    shift = shift_of(work, own.origin, form)
    if not _is_beside(work, form, shift.extrema):
        what = work.names(frozenset(shift.extrema))
        raise Refused(
            "online", f"{own.origin} adds {what}, which is no running extremum of that value"
        )
    zero = work.number(0.0, own.dtype)
    kept = _substituted(work, own.id, dict.fromkeys(shift.logs, zero))
    return Product(kept, shift=shift)


def _is_beside(work: Rewriting, form: Mapping[int, float], extrema: Mapping[int, float]) -> bool:
    """Whether a linear form holds each extremum as a multiple of (t - max(t))."""
    left, follows = dict(form), set[int]()
    for x, c in extrema.items():
        kind = work.values[x].kind
        assert isinstance(kind, Fold)
        for atom, k in _linear(work, kind.source, selects=False).items():
            follows.add(atom)
            left[atom] = left.get(atom, 0.0) + c * k
    scale = 1e-9 * max(map(abs, extrema.values()), default=0.0)
    return all(abs(left[atom]) <= scale for atom in follows if work.streams(Ref(atom)))


def _quotient(work: Rewriting, own: Value, kind: Compute) -> Product:
    operands = dict(kind.operands)
    above, below = operands["self"], operands["other"]
    top = product(work, above.node) if isinstance(above, Ref) else Product(None)
    if not isinstance(below, Ref) or not work.waits(below.node):
        one, number, shift = work.number(1.0, own.dtype), work.constant(below), top.shift
        quotient = work.rebuilt(own.id, {"self": one if top.kept is None else top.kept})
        if shift and number:
            shift = shift.scaled(1 / number)
        elif shift:
            weight = one if shift.weight is None else shift.weight
            shift = shift.weighted(work.rebuilt(own.id, {"self": weight}))
        return replace(top, kept=quotient, shift=shift)
    if work.streams(below):
        raise Refused(
            "online", f"{own.origin} divides by {work.names([below.node])}, which is streamed"
        )
    assert top.kept is not None
    factor = Factor(below.node, work.values[below.node].origin, Op.DIV, kind.accuracy)
    return replace(top, kept=work.cast(top.kept, own.dtype), moved=(*top.moved, factor))


def _selected(work: Rewriting, own: Value, kind: Compute) -> Product:
    """where(c, u * x, 0) = where(c, u, 0) * x."""
    operands = dict(kind.operands)
    condition = operands.pop("condition")
    assert isinstance(condition, Ref)
    if work.waits(condition.node):
        return _unless_masked(work, own, kind)
    named = [name for name, argument in operands.items() if work.constant(argument) != 0]
    if len(named) != 1:
        raise Refused("online", f"{own.origin} chooses between two values, neither of them 0")
    chosen = operands[named[0]]
    assert isinstance(chosen, Ref)
    part = product(work, chosen.node)
    one = work.number(1.0, own.dtype)
    kept = work.rebuilt(own.id, {named[0]: one if part.kept is None else part.kept})
    shift = part.shift
    if shift:
        weight = one if shift.weight is None else shift.weight
        shift = shift.weighted(work.rebuilt(own.id, {named[0]: weight}))
    return replace(part, kept=kept, masked=True, shift=shift)


def _unless_masked(work: Rewriting, own: Value, kind: Compute) -> Product:
    """where(x is infinite, 0, u * v) = u * v * where(x is infinite, 0, 1), x an extremum that the
    exponent in u holds."""
    operands = dict(kind.operands)
    condition, chosen = operands["condition"], operands["other"]
    assert isinstance(condition, Ref)
    if work.constant(operands["self"]) == 0 and isinstance(chosen, Ref) and work.streams(chosen):
        part = product(work, chosen.node)
        extremum = infinite_extremum(work, condition.node, part.exponent)
        if extremum is not None and not part.shift:
            assert part.kept is not None
            text = f"{work.values[condition.node].origin} ? 0 : 1"
            shown = Factor(multiplier(work, extremum), text)
            kept = work.cast(part.kept, own.dtype)
            return replace(part, kept=kept, moved=(*part.moved, shown), masked=True)
    raise Refused("online", f"{own.origin} chooses by {work.names([condition.node])}")


# --- exponents ---


def _exponential(work: Rewriting, own: Value, kind: Compute) -> Product:
    """exp(E). What E holds beside extrema and streamed values moves out as a multiplier, and a
    value that bounds an extremum, such as maximum(m, sink), is replaced by the extremum."""
    (argument,) = (a for _, a in kind.operands)
    assert isinstance(argument, Ref)
    form = _linear(work, argument.node)
    others = {x: c for x, c in form.items() if work.waits(x) and not work.is_extremum(x)}
    extrema = {x: c for x, c in form.items() if work.is_extremum(x)}
    base: ExponentBase = "e" if kind.op is Op.EXP else "2"
    for swap in _swaps(work, extrema, others):
        follows = dict(extrema)
        for x, instead in swap.items():
            if instead is not None:
                follows[instead] = follows.get(instead, 0.0) + others[x]
        if not _is_bounded(work, argument.node, follows):
            continue
        zero = work.number(0.0, work.values[argument.node].dtype)
        replaced = {x: zero if i is None else i for x, i in swap.items()}
        moved = tuple(_leaving(work, own, kind, x, others[x], i) for x, i in swap.items())
        inner = _substituted(work, argument.node, replaced)
        return Product(_summed_already(work, own, inner), moved, follows, base)
    if others and not any(work.is_extremum(f) for x in form for f in work.waits(x)):
        why = f"follows {work.names([*others])}, which is no running maximum or minimum"
        raise Refused("online", f"the exponent of {own.origin} {why}")
    what = work.names([*extrema, *others])
    why = f"is not bounded while {what}, no extremum of its exponent, is under way"
    raise Refused("online", f"{own.origin} {why}")


def _summed_already(work: Rewriting, own: Value, inner: int) -> int:
    """The exponential of `inner`: the one that there is, if it may flush because it is summed."""
    kind = work.with_operands(own.id, {"self": work.unconverted(inner)})
    there = work.there(replace(kind, accuracy=Accuracy.FLUSHING), own.id)
    return work.rebuilt(own.id, {"self": inner}) if there is None else there


def _swaps(
    work: Rewriting, extrema: Mapping[int, float], others: Mapping[int, float]
) -> Iterator[dict[int, int | None]]:
    """What may stand in the exponent for each of the others: nothing, or an extremum in it."""
    if extrema:
        yield dict.fromkeys(others)
    for x in others:
        for inside in sorted(work.waits(x)):
            if work.is_extremum(inside):
                yield {**dict.fromkeys(others), x: inside}


def _leaving(
    work: Rewriting, own: Value, kind: Compute, x: int, c: float, instead: int | None
) -> Factor:
    """The multiplier exp(c * (x - instead))."""
    name = work.values[x].origin
    sign = "-" if c == -1 else "" if c == 1 else f"{c:g} * "
    text, power = f"{sign}{name}", x
    if instead is not None:
        other = work.values[instead].origin
        text = f"{other} - {name}" if c == -1 else f"{sign}({name} - {other})"
        left, right = (instead, x) if c == -1 else (x, instead)
        power = work.compute(Op.SUB, x, self=Ref(left), other=Ref(right))
    elif c == -1:
        power = work.compute(Op.NEG, x, self=Ref(x))
    if c not in (1, -1):
        scale = work.number(c, work.values[x].dtype)
        power = work.compute(Op.MUL, x, self=Ref(power), other=Ref(scale))
    multiplier = work.compute(kind.op, x, self=Ref(power))
    return Factor(multiplier, f"{kind.op.value}({text})")


def _substituted(work: Rewriting, value: int, instead: Mapping[int, int]) -> int:
    """A linear form with some of its parts replaced."""
    if value in instead or not isinstance(kind := work.values[value].kind, Compute):
        return instead.get(value, value)
    old = {n: a.node for n, a in kind.operands if isinstance(a, Ref)}
    new = {n: _substituted(work, node, instead) for n, node in old.items()}
    if new == old:
        return value
    if kind.op in (Op.ADD, Op.SUB) and "other" in new and work.constant(Ref(new["other"])) == 0:
        return new.get("self", value)
    return work.rebuilt(value, new)


def _is_bounded(work: Rewriting, exponent: int, extrema: Mapping[int, float]) -> bool:
    """Whether the exponent is a * (t - max(t)) + rest with a > 0 and no part of t in the rest, so
    that no element overflows while the extremum is under way."""
    tops = [_linear(work, exponent), _linear(work, exponent, opened=True)]
    follows: set[int] = set()
    for x, c in extrema.items():
        kind = work.values[x].kind
        assert isinstance(kind, Fold)
        if c == 0 or (c > 0) == (kind.monoid == MAX):
            return False
        for atom, k in _linear(work, kind.source).items():
            follows.add(atom)
            for top in tops:
                top[atom] = top.get(atom, 0.0) + c * k
    streamed = [atom for atom in follows if work.streams(Ref(atom))]
    scale = 1e-9 * max(map(abs, extrema.values()), default=0.0)
    return bool(extrema) and any(all(abs(top[a]) <= scale for a in streamed) for top in tops)


def _linear(
    work: Rewriting, value: int, opened: bool = False, selects: bool = True
) -> dict[int, float]:
    """A value as a linear form: coefficient by value, the constant left out. opened: an upper
    bound instead, in which a mask hides nothing. selects: of a choice, the part that shows in an
    exponential. Raises Refused where a fold is under way in a streamed part."""
    form: dict[int, float] = {}

    def gather(at: int, scale: float) -> None:
        own = work.values[at]
        parts = None
        if own.dtype in FLOATS:
            parts = _linear_parts(work, own, scale, opened, selects)
        if parts is None:
            if work.waits(at) and work.streams(Ref(at)):
                why = f"is not linear in {work.names(work.waits(at))}"
                if work.is_extremum(at):
                    why = "varies over what the sum reduces"
                raise Refused("online", f"{own.origin} in the exponent {why}")
            form[at] = form.get(at, 0.0) + scale
            return
        for part, k in parts:
            if isinstance(part, Ref) and work.constant(part) is None:
                gather(part.node, scale * k)

    gather(value, 1.0)
    return form


def _linear_parts(
    work: Rewriting, own: Value, scale: float, opened: bool, selects: bool
) -> list[tuple[Arg, float]] | None:
    """The terms of a value that is a sum of multiples of others, else None."""
    kind = own.kind
    if not isinstance(kind, Compute):
        return None
    operands = dict(kind.operands)
    left, right = operands.get("self"), operands.get("other")
    alpha = work.constant(operands.get("alpha", 1))
    match kind.op:
        case Op.CONVERT:
            ((_, only),) = kind.operands
            if isinstance(only, Ref) and work.values[only.node].dtype in FLOATS:
                return [(only, 1.0)]
        case Op.NEG:
            return [(left, -1.0)]
        case Op.ADD | Op.SUB | Op.RSUB if alpha is not None:
            first, second = (right, left) if kind.op is Op.RSUB else (left, right)
            return [(first, 1.0), (second, alpha if kind.op is Op.ADD else -alpha)]
        case Op.MUL:
            for one, other in ((left, right), (right, left)):
                k = work.constant(other)
                if k is not None and math.isfinite(k):
                    return [(one, k)]
        case Op.DIV:
            k = work.constant(right)
            if k and math.isfinite(k):
                return [(left, 1 / k)]
        case Op.WHERE:
            return _unmasked(work, operands, scale, opened) if selects else _finite(work, operands)
    return None


def _unmasked(
    work: Rewriting, operands: Mapping[str, Arg], scale: float, opened: bool
) -> list[tuple[Arg, float]] | None:
    """The only part of a choice that shows in an exponential: the other is -inf, or stands in
    for an infinite extremum."""
    condition, left, right = (operands[n] for n in ("condition", "self", "other"))
    assert isinstance(condition, Ref)
    for one, other in ((left, right), (right, left)):
        if not isinstance(one, Ref):
            continue
        if work.constant(other) == -math.inf and scale > 0 and not work.waits(condition.node):
            return [(one, 1.0)] if opened or work.waits(one.node) else None
    return _finite(work, operands)


def _finite(work: Rewriting, operands: Mapping[str, Arg]) -> list[tuple[Arg, float]] | None:
    """Of a choice in which a number stands in for an infinite extremum, the extremum."""
    condition, left, right = (operands[n] for n in ("condition", "self", "other"))
    assert isinstance(condition, Ref)
    instead = work.constant(left)
    if instead is None or not math.isfinite(instead) or not isinstance(right, Ref):
        return None
    return [(right, 1.0)] if _is_infinite(work, condition.node) == right.node else None


def _is_infinite(work: Rewriting, condition: int) -> int | None:
    """The value that is infinite where the condition holds."""
    kind = work.values[condition].kind
    if not isinstance(kind, Compute):
        return None
    operands = dict(kind.operands)
    tested = operands.get("self")
    if not isinstance(tested, Ref):
        return None
    if kind.op is Op.ISINF:
        return tested.node
    limit = work.constant(operands.get("other"))
    if kind.op is not Op.EQ or limit is None or not math.isinf(limit):
        return None
    inner = work.values[tested.node].kind
    if isinstance(inner, Compute) and inner.op is Op.ABS:
        (tested,) = (a for _, a in inner.operands)
    return tested.node if isinstance(tested, Ref) else None
