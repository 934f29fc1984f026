"""Folds as Triton: reductions of tiles, matrix products, and what loops carry of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..graph.dtypes import TRITON_DTYPE
from ..graph.op import Accuracy, Op
from ..graph.ops import SUM
from ..graph.sizes import nominal, varies
from ..graph.texts import text_of
from ..nests.placement import Loop
from ..stream.online import Correction
from ..values.values import Compute, Fold, Load, Value
from . import spreads
from .access import ONES, Dims
from .body import convert, identity, literal
from .scope import Scope
from .siblings import MOST, may_join

MANY_TURNS = 128
"""Turns of a loop from which on a sum carries what it loses."""


def step(scope: Scope, value: Value, fold: Fold) -> None:
    """A fold whose axes all lie in the tile."""
    dims = scope.tiles.dims(scope.nest.live[value.id])
    if value.id in scope.dots:
        scope.bind(value.id, convert(_dot(scope, value, fold, ""), "float32", value.dtype), dims)
        return
    if value.id in scope.by_ones:
        _ones(scope, value, fold)
        text = _first(_by_ones(scope, value, fold, ""))
        scope.bind(value.id, _scaled(scope, value, fold, text), dims)
        return
    text, over = _item(scope, value, fold)
    if fold.about is not None:
        mean = spreads.mean_of(scope, value, fold, over)
        text = spreads.around(scope, value, fold, over, mean)
    text = _reduced(scope, value, fold, text, over)
    scope.bind(value.id, _scaled(scope, value, fold, text), _without(over, scope, fold))


def steps(scope: Scope, values: Sequence[int]) -> None:
    """Sums that go together (see `siblings.joined`)."""
    sums = [(v, *_item(scope, scope.nest.values[v], scope.nest.fold(v))) for v in values]
    _bind_together(scope, sums)


def _bind_together(scope: Scope, sums: list[tuple[int, str, Dims]]) -> None:
    """The sums of tiles, by value, a few of one shape at once. What is written leaves the list."""
    while sums:
        first = sums[0]
        like = [s for s in sums if _shape(scope, s) == _shape(scope, first)][:MOST]
        like = like if may_join(scope, scope.nest.values[first[0]]) else [first]
        texts = _reduced_at_once(scope, like) if len(like) > 1 else [first[1]]
        for (number, _, over), text in zip(like, texts, strict=True):
            value, fold = scope.nest.values[number], scope.nest.fold(number)
            if len(like) == 1:
                text = _reduced(scope, value, fold, text, over)
            scope.bind(number, _scaled(scope, value, fold, text), _without(over, scope, fold))
        sums[:] = [s for s in sums if s not in like]


def _shape(scope: Scope, one: tuple[int, str, Dims]) -> object:
    number, _, over = one
    joins = may_join(scope, scope.nest.values[number])
    return joins, scope.nest.reduced(scope.nest.fold(number)), over


def _reduced_at_once(scope: Scope, items: Sequence[tuple[int, str, Dims]]) -> list[str]:
    texts = [text for _, text, _ in items]
    fold, dims = scope.nest.fold(items[0][0]), items[0][2]
    names = [f"v{number}_total" for number, _, _ in items]
    for axis in sorted(set(scope.nest.reduced(fold)) & set(dims), reverse=True):
        call = f"tl.reduce(({', '.join(texts)}), {dims.index(axis)}, sums_of_{len(items)})"
        scope.line(f"{', '.join(names)} = {call}")
        texts, dims = names, tuple(d for d in dims if d != axis)
    return texts


@dataclass(slots=True)
class Carried:
    """The state of the folds that one loop carries."""

    scope: Scope
    loop: Loop
    counter: str
    """The name of the number of the turn, from 0."""
    _scales: dict[object, tuple[str, Dims]] = field(default_factory=dict)

    @property
    def counts_turns(self) -> bool:
        """Whether a state depends on how many turns came before, so that full blocks come first."""
        return any(self.scope.nest.fold(f).about is not None for f in self.loop.carries)

    def begin(self) -> None:
        """Before the loop: each state is the identity."""
        for fold in self.loop.carries:
            value, kind = self.scope.nest.values[fold], self.scope.nest.fold(fold)
            dtype = _working(value)
            dims, neutral = self._dims(fold), identity(dict(kind.monoid.identity), dtype)
            shape = self.scope.tiles.shape(dims)
            if fold in self.scope.by_ones:
                assert not self.loop.by_lane, "a product has no state for every lane"
                _ones(self.scope, value, kind)
                shape = f"[{self.scope.tiles.blocks[dims[0]]}, {ONES}]"
            full = f"tl.full({shape}, {neutral}, {TRITON_DTYPE[dtype]})"
            self.scope.line(f"v{fold}_sofar = {full}", f"{value.origin}, so far")
            if kind.about is not None:
                spreads.begin(self.scope, value, dims)
            if self._is_long(fold):
                zeros = f"tl.full({shape}, 0.0, {TRITON_DTYPE[dtype]})"
                self.scope.line(f"v{fold}_lost = {zeros}", "what rounding has added so far")

    def take(self, fold: int) -> None:
        """In the loop: this turn's tile goes into the state."""
        scope, kind = self.scope, self.scope.nest.fold(fold)
        value, state = scope.nest.values[fold], f"v{fold}_sofar"
        correction = self._correction(fold)
        before = state
        if correction is not None:
            scale, dims = self._scale(fold)
            before = f"{state} * {scope.tiles.spread(scale, dims, self._dims(fold))}"
        if fold in scope.dots:
            if correction is not None:
                scope.line(f"{state} = {before}")
            scope.line(f"{state} = {_dot(scope, value, kind, state)}", value.origin)
            return
        if fold in scope.by_ones:
            scope.line(f"{state} = {_by_ones(scope, value, kind, state)}", value.origin)
            return
        if kind.about is not None:
            assert self.loop.by_lane, "a sum around a mean under way has a state for every lane"
            spreads.take(scope, value, kind, self._dims(fold), self.counter)
            return
        text, over = _item(scope, value, kind)
        if not self.loop.by_lane:
            text = _reduced(scope, value, kind, text, over)
        if self._is_long(fold):
            self._add(fold, text)
            return
        text = kind.monoid.combine.format(a=before, b=text)
        if not self._is_followed(fold):
            scope.line(f"{state} = {text}")
            return
        # Inside exponents an extremum that is still the identity stands as 0: inf - inf is NaN.
        neutral = identity(dict(kind.monoid.identity), _working(value))
        scope.line(f"v{fold}_before = {state}")
        scope.line(f"{state} = {text}")
        scope.assign(fold, f"v{fold}", _guarded(state, neutral), self._dims(fold))

    def end(self) -> None:
        """After the loop: the results."""
        scope = self.scope
        ends: dict[int, str] = {}
        sums: list[tuple[int, str, Dims]] = []
        for fold in self.loop.carries:
            value, kind = scope.nest.values[fold], scope.nest.fold(fold)
            text, over = f"v{fold}_sofar", self._dims(fold)
            if fold in scope.by_ones:
                text = _first(text)
            if not self.loop.by_lane:
                scope.bind(fold, _scaled(scope, value, kind, text), over)
                continue
            text = self._corrected(fold, text, over, ends)
            if kind.about is not None:
                _bind_together(scope, sums)
                text += " + " + spreads.joined(scope, value, kind, over, self.loop)
            sums.append((fold, text, over))
            if not may_join(scope, value):
                _bind_together(scope, sums)
            if self._is_followed(fold):
                neutral = identity(dict(kind.monoid.identity), _working(value))
                scope.line(f"v{fold}_end = {_guarded(f'v{fold}', neutral)}")
                ends[fold] = f"v{fold}_end"
        _bind_together(scope, sums)

    def _corrected(self, fold: int, text: str, over: Dims, ends: Mapping[int, str]) -> str:
        """Every lane's state as if it had known the whole row's extrema."""
        scope = self.scope
        correction = self._correction(fold)
        if correction is None:
            return text
        terms = [
            (c, scope.tiles.spread(ends[x], scope.dims[x], over), f"v{x}_sofar")
            for c, x in correction.exponent
        ]
        accuracy = _accuracy(scope, scope.nest.fold(fold))
        return f"{text} * {_power(correction.base, terms, accuracy)}"

    def _is_long(self, fold: int) -> bool:
        """Whether a sum has so many turns that their rounding errors, one after the other, would be
        far above eager's, who adds in more places at once."""
        kind, value = self.scope.nest.fold(fold), self.scope.nest.values[fold]
        plain = kind.monoid == SUM and kind.about is None and value.dtype == "float32"
        matrix = fold in self.scope.dots or fold in self.scope.by_ones
        if not plain or matrix or self._correction(fold) is not None:
            return False
        return nominal(self.scope.tiles.count(self.loop.axis)) > MANY_TURNS

    def _add(self, fold: int, text: str) -> None:
        """A turn of a sum that carries what its additions lose (Kahan, 1965). Nothing is lost of
        an infinity."""
        name, line = f"v{fold}", self.scope.line
        line(f"{name}_item = {text} - {name}_lost")
        line(f"{name}_next = {name}_sofar + {name}_item")
        line(f"{name}_lost = ({name}_next - {name}_sofar) - {name}_item")
        line(f'{name}_lost = tl.where(tl.abs({name}_next) < float("inf"), {name}_lost, 0.0)')
        line(f"{name}_sofar = {name}_next", self.scope.nest.values[fold].origin)

    def _correction(self, fold: int) -> Correction | None:
        """How a fold follows the extrema that are under way in this loop; those of an earlier one
        are complete and move no more."""
        found = self.scope.nest.corrections.get(fold)
        if found is None:
            return None
        moving = tuple((c, x) for c, x in found.exponent if x in self.loop.carries)
        return replace(found, exponent=moving) if moving else None

    def _dims(self, fold: int) -> Dims:
        """Of a state: one for each lane, or those of the result."""
        axes = set(self.scope.nest.live[fold])
        if self.loop.by_lane:
            kind = self.scope.nest.fold(fold)
            axes |= self.scope.nest.live[kind.source] | set(self.scope.nest.reduced(kind))
        return self.scope.tiles.dims(axes)

    def _is_followed(self, fold: int) -> bool:
        corrections = [self._correction(c) for c in self.loop.carries]
        return any(fold == x for each in corrections if each for _, x in each.exponent)

    def _scale(self, fold: int) -> tuple[str, Dims]:
        """H's factor in this turn, written once for all folds with the same exponent."""
        correction = self._correction(fold)
        assert correction is not None
        if correction not in self._scales:
            dims = self.scope.union(tuple(x for _, x in correction.exponent))
            terms = []
            for c, x in correction.exponent:
                old = self.scope.tiles.spread(f"v{x}_before", self._dims(x), dims)
                terms.append((c, self.scope.at(x, dims), old))
            name = f"v{fold}_scale"
            accuracy = _accuracy(self.scope, self.scope.nest.fold(fold))
            self.scope.line(f"{name} = {_power(correction.base, terms, accuracy)}")
            self._scales[correction] = name, dims
        return self._scales[correction]


def _guarded(name: str, neutral: str) -> str:
    return f"tl.where({name} == {neutral}, 0.0, {name})"


def _accuracy(scope: Scope, fold: Fold) -> Accuracy:
    """That of the exponential that corrects a sum: as quick as the one that is summed."""
    kind = scope.nest.values[fold.source].kind
    if isinstance(kind, Compute) and kind.op is Op.EXP and kind.accuracy is not Accuracy.EXACT:
        return kind.accuracy
    return Accuracy.QUICK if scope.narrow or scope.dots else Accuracy.EXACT


def _power(base: str, terms: list[tuple[float, str, str]], accuracy: Accuracy) -> str:
    """base ** sum(c * (new - old))."""
    parts = []
    for c, new, old in terms:
        first, second = (new, old) if c > 0 else (old, new)
        # Where both are infinite they do not differ; inf - inf would be NaN.
        apart = f"tl.where({first} == {second}, 0.0, {first} - {second})"
        parts.append(apart + f" * {abs(c)}" * (abs(c) != 1))
    op, accuracy = (Op.EXP, accuracy) if base == "e" else (Op.EXP2, Accuracy.EXACT)
    return text_of(op, accuracy, None).format(self=" + ".join(parts))


def _item(scope: Scope, value: Value, fold: Fold) -> tuple[str, Dims]:
    """What a fold takes in: its source (or product) with every dimension that it reduces, the
    identity where an axis is padded."""
    working = _working(value)
    axes = scope.nest.reduced(fold)
    sources = (fold.source,) if fold.times is None else (fold.source, fold.times)
    dims = scope.tiles.dims([*scope.union(sources), *axes])
    if fold.times is None:
        text = scope.full(fold.source, dims, working)
    else:
        left, right = (_factor(scope, fold, v, dims, working) for v in sources)
        text = f"{left} * {right}"
        if scope.union(sources) != dims:
            text = f"tl.broadcast_to({text}, {scope.tiles.shape(dims)})"
    masks = [scope.tiles.index(a, dims, "_in") for a in axes if scope.tiles.is_ragged(a)]
    if masks:
        neutral = identity(dict(fold.monoid.identity), working)
        text = f"tl.where({' & '.join(masks)}, {text}, {neutral})"
    return text, dims


def _factor(scope: Scope, fold: Fold, value: int, dims: Dims, working: str) -> str:
    """A factor of a product that is summed in registers: at the precision of its operands."""
    text = convert(scope.at(value, dims), scope.dtypes[value], working)
    kind = scope.nest.values[value].kind
    is_exact = isinstance(kind, Load) and kind.dtype == fold.operand
    narrow = fold.operand in ("float16", "bfloat16")
    return f"as_{fold.operand}({text})" if narrow and not is_exact else text


def _without(dims: Dims, scope: Scope, fold: Fold) -> Dims:
    axes = scope.nest.reduced(fold)
    return tuple(d for d in dims if d not in axes)


def _reduced(scope: Scope, value: Value, fold: Fold, text: str, dims: Dims) -> str:
    """Reduced along the fold's dimensions, the last first."""
    working = _working(value)
    for axis in sorted(set(scope.nest.reduced(fold)) & set(dims), reverse=True):
        text = fold.monoid.reduce.format(x=text, axis=dims.index(axis))
        dims = tuple(d for d in dims if d != axis)
        if working not in ("float32", "float64", "int64"):
            text = f"({text}).to({TRITON_DTYPE[working]})"
    return text


def _scaled(scope: Scope, value: Value, fold: Fold, text: str) -> str:
    """The result as the value is: divided by the count if a mean, in the value's dtype."""
    if fold.mean:
        count = scope.nest.count(fold)
        exact = not varies(count) and count & (count - 1) == 0
        number = literal(1 / count if exact else count, _working(value), scope.tiles.numbers)
        text = f"{text} {'*' if exact else '/'} {number}"
    return convert(text, _working(value), value.dtype)


def _dot(scope: Scope, value: Value, fold: Fold, state: str) -> str:
    """A matrix product of tiles, added to `state` where there is one."""
    dot = scope.dots[value.id]
    assert fold.times is not None
    left = _operand(scope, fold, fold.source, dot.k)
    right = _operand(scope, fold, fold.times, dot.k)
    if _is_emulated(scope, fold.operand):
        left, right = f"{left}.to(tl.float32)", f"{right}.to(tl.float32)"
    rows, columns = dot.m, dot.n
    if rows > columns:  # The result's dimensions go in the order of the axes.
        left, right, rows, columns = right, left, columns, rows
    a = left if rows < dot.k else f"tl.trans({left})"
    b = right if dot.k < columns else f"tl.trans({right})"
    options = f", {state}" if state else ""
    if fold.operand == "float32":
        options += f', input_precision="{fold.precision}"'
    return f"tl.dot({a}, {b}{options})"


def _ones(scope: Scope, value: Value, fold: Fold) -> None:
    (k,) = scope.tiles.dims(scope.nest.reduced(fold))
    dtype = scope.nest.loads[fold.source].type.dtype
    held = TRITON_DTYPE["float32" if _is_emulated(scope, dtype) else dtype]
    scope.line(f"v{value.id}_ones = tl.full([{scope.tiles.blocks[k]}, {ONES}], 1.0, {held})")


def _by_ones(scope: Scope, value: Value, fold: Fold, state: str) -> str:
    """The sum of a loaded tile along one dimension in each of a few columns, added to `state`
    where there is one: exact products, summed as those of the matrix product beside it."""
    source, ones = scope.raw[fold.source], f"v{value.id}_ones"
    (k,) = scope.tiles.dims(scope.nest.reduced(fold))
    rows_first = scope.tiles.dims(scope.nest.live[fold.source])[1] == k
    if _is_emulated(scope, scope.nest.loads[fold.source].type.dtype):
        source = f"{source}.to(tl.float32)"
    rows = source if rows_first else f"tl.trans({source})"
    return f"tl.dot({rows}, {ones}{', ' * bool(state)}{state})"


def _first(text: str) -> str:
    """The first of equal columns."""
    return f"tl.sum(tl.where(tl.arange(0, {ONES})[None, :] == 0, {text}, 0.0), 1)"


def _is_emulated(scope: Scope, dtype: str) -> bool:
    """The interpreter keeps bfloat16 as integers and multiplies those."""
    return scope.interpreted and dtype == "bfloat16"


def _operand(scope: Scope, fold: Fold, value: int, k: int) -> str:
    """An operand in the dtype of the product, zero where the summed axis is padded."""
    kind = scope.nest.values[value].kind
    if isinstance(kind, Load) and kind.dtype == fold.operand:
        return scope.raw[value]
    text, dims = scope.names[value], scope.dims[value]
    if scope.tiles.is_ragged(k):
        text = f"tl.where({scope.tiles.index(k, dims, '_in')}, {text}, 0.0)"
    if _is_emulated(scope, fold.operand):
        # The interpreter cuts the low bits off where the GPU rounds to nearest.
        text = f"libdevice.rounded({text})"
    return convert(text, scope.dtypes[value], fold.operand)


def _working(value: Value) -> str:
    """Bools fold as int32; everything else as what the result is in registers."""
    return "int32" if value.dtype == "bool" else value.dtype
