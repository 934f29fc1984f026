"""Online reductions, derived: folds that wait for other folds over the same looped axis are made
to join their pass.

A fold over a looped axis is *carried*: complete only after the loop. A value that varies along
the axis is *streamed*. A fold whose source reads a carried fold would need another pass; it joins
the same pass where one of these rules holds, else it is refused with the step that failed:

- multiplier: sum(u * x) = sum(u) * x for an x made of carried folds that is not streamed;
- exponent: the source is u * exp(E), E linear in running extrema x, so that what was summed with
  the old x follows the new one by H(t, x, x') = t * exp(c * (x' - x));
- rising: max(f(u)) = f(max(u)) for an f that does not fall;
- pick: sum(where(j == i, f(u), 0)) = f(sum(where(j == i, u, 0))) for any f, and 0 without a hit.

H distributes over the sum and H(H(t, x, x'), x', x'') = H(t, x, x''), so that the order and the
size of the blocks do not matter and parts of a split loop combine by the same H.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal as OneOf

from .errors import Refusal, Refused
from .graph import Arg, Ref
from .ops import MAX, MIN, OPS, CostClass, Law, Pointwise
from .values import Choice, Compute, Dims, Fold, Index, Literal, Load, Value, ValueKind, Values

Base = OneOf["e", "2"]


@dataclass(frozen=True, slots=True)
class Correction:
    """How a fold that is under way follows the extrema it was computed with:
    H(t, x, x') = t * base ** sum(c * (x' - x)) over `exponent`.

    exponent: (coefficient c, id of the extremum x in `Derived.values`); c is negative for a
    maximum and positive for a minimum, so that H never grows and is 0 where x was infinite."""

    exponent: tuple[tuple[float, int], ...]
    base: Base = "e"


@dataclass(frozen=True, slots=True)
class Proof:
    """What was derived for the fold of node `fold`: the rule, and the statement it gives."""

    fold: str
    rule: str
    formula: str


@dataclass(frozen=True, slots=True)
class Derived:
    """`values` computes the same outputs; `corrections` by fold id in it; `refusals` by the
    origin of the folds that keep a later pass."""

    values: Values
    corrections: Mapping[int, Correction]
    proofs: tuple[Proof, ...]
    refusals: Mapping[str, Refusal]


def derive(values: Values, over: frozenset[int]) -> Derived:
    """The values rewritten so that as many folds as possible share one pass over the looped
    factors `over`. What no rule reaches is left as it is, with a refusal."""
    work = _Rewriting(values, over)
    corrections: dict[int, Correction] = {}
    proofs: list[Proof] = []
    refusals: dict[str, Refusal] = {}
    for value in values.values:
        kind = value.kind
        if not isinstance(kind, Fold) or over.isdisjoint(kind.reduced):
            continue
        if not work.is_carried(kind):
            why = f"{value.origin} reduces only a part of the looped axis"
            refusals[value.origin] = Refusal("online", why)
            continue
        waits = frozenset[int]().union(*(work.carried(v) for v in value.reads))
        work.now = max((work.passes[f] for f in waits), default=0)
        work.passes[value.id] = work.now
        try:
            proofs += _join(work, value.id, kind, corrections)
        except Refused as refused:
            work.passes[value.id] = work.now + 1
            refusals[value.origin] = refused.refusal
    result, renamed = work.finish()
    renumbered = {
        renamed[fold]: replace(h, exponent=tuple((c, renamed[x]) for c, x in h.exponent))
        for fold, h in corrections.items()
        if fold in renamed
    }
    return Derived(result, renumbered, tuple(proofs), refusals)


def _join(
    work: _Rewriting, fold: int, kind: Fold, corrections: dict[int, Correction]
) -> list[Proof]:
    """Make one carried fold join the pass of those it reads. Raises Refused."""
    if kind.monoid in (MAX, MIN):
        return _lift(work, fold, kind)
    if not any(work.waits(v) for v in work.values[fold].reads):
        return []
    if kind.monoid.name != "sum":
        raise Refused("online", f"no rule corrects a {kind.monoid.name} under way")
    picked = _pick(work, fold, kind)
    return picked if picked else _separate(work, fold, kind, corrections)


# --- values under rewriting ---


_FLOATS = ("float32", "float64")


class _Rewriting:
    """Values to which new ones are appended and in which a slot may change its kind: what read
    the slot reads the new kind. `passes[f]` numbers the pass over the loop in which the carried
    fold f is under way; `now` is that of the fold in hand."""

    def __init__(self, given: Values, over: frozenset[int]) -> None:
        self.given = given
        self.over = over
        self.values = list(given.values)
        self.passes: dict[int, int] = {}
        self.now = 0
        self.changed = False
        self._forget()

    def _forget(self) -> None:
        self._varies: dict[int, frozenset[int]] = {}
        self._carried: dict[int, frozenset[int]] = {}
        self._same = {self._identity(v.kind, v.dims, v.dtype): v.id for v in self.values}

    @staticmethod
    def _identity(kind: ValueKind, dims: Dims, dtype: str) -> object:
        return kind, frozenset(f for dim in dims for f in dim), dtype

    def add(self, kind: ValueKind, dims: Dims, dtype: str, origin: str) -> int:
        """A new value, or the one there is of this kind."""
        key = self._identity(kind, dims, dtype)
        if key not in self._same:
            self._same[key] = len(self.values)
            self.values.append(Value(len(self.values), kind, dims, dtype, origin))
        return self._same[key]

    def number(self, number: float, dtype: str) -> int:
        return self.add(Literal(number), (), dtype, repr(number))

    def cast(self, value: int, dtype: str) -> int:
        source = self.values[value]
        if source.dtype == dtype:
            return value
        kind = Compute("{x}", (("x", Ref(value)),), None, source.dtype, "move", "copy")
        return self.add(kind, source.dims, dtype, source.origin)

    def rebuilt(self, value: int, operands: Mapping[str, int]) -> int:
        """The computation of a value with other operands."""
        old = self.values[value]
        assert isinstance(old.kind, Compute)
        new = tuple((n, Ref(operands[n]) if n in operands else a) for n, a in old.kind.operands)
        return self.add(replace(old.kind, operands=new), old.dims, old.dtype, old.origin)

    def put(self, slot: int, result: int) -> None:
        """Let all that reads the slot read what `result` computes."""
        self.values[slot] = replace(self.values[slot], kind=self.values[result].kind)
        self.changed = True
        self._forget()

    def is_carried(self, kind: ValueKind) -> bool:
        return isinstance(kind, Fold) and bool(self.over) and self.over <= set(kind.reduced)

    def varies(self, value: int) -> frozenset[int]:
        """The factors on which a value really depends."""
        if value not in self._varies:
            kind = self.values[value].kind
            own: set[int] = set()
            match kind:
                case Load(dims=dims):
                    moving = (d for d in dims if d.stride * d.step or d.limit is not None)
                    own.update(f for dim in moving for f in dim.factors)
                case Index(factors=factors) | Choice(factors=factors):
                    own.update(factors)
            own.update(*(self.varies(r) for r in self.values[value].reads))
            own.difference_update(kind.reduced if isinstance(kind, Fold) else ())
            self._varies[value] = frozenset(own)
        return self._varies[value]

    def carried(self, value: int) -> frozenset[int]:
        """The carried folds that a value reads before any other, itself where it is one."""
        if value not in self._carried:
            if self.is_carried(self.values[value].kind):
                self._carried[value] = frozenset({value})
            else:
                reads = self.values[value].reads
                self._carried[value] = frozenset[int]().union(*(self.carried(r) for r in reads))
        return self._carried[value]

    def streams(self, argument: Arg) -> bool:
        return isinstance(argument, Ref) and not self.over.isdisjoint(self.varies(argument.node))

    def waits(self, value: int) -> frozenset[int]:
        """The carried folds in a value that are under way in the pass of the fold in hand."""
        return frozenset(f for f in self.carried(value) if self.passes[f] == self.now)

    def is_extremum(self, value: int) -> bool:
        kind = self.values[value].kind
        return isinstance(kind, Fold) and kind.monoid in (MAX, MIN) and bool(self.waits(value))

    def constant(self, argument: Arg) -> float | None:
        """The number that an operand is everywhere, if it is one."""
        if isinstance(argument, (bool, int, float)):
            return float(argument)
        if isinstance(argument, Ref):
            match self.values[argument.node].kind:
                case Literal(number=number):
                    return float(number)
                case Compute(law="copy", operands=((_, inner),)):
                    return self.constant(inner)
        return None

    def uncopied(self, value: int) -> int:
        """The value behind its conversions."""
        match self.values[value].kind:
            case Compute(law="copy", operands=((_, Ref(node=inner)),)):
                return self.uncopied(inner)
        return value

    def names(self, values: Sequence[int] | frozenset[int]) -> str:
        return ", ".join(self.values[v].origin for v in sorted(values))

    def live(self) -> list[int]:
        """All that the outputs read, every value after its operands."""
        order: dict[int, None] = {}

        def visit(value: int) -> None:
            if value not in order:
                for read in sorted(self.values[value].reads):
                    visit(read)
                order[value] = None

        for wanted in sorted({o.value for o in self.given.outputs}):
            visit(wanted)
        return list(order)

    def readers(self) -> Counter[int]:
        """By value, how many others read it, stores included."""
        found = Counter(o.value for o in self.given.outputs)
        for value in self.live():
            found.update(self.values[value].reads)
        return found

    def finish(self) -> tuple[Values, Mapping[int, int]]:
        """The live values, numbered densely, and their new ids."""
        if not self.changed:
            return self.given, {v.id: v.id for v in self.given.values}
        order = self.live()
        renamed = {old: new for new, old in enumerate(order)}
        values = tuple(
            replace(self.values[old], id=new, kind=_renamed(self.values[old].kind, renamed))
            for old, new in renamed.items()
        )
        outputs = tuple(replace(o, value=renamed[o.value]) for o in self.given.outputs)
        return Values(values, outputs, self.given.extents), renamed


def _renamed(kind: ValueKind, ids: Mapping[int, int]) -> ValueKind:
    match kind:
        case Compute(operands=operands):
            new = tuple((n, Ref(ids[a.node]) if isinstance(a, Ref) else a) for n, a in operands)
            return replace(kind, operands=new)
        case Fold(source=source, times=times):
            return replace(kind, source=ids[source], times=None if times is None else ids[times])
        case Choice(pieces=pieces):
            return replace(kind, pieces=tuple((ids[v], low, high) for v, low, high in pieces))
    return kind


def _row(name: str) -> Pointwise:
    row = OPS[f"aten.{name}"]
    assert isinstance(row, Pointwise)
    return row


def _compute(work: _Rewriting, name: str, like: Value, *operands: int) -> int:
    """A new value computed by a row of the table from values named self, other, in the dtype of
    `like` and of its shape."""
    row = _row(name)
    expr = (row.wide or row.expr) if like.dtype == "float64" else row.expr
    expr = expr.replace(" * {alpha}", "")
    named = tuple(zip(("self", "other"), map(Ref, operands), strict=False))
    kind = Compute(expr, named, like.dtype, like.dtype, row.cost, row.law)
    return work.add(kind, like.dims, like.dtype, like.origin)


# --- rule: multiplier ---


@dataclass(frozen=True, slots=True)
class _Factor:
    """A multiplier (law "mul") or divisor ("div") that moves behind the sum; `text` names it."""

    value: int
    law: Law
    expr: str
    cost: CostClass
    text: str


@dataclass(frozen=True, slots=True)
class _Product:
    """A value as `kept` times what moves. `kept` (None for 1) reads the folds it waits for only
    through its exponentials, whose exponents hold `exponent`: coefficient by extremum.
    masked: zeros are selected in place of some elements, whatever the multipliers are."""

    kept: int | None
    moved: tuple[_Factor, ...] = ()
    exponent: Mapping[int, float] = field(default_factory=dict)
    base: Base = "e"
    masked: bool = False


def _multiplier(value: int, text: str) -> _Factor:
    row = _row("mul.Tensor")
    return _Factor(value, row.law, row.expr, row.cost, text)


def _combined(kept: int | None, *parts: _Product) -> _Product:
    exponent: dict[int, float] = {}
    for part in parts:
        for x, c in part.exponent.items():
            exponent[x] = exponent.get(x, 0.0) + c
    bases = {part.base for part in parts if part.exponent}
    if len(bases) > 1:
        raise Refused("online", "the source holds both exp and exp2")
    moved = tuple(factor for part in parts for factor in part.moved)
    masked = any(part.masked for part in parts)
    return _Product(kept, moved, exponent, bases.pop() if bases else "e", masked)


def _separate(
    work: _Rewriting, fold: int, kind: Fold, corrections: dict[int, Correction]
) -> list[Proof]:
    """A sum joins: multipliers move behind it, exponents become a correction."""
    value = work.values[fold]
    parts = [_product(work, v) for v in (kind.source, kind.times) if v is not None]
    whole = _combined(None, *parts)
    kept = [part.kept for part in parts]
    if None in kept:
        raise Refused("online", f"an operand of {value.origin} does not vary along the loop")
    source, times = (*kept, None)[:2]
    assert source is not None
    inner = fold
    if whole.moved:
        summed = replace(kind, source=source, times=times)
        inner = work.add(summed, value.dims, value.dtype, value.origin)
        result = inner
        for factor in whole.moved:
            operands = (("self", Ref(result)), ("other", Ref(factor.value)))
            dtype, how = value.dtype, (factor.cost, factor.law)
            scaled = Compute(factor.expr, operands, dtype, dtype, *how)
            result = work.add(scaled, value.dims, value.dtype, value.origin)
        if whole.masked:
            result = _unless_zero(work, inner, result)
        work.put(fold, result)
        work.passes[inner] = work.now
    proofs = [Proof(value.origin, "multiplier", _moving(kind, f)) for f in whole.moved]
    if whole.exponent:
        exponent = tuple((c, x) for x, c in sorted(whole.exponent.items()))
        corrections[inner] = Correction(exponent, whole.base)
        proofs.append(Proof(value.origin, "exponent", _statement(work, corrections[inner])))
    return proofs


def _unless_zero(work: _Rewriting, total: int, result: int) -> int:
    """A sum of zeros selected by a mask stays 0 where its multiplier is infinite or NaN: the row
    that a softmax has masked altogether."""
    like = work.values[total]
    row = _row("eq.Scalar")
    kind = Compute(row.expr, (("self", Ref(total)), ("other", 0)), like.dtype, "bool", row.cost)
    empty = work.add(kind, like.dims, "bool", like.origin)
    where = _row("where.self")
    operands = (("condition", Ref(empty)), ("self", Ref(total)), ("other", Ref(result)))
    chosen = Compute(where.expr, operands, like.dtype, like.dtype, where.cost, where.law)
    return work.add(chosen, like.dims, like.dtype, like.origin)


def _product(work: _Rewriting, value: int) -> _Product:
    """A value as a product. Raises Refused where it is none."""
    own = work.values[value]
    if not work.waits(value):
        return _Product(value)
    if not work.streams(Ref(value)):
        return _Product(None, (_multiplier(value, own.origin),))
    if isinstance(own.kind, Compute) and own.dtype in _FLOATS:
        match own.kind.law:
            case "copy" | "neg":
                return _product_through(work, own, own.kind)
            case "mul":
                return _product_of_both(work, own, own.kind)
            case "div":
                return _quotient(work, own, own.kind)
            case "select":
                return _selected(work, own, own.kind)
            case "exp" | "exp2":
                return _exponential(work, own, own.kind)
    raise Refused(
        "online", f"{own.origin} is no product: {work.names(work.waits(value))} cannot leave it"
    )


def _product_through(work: _Rewriting, own: Value, kind: Compute) -> _Product:
    ((name, argument),) = kind.operands
    assert isinstance(argument, Ref)
    if work.values[argument.node].dtype not in _FLOATS:
        raise Refused("online", f"{own.origin} converts what is no floating-point number")
    part = _product(work, argument.node)
    assert part.kept is not None
    return replace(part, kept=work.rebuilt(own.id, {name: part.kept}))


def _product_of_both(work: _Rewriting, own: Value, kind: Compute) -> _Product:
    parts = {n: _product(work, a.node) for n, a in kind.operands if isinstance(a, Ref)}
    kept = {n: part.kept for n, part in parts.items() if part.kept is not None}
    if len(kept) == len(parts):
        left = work.rebuilt(own.id, kept)
    else:
        (alone,) = kept.values()
        left = work.cast(alone, own.dtype)
    return _combined(left, *parts.values())


def _quotient(work: _Rewriting, own: Value, kind: Compute) -> _Product:
    operands = dict(kind.operands)
    above, below = operands["self"], operands["other"]
    top = _product(work, above.node) if isinstance(above, Ref) else _Product(None)
    if not isinstance(below, Ref) or not work.waits(below.node):
        one = work.number(1.0, own.dtype) if top.kept is None else top.kept
        return replace(top, kept=work.rebuilt(own.id, {"self": one}))
    if work.streams(below):
        raise Refused(
            "online", f"{own.origin} divides by {work.names([below.node])}, which is streamed"
        )
    assert top.kept is not None
    factor = _Factor(below.node, "div", kind.expr, kind.cost, work.values[below.node].origin)
    return replace(top, kept=work.cast(top.kept, own.dtype), moved=(*top.moved, factor))


def _selected(work: _Rewriting, own: Value, kind: Compute) -> _Product:
    """where(c, u * x, 0) = where(c, u, 0) * x."""
    operands = dict(kind.operands)
    condition = operands.pop("condition")
    assert isinstance(condition, Ref)
    if work.waits(condition.node):
        raise Refused("online", f"{own.origin} chooses by {work.names([condition.node])}")
    named = [name for name, argument in operands.items() if work.constant(argument) != 0]
    if len(named) != 1:
        raise Refused("online", f"{own.origin} chooses between two values, neither of them 0")
    chosen = operands[named[0]]
    assert isinstance(chosen, Ref)
    part = _product(work, chosen.node)
    kept = work.number(1.0, own.dtype) if part.kept is None else part.kept
    return replace(part, kept=work.rebuilt(own.id, {named[0]: kept}), masked=True)


# --- rule: exponent ---


def _exponential(work: _Rewriting, own: Value, kind: Compute) -> _Product:
    """exp(E). What E holds beside extrema and streamed values moves out as a multiplier, and a
    value that bounds an extremum, such as maximum(m, sink), is replaced by the extremum."""
    (argument,) = (a for _, a in kind.operands)
    assert isinstance(argument, Ref)
    form = _linear(work, argument.node)
    others = {x: c for x, c in form.items() if work.waits(x) and not work.is_extremum(x)}
    extrema = {x: c for x, c in form.items() if work.is_extremum(x)}
    base: Base = "e" if kind.law == "exp" else "2"
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
        return _Product(work.rebuilt(own.id, {"self": inner}), moved, follows, base)
    if others and not any(work.is_extremum(f) for x in form for f in work.waits(x)):
        why = f"follows {work.names([*others])}, which is no running maximum or minimum"
        raise Refused("online", f"the exponent of {own.origin} {why}")
    what = work.names([*extrema, *others])
    why = f"is not bounded while {what}, no extremum of its exponent, is under way"
    raise Refused("online", f"{own.origin} {why}")


def _swaps(
    work: _Rewriting, extrema: Mapping[int, float], others: Mapping[int, float]
) -> Iterator[dict[int, int | None]]:
    """What may stand in the exponent for each of the others: nothing, or an extremum in it."""
    if extrema:
        yield dict.fromkeys(others)
    for x in others:
        for inside in sorted(work.waits(x)):
            if work.is_extremum(inside):
                yield {**dict.fromkeys(others), x: inside}


def _leaving(
    work: _Rewriting, own: Value, kind: Compute, x: int, c: float, instead: int | None
) -> _Factor:
    """The multiplier exp(c * (x - instead))."""
    like, name = work.values[x], work.values[x].origin
    sign = "-" if c == -1 else "" if c == 1 else f"{c:g} * "
    text, power = f"{sign}{name}", x
    if instead is not None:
        other = work.values[instead].origin
        text = f"{other} - {name}" if c == -1 else f"{sign}({name} - {other})"
        pair = (instead, x) if c == -1 else (x, instead)
        power = _compute(work, "sub.Tensor", like, *pair)
    elif c == -1:
        power = _compute(work, "neg.default", like, x)
    if c not in (1, -1):
        power = _compute(work, "mul.Tensor", like, power, work.number(c, like.dtype))
    multiplier = _compute(work, f"{kind.law}.default", like, power)
    return _multiplier(multiplier, f"{kind.law}({text})")


def _substituted(work: _Rewriting, value: int, instead: Mapping[int, int]) -> int:
    """A linear form with some of its parts replaced."""
    if value in instead or not isinstance(kind := work.values[value].kind, Compute):
        return instead.get(value, value)
    old = {n: a.node for n, a in kind.operands if isinstance(a, Ref)}
    new = {n: _substituted(work, node, instead) for n, node in old.items()}
    if new == old:
        return value
    if kind.law in ("add", "sub") and "other" in new and work.constant(Ref(new["other"])) == 0:
        return new.get("self", value)
    return work.rebuilt(value, new)


def _is_bounded(work: _Rewriting, exponent: int, extrema: Mapping[int, float]) -> bool:
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


def _linear(work: _Rewriting, value: int, opened: bool = False) -> dict[int, float]:
    """A value as a linear form: coefficient by value, the constant left out. opened: an upper
    bound instead, in which a mask hides nothing. Raises Refused where a fold is under way in a
    streamed part."""
    form: dict[int, float] = {}

    def gather(at: int, scale: float) -> None:
        own = work.values[at]
        parts = _linear_parts(work, own, scale, opened) if own.dtype in _FLOATS else None
        if parts is None:
            if work.waits(at) and work.streams(Ref(at)):
                names = work.names(work.waits(at))
                raise Refused("online", f"{own.origin} in the exponent is not linear in {names}")
            form[at] = form.get(at, 0.0) + scale
            return
        for part, k in parts:
            if isinstance(part, Ref) and work.constant(part) is None:
                gather(part.node, scale * k)

    gather(value, 1.0)
    return form


def _linear_parts(
    work: _Rewriting, own: Value, scale: float, opened: bool
) -> list[tuple[Arg, float]] | None:
    """The terms of a value that is a sum of multiples of others, else None."""
    kind = own.kind
    if not isinstance(kind, Compute):
        return None
    operands = dict(kind.operands)
    left, right = operands.get("self"), operands.get("other")
    alpha = work.constant(operands.get("alpha", 1))
    match kind.law:
        case "copy":
            ((_, only),) = kind.operands
            if isinstance(only, Ref) and work.values[only.node].dtype in _FLOATS:
                return [(only, 1.0)]
        case "neg":
            return [(left, -1.0)]
        case "add" | "sub" | "rsub" if alpha is not None:
            first, second = (right, left) if kind.law == "rsub" else (left, right)
            return [(first, 1.0), (second, alpha if kind.law == "add" else -alpha)]
        case "mul":
            for one, other in ((left, right), (right, left)):
                k = work.constant(other)
                if k is not None and math.isfinite(k):
                    return [(one, k)]
        case "div":
            k = work.constant(right)
            if k and math.isfinite(k):
                return [(left, 1 / k)]
        case "select":
            return _unmasked(work, operands, scale, opened)
    return None


def _unmasked(
    work: _Rewriting, operands: Mapping[str, Arg], scale: float, opened: bool
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
    instead = work.constant(left)
    if instead is None or not math.isfinite(instead) or not isinstance(right, Ref):
        return None
    return [(right, 1.0)] if _is_infinite(work, condition.node) == right.node else None


def _is_infinite(work: _Rewriting, condition: int) -> int | None:
    """The value that is infinite where the condition holds."""
    kind = work.values[condition].kind
    if not isinstance(kind, Compute):
        return None
    operands = dict(kind.operands)
    tested = operands.get("self")
    if not isinstance(tested, Ref):
        return None
    if kind.expr == _row("isinf.default").expr:
        return tested.node
    limit = work.constant(operands.get("other"))
    if kind.expr != _row("eq.Scalar").expr or limit is None or not math.isinf(limit):
        return None
    inner = work.values[tested.node].kind
    if isinstance(inner, Compute) and inner.expr == _row("abs.default").expr:
        (tested,) = (a for _, a in inner.operands)
    return tested.node if isinstance(tested, Ref) else None


# --- rule: pick ---


def _pick(work: _Rewriting, fold: int, kind: Fold) -> list[Proof]:
    """The sum of the only element that an index selects: what is computed from streamed values
    and waiting folds is computed from the picked elements after the loop."""
    value, source = work.values[fold], work.values[kind.source]
    if kind.times is not None or kind.mean or not isinstance(source.kind, Compute):
        return []
    operands = dict(source.kind.operands)
    condition, chosen = operands.get("condition"), operands.get("self")
    if source.kind.law != "select" or work.constant(operands["other"]) != 0:
        return []
    if not isinstance(condition, Ref) or not isinstance(chosen, Ref):
        return []
    if work.waits(condition.node) or not _is_one_hot(work, condition.node, kind.reduced):
        return []

    def total(of: int) -> int:
        selected = work.rebuilt(source.id, {"self": of})
        summed = work.add(replace(kind, source=selected), value.dims, value.dtype, value.origin)
        work.passes[summed] = work.now
        return summed

    def behind(at: int) -> int:
        if not work.streams(Ref(at)):
            return at
        own = work.values[at]
        if not work.waits(at) and own.dtype == value.dtype:
            return total(at)
        if not isinstance(own.kind, Compute):
            raise Refused("online", f"{own.origin} cannot be picked from")
        new = tuple(
            (n, Ref(behind(a.node)) if isinstance(a, Ref) else a) for n, a in own.kind.operands
        )
        return work.add(replace(own.kind, operands=new), value.dims, own.dtype, own.origin)

    result = behind(chosen.node)
    hits = total(work.number(1.0, source.dtype))
    work.put(fold, _unless_zero(work, hits, result))
    formula = (
        f"sum(where(j == i, f(u), 0)) = f(sum(where(j == i, u, 0))), {work.names([source.id])}"
    )
    return [Proof(value.origin, "pick", formula)]


def _is_one_hot(work: _Rewriting, condition: int, reduced: tuple[int, ...]) -> bool:
    """Whether a condition holds for at most one index along the reduced factors."""
    kind = work.values[condition].kind
    if not isinstance(kind, Compute):
        return False
    sides = [a.node for _, a in kind.operands if isinstance(a, Ref)]
    if kind.law == "and":
        return any(_is_one_hot(work, side, reduced) for side in sides)
    if kind.expr != _row("eq.Tensor").expr:
        return False
    along = set(reduced)
    fixed = len(sides) - sum(not along.isdisjoint(work.varies(side)) for side in sides)
    indices = [k for k in (work.values[work.uncopied(side)].kind for side in sides)]
    return fixed + 1 == len(sides) and any(
        isinstance(k, Index) and k.step != 0 and along <= set(k.factors) for k in indices
    )


# --- rule: rising ---


def _lift(work: _Rewriting, fold: int, kind: Fold) -> list[Proof]:
    """An extremum of a chain of monotone operations is the chain of the extremum. What others
    read stays, unless the extremum must wait for a part of it."""
    monoid, at = kind.monoid, kind.source
    readers = work.readers()
    chain: list[tuple[int, str]] = []
    while work.waits(at) or readers[at] == 1:
        step = _monotone(work, at)
        if step is None:
            break
        name, inside, direction = step
        chain.append((at, name))
        monoid = monoid if direction > 0 else MIN if monoid == MAX else MAX
        at = inside
    if work.waits(at):
        own = work.values[at].origin
        raise Refused("online", f"{own} does not rise with all that is streamed in it")
    if all(_is_copy(work.values[v].kind) for v, _ in chain):
        return []
    value = work.values[fold]
    result = work.add(
        replace(kind, monoid=monoid, source=at), value.dims, work.values[at].dtype, value.origin
    )
    work.passes[result] = work.now
    for link, name in reversed(chain):
        old = work.values[link]
        assert isinstance(old.kind, Compute)
        operands = tuple((n, Ref(result) if n == name else a) for n, a in old.kind.operands)
        result = work.add(replace(old.kind, operands=operands), value.dims, old.dtype, old.origin)
    work.put(fold, result)
    moved = [work.values[v].origin for v, _ in reversed(chain) if not _is_copy(work.values[v].kind)]
    formula = f"{kind.monoid.name}(f(u)) = f({monoid.name}(u)), f = {', then '.join(moved)}"
    return [Proof(value.origin, "rising", formula)]


def _is_copy(kind: ValueKind) -> bool:
    return isinstance(kind, Compute) and kind.law == "copy"


def _monotone(work: _Rewriting, value: int) -> tuple[str, int, int] | None:
    """The one streamed operand of a value, by name and id, and whether the value rises with it
    (1) or falls (-1); None where it does neither."""
    own = work.values[value]
    if not isinstance(own.kind, Compute) or own.dtype not in _FLOATS:
        return None
    moving = [(n, a.node) for n, a in own.kind.operands if isinstance(a, Ref) and work.streams(a)]
    if len(moving) != 1 or work.values[moving[0][1]].dtype not in _FLOATS:
        return None
    name, inside = moving[0]
    operands = dict(own.kind.operands)
    slope: float | None = 0.0
    match own.kind.law:
        case "copy" | "rising" | "exp" | "exp2":
            slope = 1.0
        case "rising_from_0":
            slope = float(_is_nonnegative(work, inside))
        case "neg":
            slope = -1.0
        case "add" | "sub" | "rsub" as law:
            alpha = work.constant(operands.get("alpha", 1)) or 0.0
            scaled = "self" if law == "rsub" else "other"
            slope = 1.0 if name != scaled else alpha if law == "add" else -alpha
        case "mul":
            slope = work.constant(operands["other" if name == "self" else "self"])
        case "div" if name == "self":
            slope = work.constant(operands["other"])
    if not slope or not math.isfinite(slope):
        return None
    return name, inside, 1 if slope > 0 else -1


def _texts(*names: str) -> frozenset[str]:
    rows = [_row(f"{name}.default") for name in names]
    return frozenset(e for row in rows for e in (row.expr, row.relaxed, row.wide, row.quick) if e)


_NEVER_NEGATIVE = _texts("relu", "abs", "sigmoid", "sqrt") | {"{self} * {self}"}
_FIXES_SIGN = _texts("log1p", "tanh", "erf", "expm1", "floor", "ceil", "trunc", "round")
_MAXIMUM, _CLAMP = _row("maximum.default").expr, _texts("clamp", "clamp_min")


def _is_nonnegative(work: _Rewriting, value: int) -> bool:
    """Whether a value is provably at least 0, or NaN."""
    own = work.values[value]

    def holds(argument: Arg) -> bool:
        known = work.constant(argument)
        if known is not None:
            return known >= 0
        return isinstance(argument, Ref) and _is_nonnegative(work, argument.node)

    match own.kind:
        case Literal(number=number):
            return number >= 0
        case Fold(monoid=monoid, source=source, times=times):
            return monoid.name in ("sum", "max", "min") and times is None and holds(Ref(source))
        case Compute(expr=expr, operands=operands, law=law):
            arguments = [a for n, a in operands if n != "condition"]
            if expr in _NEVER_NEGATIVE or law in ("exp", "exp2"):
                return True
            if expr in _CLAMP and holds(dict(operands).get("min")):
                return True
            if expr == _MAXIMUM:
                return any(map(holds, arguments))
            if law == "mul" and len(arguments) == 2 and arguments[0] == arguments[1]:
                return True
            passes = law in ("copy", "add", "mul", "div", "select") or expr in _FIXES_SIGN
            return passes and all(map(holds, arguments))
    return own.dtype in ("bool", "uint8")


# --- statements ---


def _moving(kind: Fold, factor: _Factor) -> str:
    sign = "*" if factor.law == "mul" else "/"
    name = "mean" if kind.mean else "sum"
    return f"{name}(u {sign} x) = {name}(u) {sign} x, x = {factor.text}"


def _statement(work: _Rewriting, correction: Correction) -> str:
    """H as it is printed: "H(t, x, x') = t * exp(x - x'), x = amax"."""
    several = len(correction.exponent) > 1
    terms, names = [], []
    for i, (c, x) in enumerate(correction.exponent):
        name = f"x{i}" if several else "x"
        names.append(f"{name} = {work.values[x].origin}")
        step = f"{name} - {name}'" if c < 0 else f"{name}' - {name}"
        if abs(c) != 1:
            step = f"{abs(c):g} * ({step})"
        terms.append(step)
    function = "exp" if correction.base == "e" else "exp2"
    return f"H(t, x, x') = t * {function}({' + '.join(terms)}), {', '.join(names)}"
