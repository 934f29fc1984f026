"""Reductions of tiles as Triton, and the states that loops carry of them and of matrix products."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..graph.dtypes import FLOATS, NARROW, TRITON_DTYPE, itemsize
from ..graph.graph import Ref
from ..graph.op import Accuracy, Op
from ..graph.ops import SUM
from ..graph.sizes import varies
from ..graph.texts import text_of
from ..stream.online import Correction
from ..tiles.blocks import TileDims
from ..tiles.instructions import (
    ONES,
    REDUCTIONS,
    Mma,
    OnesMma,
    Reduce,
    TileLoop,
    TileReduction,
    Welford,
)
from ..values.values import Choice, Compute, Fold, Load, Value
from . import mma, shifted_squares, welford
from .body import convert, identity, literal
from .scope import Scope
from .text import is_taken_for_dot


def step(scope: Scope, each: TileReduction) -> None:
    """A reduction whose axes all lie in the tile."""
    value, fold = scope.nest.values[each.value], scope.nest.fold(each.value)
    dims = scope.blocks.dims(scope.nest.live[value.id])
    match each:
        case Mma():
            text = mma.whole(each, mma.product(scope, each, ""))
            scope.bind(value.id, convert(text, "float32", value.dtype), dims)
        case OnesMma():
            mma.ones(scope, each)
            text = mma.first(mma.by_ones(scope, each, ""))
            scope.bind(value.id, _scaled(scope, value, fold, text), dims)
        case Welford():
            _, over = _item(scope, value, fold)
            mean = welford.mean_of(scope, value, fold, over)
            text = welford.around(scope, value, fold, over, mean)
            _bind(scope, value, fold, _reduced(scope, value, fold, text, over), over)
        case Reduce():
            values = [scope.nest.values[v] for v in (each.value, *each.joined)]
            items = [(v, *_item(scope, v, scope.nest.fold(v.id), each.beyond)) for v in values]
            _bind_together(scope, items, each.part)


def _bind(scope: Scope, value: Value, fold: Fold, text: str, over: TileDims) -> None:
    """The result of a tile that was reduced."""
    scope.bind(value.id, _scaled(scope, value, fold, text), _without(over, scope, fold))


def _bind_together(
    scope: Scope, items: Sequence[tuple[Value, str, TileDims]], part: str = ""
) -> None:
    """Tiles of one shape, reduced at once where there are several. part: see `Reduce`."""
    if len(items) > 1:
        texts = _reduced_at_once(scope, items)
    else:
        ((value, text, over),) = items
        texts = [_reduced(scope, value, scope.nest.fold(value.id), text, over)]
    for (value, _, over), text in zip(items, texts, strict=True):
        fold = scope.nest.fold(value.id)
        if part == "ends":
            scope.bind(value.id, text, _without(over, scope, fold))
            continue
        if part == "rest":
            text = fold.monoid.combine.format(a=text, b=scope.beside[value.id])
        _bind(scope, value, fold, text, over)


def _reduced_at_once(scope: Scope, items: Sequence[tuple[Value, str, TileDims]]) -> list[str]:
    texts = [text for _, text, _ in items]
    fold, dims = scope.nest.fold(items[0][0].id), items[0][2]
    names = [f"v{value.id}_total" for value, _, _ in items]
    for axis in sorted(set(scope.nest.reduced(fold)) & set(dims), reverse=True):
        call = f"tl.reduce(({', '.join(texts)}), {dims.index(axis)}, sums_of_{len(items)})"
        scope.line(f"{', '.join(names)} = {call}")
        texts, dims = names, tuple(d for d in dims if d != axis)
    return texts


class Carried:
    """The states of the reductions that one loop carries. counter: the name of the number of the
    turn, from 0."""

    def __init__(self, scope: Scope, loop: TileLoop, counter: str) -> None:
        self.scope = scope
        self.loop = loop
        self.counter = counter
        self.states: dict[int, TileReduction] = {
            each.value: each for each in loop.body if isinstance(each, REDUCTIONS) and each.carried
        }
        self._scales: dict[object, tuple[str, TileDims]] = {}

    def begin(self) -> None:
        """Before the loop: each state is the identity."""
        for fold in self.loop.carries:
            value, kind = self.scope.nest.values[fold], self.scope.nest.fold(fold)
            state, dtype = self.states[fold], _working(value)
            dims, neutral = self._dims(fold), identity(dict(kind.monoid.identity), dtype)
            shape = self._shape(dims)
            if isinstance(state, OnesMma):
                assert not self.loop.by_lane, "a product has no state for every lane"
                mma.ones(self.scope, state)
                shape = f"[{self.scope.blocks.sizes[dims[0]]}, {ONES}]"
            if isinstance(state, Mma):
                sides = [self.scope.blocks.sizes[a] for a in (state.rows, state.columns)]
                shape = str([state.slices, *sides] if state.slices > 1 else sides)
            full = f"tl.full({shape}, {neutral}, {TRITON_DTYPE[dtype]})"
            self.scope.line(f"v{fold}_sofar = {full}", f"{value.origin}, so far")
            if isinstance(state, Welford) and state.shifted:
                shifted_squares.begin(self.scope, value, kind, dims)
            elif isinstance(state, Welford):
                welford.begin(self.scope, value, dims)
            if isinstance(state, Reduce) and state.compensated:
                zeros = f"tl.full({shape}, 0.0, {TRITON_DTYPE[dtype]})"
                self.scope.line(f"v{fold}_lost = {zeros}", "what rounding has added so far")

    def again(self) -> None:
        """A turn is written once more: what it computed for several states it computes again."""
        self._scales.clear()

    def take(self, each: TileReduction) -> None:
        """In the loop: this turn's tile goes into the state."""
        scope, state = self.scope, f"v{each.value}_sofar"
        value, kind = scope.nest.values[each.value], scope.nest.fold(each.value)
        match each:
            case Mma():
                if each.correction is not None:
                    scope.line(f"{state} = {self._before(each, each.correction)}")
                scope.line(f"{state} = {mma.product(scope, each, state)}", value.origin)
            case OnesMma():
                scope.line(f"{state} = {mma.by_ones(scope, each, state)}", value.origin)
            case Welford():
                assert self.loop.by_lane, "a mean under way is one of every lane"
                if each.shifted:
                    dims = self._dims(value.id)
                    shifted_squares.take(scope, value, kind, dims, self.loop, self.counter)
                    return
                late = welford.late(scope, self.loop.axis, self._dims(value.id))
                welford.take(scope, value, kind, self._dims(value.id), self.counter + late)
            case Reduce():
                self._reduce(each, value, kind)

    def _reduce(self, each: Reduce, value: Value, kind: Fold) -> None:
        scope, state = self.scope, f"v{each.value}_sofar"
        before = self._before(each, each.correction) if each.correction else state
        text, over = _item(scope, value, kind)
        if not self.loop.by_lane:
            text = _reduced(scope, value, kind, text, over)
        elif self.loop.shared > 1:
            runs = f"tl.reshape({text}, {self._shape(over, self.loop.shared)})"
            text = kind.monoid.reduce.format(x=runs, axis=len(over))
        if each.compensated:
            self._add(each.value, text)
            return
        text = kind.monoid.combine.format(a=before, b=text)
        if not each.followed:
            scope.line(f"{state} = {text}")
            return
        scope.line(f"v{each.value}_before = {state}")
        scope.line(f"{state} = {text}")
        if kind.monoid == SUM:
            return  # Of weights, which only the shift beside them reads under way.
        # Inside exponents an extremum that is still the identity stands as 0: inf - inf is NaN.
        neutral = identity(dict(kind.monoid.identity), _working(value))
        guarded, dims = _guarded(state, neutral), self._dims(each.value)
        if self.loop.shared > 1:
            name, runs = f"v{each.value}_run", self._shape(dims, self.loop.shared)
            scope.line(f"{name} = {guarded}")
            whole = ", ".join([*[":"] * len(dims), "None"])
            guarded = f"tl.broadcast_to({name}[{whole}], {runs})"
            guarded = f"tl.reshape({guarded}, {scope.text.shape(dims)})"
        scope.assign(each.value, f"v{each.value}", guarded, dims)

    def end(self) -> None:
        """After the loop: the results."""
        scope = self.scope
        if self.loop.by_lane:
            ends: dict[int, str] = {}
            for values in self.loop.combined or [(fold,) for fold in self.loop.carries]:
                self._combine(values, ends)
            return
        for fold in self.loop.carries:
            text = f"v{fold}_sofar"
            state = self.states[fold]
            if isinstance(state, OnesMma):
                text = mma.first(text)
            elif isinstance(state, Mma):
                text = mma.whole(state, text)
            value, kind = scope.nest.values[fold], scope.nest.fold(fold)
            scope.bind(fold, _scaled(scope, value, kind, text), self._dims(fold))

    def _combine(self, values: Sequence[int], ends: dict[int, str]) -> None:
        """The states of all lanes as one; ends: the extrema of the whole rows."""
        scope, items = self.scope, []
        for fold in values:
            value, state, over = scope.nest.values[fold], self.states[fold], self._dims(fold)
            text = self._corrected(state, over, ends)
            kind = scope.nest.fold(fold)
            if isinstance(state, Welford) and state.shifted:
                text += " - " + shifted_squares.joined(scope, value, kind, over)
            elif isinstance(state, Welford):
                text += " + " + welford.joined(scope, value, kind, over, self.loop)
            items.append((value, text, over))
        _bind_together(scope, items)
        for value, _, _ in items:
            state = self.states[value.id]
            if isinstance(state, Welford) and state.shifted:
                shifted_squares.end(scope, value)
            monoid = scope.nest.fold(value.id).monoid
            if isinstance(state, Reduce) and state.followed and monoid != SUM:
                neutral = identity(dict(monoid.identity), _working(value))
                scope.line(f"v{value.id}_end = {_guarded(f'v{value.id}', neutral)}")
                ends[value.id] = f"v{value.id}_end"

    def _corrected(self, state: TileReduction, over: TileDims, ends: Mapping[int, str]) -> str:
        """Every lane's state as if it had known the whole row's extrema."""
        scope, text = self.scope, f"v{state.value}_sofar"
        if not isinstance(state, Reduce) or state.correction is None:
            return text
        correction = state.correction

        def sofar(fold: int) -> str:
            return scope.text.broadcast(f"v{fold}_sofar", self._dims(fold), over)

        def terms(own: Sequence[tuple[float, int]]) -> list[CorrectionTerm]:
            return [
                (c, scope.text.broadcast(ends[x], scope.dims[x], over), sofar(x)) for c, x in own
            ]

        scale = ""
        if correction.exponent:
            scale = f" * {_power(correction.base, terms(correction.exponent), state.accuracy)}"
        if not correction.shift:
            return text + scale
        weight = scope.nest.fold(state.value).weight
        assert weight is not None, "a shift is of something that is summed beside"
        step = self._step(correction, terms(correction.shift))
        return f"{text}{scale} + {step} * ({sofar(weight)}{scale})"

    def _add(self, fold: int, text: str) -> None:
        """A turn of a sum that carries what its additions lose (Kahan, 1965). Nothing is lost of
        an infinity."""
        name, line = f"v{fold}", self.scope.line
        line(f"{name}_item = {text} - {name}_lost")
        line(f"{name}_next = {name}_sofar + {name}_item")
        line(f"{name}_lost = ({name}_next - {name}_sofar) - {name}_item")
        line(f'{name}_lost = tl.where(tl.abs({name}_next) < float("inf"), {name}_lost, 0.0)')
        line(f"{name}_sofar = {name}_next", self.scope.nest.values[fold].origin)

    def _dims(self, fold: int) -> TileDims:
        """Of a state: one for each lane, or those of the result."""
        axes = set(self.scope.nest.live[fold])
        if self.loop.by_lane:
            kind = self.scope.nest.fold(fold)
            axes |= self.scope.nest.live[kind.source] | set(self.scope.nest.reduced(kind))
        return self.scope.blocks.dims(axes)

    def _shape(self, dims: TileDims, more: int = 0) -> str:
        """Of states; more: of what each of them takes in, in a dimension of its own."""
        sizes = self.scope.blocks.sizes
        shape = [sizes[d] // (self.loop.shared if d == self.loop.axis else 1) for d in dims]
        return f"[{', '.join(map(str, [*shape, *[more] * bool(more)]))}]"

    def _before(self, each: Mma | Reduce, correction: Correction) -> str:
        """A state brought up to the extrema of this turn."""
        scope, text, own = self.scope, f"v{each.value}_sofar", self._dims(each.value)
        scale = self._scale(each, correction) if correction.exponent else ""
        if not correction.shift:
            return text + scale
        weight = scope.nest.fold(each.value).weight
        assert weight is not None, "a shift is of something that is summed beside"
        step = f"v{each.value}_step"
        scope.line(f"{step} = {self._step(correction, self._terms(correction.shift, own))}")
        beside = scope.text.broadcast(f"v{weight}_before", self._dims(weight), own)
        # Scaled first: what an infinite step would be times is 0 then.
        return f"{text}{scale} + {step} * ({beside}{scale})"

    def _scale(self, each: Mma | Reduce, correction: Correction) -> str:
        """ " * " and H's factor, which is written once for all that have the same exponent."""
        scope, key = self.scope, (correction.exponent, correction.base)
        if key not in self._scales:
            dims = scope.union(tuple(x for _, x in correction.exponent))
            terms = self._terms(correction.exponent, dims)
            name = f"v{each.value}_scale"
            scope.line(f"{name} = {_power(correction.base, terms, each.accuracy)}")
            self._scales[key] = name, dims
        name, dims = self._scales[key]
        return f" * {scope.text.broadcast(name, dims, self._dims(each.value))}"

    def _terms(self, own: Sequence[tuple[float, int]], dims: TileDims) -> list[CorrectionTerm]:
        """Of every extremum its coefficient, its value in this turn and that before."""
        scope = self.scope
        found = []
        for c, x in own:
            names = scope.names[x] if self.loop.shared == 1 else f"v{x}_run", f"v{x}_before"
            new, old = (scope.text.broadcast(n, self._dims(x), dims) for n in names)
            found.append((c, new, old))
        return found

    def _step(self, correction: Correction, terms: Sequence[CorrectionTerm]) -> str:
        """sum(k * (new - old)), where an extremum that was the identity stood as 0."""
        parts = []
        for (k, new, old), (_, x) in zip(terms, correction.shift, strict=True):
            monoid = self.scope.nest.fold(x).monoid
            neutral = identity(dict(monoid.identity), _working(self.scope.nest.values[x]))
            first, second = (new, _guarded(old, neutral))
            if k < 0:
                first, second = second, first
            parts.append(f"({first} - {second})" + f" * {abs(k)}" * (abs(k) != 1))
        return f"({' + '.join(parts)})"


CorrectionTerm = tuple[float, str, str]
"""A coefficient, and the texts of an extremum as it is and as it was."""


def _guarded(name: str, neutral: str) -> str:
    return f"tl.where({name} == {neutral}, 0.0, {name})"


def _power(base: str, terms: Sequence[CorrectionTerm], accuracy: Accuracy) -> str:
    """base ** sum(c * (new - old))."""
    parts = []
    for c, new, old in terms:
        first, second = (new, old) if c > 0 else (old, new)
        # Where both are infinite they do not differ; inf - inf would be NaN.
        apart = f"tl.where({first} == {second}, 0.0, {first} - {second})"
        parts.append(apart + f" * {abs(c)}" * (abs(c) != 1))
    op, accuracy = (Op.EXP, accuracy) if base == "e" else (Op.EXP2, Accuracy.EXACT)
    return text_of(op, accuracy, None).format(self=" + ".join(parts))


def _item(scope: Scope, value: Value, fold: Fold, beyond: str = "") -> tuple[str, TileDims]:
    """What a fold takes in: its source (or product) with every dimension that it reduces, the
    identity where an axis is padded. beyond: see `Reduce`."""
    working = _working(value)
    axes = scope.nest.reduced(fold)
    sources = (fold.source,) if fold.times is None else (fold.source, fold.times)
    dims = scope.blocks.dims([*scope.union(sources), *axes])
    if fold.times is None:
        text = scope.full(fold.source, dims, working)
    else:
        larger = _larger(scope, sources, dims)
        left, right = (_factor(scope, fold, v, dims, working, v == larger) for v in sources)
        if is_taken_for_dot([scope.dims[v] for v in sources], dims):
            left, right = right, left
        text = f"{left} * {right}"
        if scope.union(sources) != dims:
            text = f"tl.broadcast_to({text}, {scope.text.shape(dims)})"
    masks = [scope.text.index(a, dims, "_in") for a in axes if scope.blocks.is_ragged(a)]
    if masks and beyond != "neutral":
        neutral = identity(dict(fold.monoid.identity), working)
        text = f"tl.where({' & '.join(masks)}, {text}, {neutral})"
    if masks and beyond == "filled":
        scope.bind(fold.source, text, dims)
        text = scope.names[fold.source]
    return text, dims


def _larger(scope: Scope, sources: tuple[int, ...], dims: TileDims) -> int | None:
    """Of the factors of a product that is summed in registers, the larger tile, where it lacks
    dimensions."""
    sizes = [scope.blocks.elements(scope.dims[v]) for v in sources]
    if len(sources) != 2 or sizes[0] == sizes[1]:
        return None
    larger = sources[sizes.index(max(sizes))]
    own = scope.dims[larger]
    return larger if len(own) > 1 and own != dims else None


def _factor(scope: Scope, fold: Fold, value: int, dims: TileDims, working: str, leads: bool) -> str:
    """A factor of a product that is summed in registers: at the precision of its operands. leads:
    the products lie in the registers of those threads that have this factor. Where it is indexed
    with None, Triton 3.6 and 3.7 give every product to other threads, all of a warp along the last
    dimension: the keys that a part of attention reads go through shared memory, and a sum over 64
    columns takes the registers of 32 threads."""
    among = scope.laid if leads else scope.at
    text = convert(among(value, dims), scope.dtypes[value], working)
    kept = fold.unrounded or _is_exact(scope, fold, value)
    rounded = fold.operand in NARROW and not kept
    return f"as_{fold.operand}({text})" if rounded else text


def _is_exact(scope: Scope, fold: Fold, value: int) -> bool:
    """Whether a factor has that precision as it was loaded, from whichever of several tensors, or
    as it was converted from a number of a byte."""
    kind = scope.nest.values[value].kind
    match kind:
        case Choice(pieces=pieces):
            return all(_is_exact(scope, fold, piece) for piece, _, _ in pieces)
        case Compute(op=Op.CONVERT, operands=(("self", Ref(node=source)),)):
            return _is_exact(scope, fold, source)
        case Load(dtype=stored):
            return stored == fold.operand or itemsize(stored) == 1
    return itemsize(scope.dtypes[value]) == 1


def _without(dims: TileDims, scope: Scope, fold: Fold) -> TileDims:
    axes = scope.nest.reduced(fold)
    return tuple(d for d in dims if d not in axes)


def _reduced(scope: Scope, value: Value, fold: Fold, text: str, dims: TileDims) -> str:
    """Reduced along the fold's dimensions, the last first."""
    working = _working(value)
    for axis in sorted(set(scope.nest.reduced(fold)) & set(dims), reverse=True):
        text = fold.monoid.reduce.format(x=text, axis=dims.index(axis))
        dims = tuple(d for d in dims if d != axis)
        if working not in FLOATS | {"int64"}:
            text = f"({text}).to({TRITON_DTYPE[working]})"
    return text


def _scaled(scope: Scope, value: Value, fold: Fold, text: str) -> str:
    """The result as the value is: divided by the count if a mean, in the value's dtype."""
    if fold.mean:
        count = scope.nest.count(fold)
        exact = not varies(count) and count & (count - 1) == 0
        number = literal(1 / count if exact else count, _working(value), scope.numbers)
        text = f"{text} {'*' if exact else '/'} {number}"
    return convert(text, _working(value), value.dtype)


def begun(scope: Scope, value: Value) -> str:
    """What a loop that carries a value begins with, as a tile of the value's shape."""
    fold, dtype = scope.nest.fold(value.id), _working(value)
    shape = scope.text.shape(scope.blocks.dims(scope.nest.live[value.id]))
    return f"tl.full({shape}, {identity(dict(fold.monoid.identity), dtype)}, {TRITON_DTYPE[dtype]})"


def _working(value: Value) -> str:
    """Bools fold as int32; everything else as what the result is in registers."""
    return "int32" if value.dtype == "bool" else value.dtype
