"""Online reductions, derived: folds that wait for other folds over the same looped axis are made
to join their sweep.

A fold over a looped axis is *carried*: complete only after the loop. A value that varies along
the axis is *streamed*. A fold whose source reads a carried fold would need another sweep; it joins
the same sweep where one of these rules holds, else it is refused with the step that failed:

- multiplier: sum(u * x) = sum(u) * x for an x made of carried folds that is not streamed;
- exponent: the source is u * exp(E), E linear in running extrema x, so that what was summed with
  the old x follows the new one by H(t, x, x') = t * exp(c * (x' - x));
- shift: the source is w * (v + c * x), x a running extremum of what it is added to, and s = sum(w)
  is under way beside it: H(t, x, x') = t + c * (x' - x) * s, times what s follows x by, where w is
  an exponential; and sum(w * (v + log(y))) = sum(w * v) + log(y) * sum(w);
- rising: max(f(u)) = f(max(u)) for an f that does not fall;
- welford: sum((u - mean(u))**2) follows the sum that gives the mean (`welford.py`);
- pick: sum(where(j == i, f(u), 0)) = f(sum(where(j == i, u, 0))) for any f, and 0 without a hit.

H distributes over the sum and H(H(t, x, x'), x', x'') = H(t, x, x''), so that the order and the
size of the blocks do not matter and parts of a split loop combine by the same H. With a shift, H
takes the pair (t, s) to a pair: s' = s * exp(d), t' = (t + c * (x' - x) * s) * exp(d), and again
the shifts of two steps add up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..errors import Refusal, Refused
from ..graph.op import Op
from ..graph.ops import MAX, MIN, SUM
from ..values.values import Fold, Value, Values
from .move_behind_reduce import lift, pick
from .products import ExponentBase, Factor, Product, combined, product
from .rewriting import Rewriting, unless_zero
from .shifts import shifted, weights_of
from .welford import follow_mean


@dataclass(frozen=True, slots=True)
class Correction:
    """Brings a fold that is under way up to new values of the extrema it was computed with:
    H(t, x, x') = (t + s * sum(k * (x' - x)) over `shift`) * base ** sum(c * (x' - x)) over
    `exponent`, s being the fold's `weight` before the turn.

    exponent: (coefficient c, id of the extremum x in `Derived.values`); c is negative for a
    maximum and positive for a minimum, so that H never grows and is 0 where x was infinite.
    shift: the same of k; an extremum that is infinite still, as it begins, counts as 0.
    masked: zeros are selected in place of some elements of the fold."""

    exponent: tuple[tuple[float, int], ...]
    base: ExponentBase = "e"
    shift: tuple[tuple[float, int], ...] = ()
    masked: bool = False

    @property
    def follows(self) -> frozenset[int]:
        """The extrema."""
        return frozenset(x for _, x in (*self.exponent, *self.shift))

    def renamed(self, names: Mapping[int, int]) -> Correction:
        """The same where the values have other ids."""
        exponent, shift = (
            tuple((c, names[x]) for c, x in terms) for terms in (self.exponent, self.shift)
        )
        return replace(self, exponent=exponent, shift=shift)


@dataclass(frozen=True, slots=True)
class Proof:
    """The derivation for the fold of node `fold`: the rule, and the statement it gives."""

    fold: str
    rule: str
    formula: str


@dataclass(frozen=True, slots=True)
class Derived:
    """`values` computes the same outputs; `corrections` by fold id in it; `refusals` by the
    origin of the folds that keep a later sweep."""

    values: Values
    corrections: Mapping[int, Correction]
    proofs: tuple[Proof, ...]
    refusals: Mapping[str, Refusal]


def followed(
    values: Sequence[Value], corrections: Mapping[int, Correction], fold: int
) -> frozenset[int]:
    """The folds of the same sweep that a fold follows while they are under way."""
    correction, kind = corrections.get(fold), values[fold].kind
    found = correction.follows if correction else frozenset[int]()
    beside = (kind.about, kind.weight) if isinstance(kind, Fold) else ()
    return found.union(v for v in beside if v is not None)


def derive(values: Values, over: frozenset[int]) -> Derived:
    """The values rewritten so that as many folds as possible share one sweep over the looped
    factors `over`. What no rule reaches is left as it is, with a refusal."""
    work = Rewriting(values, over)
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
        work.now = max((work.sweeps[f] for f in waits), default=0)
        work.sweeps[value.id] = work.now
        work.along = frozenset(kind.reduced)
        try:
            proofs += _join(work, value.id, kind, corrections)
        except Refused as refused:
            work.sweeps[value.id] = work.now + 1
            refusals[value.origin] = refused.refusal
    result, renamed = work.finish()
    renumbered = {renamed[f]: h.renamed(renamed) for f, h in corrections.items() if f in renamed}
    return Derived(result, renumbered, tuple(proofs), refusals)


def _join(
    work: Rewriting, fold: int, kind: Fold, corrections: dict[int, Correction]
) -> list[Proof]:
    """Make one carried fold join the sweep of those it reads. Raises Refused."""
    if kind.monoid in (MAX, MIN):
        return _proved(work, fold, "rising", lift(work, fold, kind))
    if kind.about is not None or not any(work.waits(v) for v in work.values[fold].reads):
        return []
    if kind.monoid != SUM:
        raise Refused("online", f"no rule corrects a {kind.monoid.name} under way")
    near = _proved(work, fold, "welford", follow_mean(work, fold, kind))
    picked = near or _proved(work, fold, "pick", pick(work, fold, kind))
    return picked or _separate(work, fold, kind, corrections)


def _proved(work: Rewriting, fold: int, rule: str, formula: str) -> list[Proof]:
    return [Proof(work.values[fold].origin, rule, formula)] if formula else []


def _separate(
    work: Rewriting, fold: int, kind: Fold, corrections: dict[int, Correction]
) -> list[Proof]:
    """A sum joins: multipliers and logarithms move behind it, what is left becomes a correction."""
    value = work.values[fold]
    parts = [product(work, v) for v in (kind.source, kind.times) if v is not None]
    whole = combined(None, *parts)
    kept = [part.kept for part in parts]
    if None in kept:
        raise Refused("online", f"an operand of {value.origin} does not vary along the loop")
    if whole.shift and kind.times is not None:
        raise Refused(
            "online", f"{value.origin} reads a sum that is rescaled when its extremum changes"
        )
    source, times = (*kept, None)[:2]
    assert source is not None
    summed = replace(kind, source=source, times=times)
    exponent = tuple((c, x) for x, c in sorted(whole.exponent.items()))
    proofs = []
    if whole.shift:
        weights = weights_of(work, fold, kind, whole.shift)
        summed = replace(summed, weight=weights)
        if exponent:
            corrections[weights] = Correction(exponent, whole.base)
    inner = _moved_behind(work, fold, summed, whole)
    proofs = [Proof(value.origin, "multiplier", _moving(kind, f)) for f in whole.moved]
    logs = whole.shift.logs if whole.shift else {}
    proofs += [Proof(value.origin, "shift", _adding(kind, work, y)) for y in logs]
    shift = tuple((k, x) for x, k in sorted(whole.shift.extrema.items())) if whole.shift else ()
    if exponent or shift:
        corrections[inner] = Correction(exponent, whole.base, shift, whole.masked)
        rule = "shift" if shift else "exponent"
        proofs.append(Proof(value.origin, rule, _statement(work, corrections[inner])))
    return proofs


def _moved_behind(work: Rewriting, fold: int, summed: Fold, whole: Product) -> int:
    """Let the fold be the sum of what is kept, with what moves behind it; the id of that sum."""
    value = work.values[fold]
    stays = not whole.moved and not (whole.shift and whole.shift.logs)
    if stays and (not whole.shift or summed == value.kind):
        return fold
    inner = work.add(summed, value.dims, value.dtype, value.origin)
    result = inner
    if whole.shift:
        assert summed.weight is not None
        result = shifted(work, inner, summed.weight, whole.shift, whole.masked)
    for factor in whole.moved:
        scaled = factor.of(result, value.dtype)
        result = work.add(scaled, value.dims, value.dtype, value.origin)
    if whole.masked and whole.moved:
        result = unless_zero(work, inner, result)
    work.put(fold, result)
    if result == inner:
        inner = fold
    work.sweeps[inner] = work.now
    return inner


# --- statements ---


def _moving(kind: Fold, factor: Factor) -> str:
    sign = "*" if factor.op is Op.MUL else "/"
    name = "mean" if kind.mean else "sum"
    return f"{name}(u {sign} x) = {name}(u) {sign} x, x = {factor.text}"


def _adding(kind: Fold, work: Rewriting, added: int) -> str:
    name = "mean" if kind.mean else "sum"
    origin = work.values[added].origin
    return f"{name}(w * (v + x)) = {name}(w * v) + x * {name}(w), x = {origin}"


def _statement(work: Rewriting, correction: Correction) -> str:
    """H as it is printed: "H(t, x, x') = t * exp(x - x'), x = amax"."""
    every = dict.fromkeys(x for _, x in (*correction.exponent, *correction.shift))
    names = {x: f"x{i}" if len(every) > 1 else "x" for i, x in enumerate(every)}

    def steps(terms: Sequence[tuple[float, int]]) -> str:
        found = []
        for c, x in terms:
            name = names[x]
            step = f"{name} - {name}'" if c < 0 else f"{name}' - {name}"
            found.append(step if abs(c) == 1 else f"{abs(c):g} * ({step})")
        return " + ".join(found)

    text = f"(t + ({steps(correction.shift)}) * s)" if correction.shift else "t"
    if correction.exponent:
        function = "exp" if correction.base == "e" else "exp2"
        text += f" * {function}({steps(correction.exponent)})"
    text += ", s = sum(w)" * bool(correction.shift)
    origins = (f"{name} = {work.values[x].origin}" for x, name in names.items())
    return f"H(t, x, x') = {text}, {', '.join(origins)}"
