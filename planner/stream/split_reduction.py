"""A reduction cut over the grid: its values as those of several kernels.

The longest reduced axis is divided into `parts`, or that of rows of which a program can hold one.
One kernel for each sweep over it writes what its folds come to in every part; the kernels after it
combine those, each for itself because they are few: extrema by their own fold, sums that follow an
extremum or a mean by the same H by which a loop corrects them (`online.py`). The order is fixed, so
results repeat exactly.

Where no axis has as many equal parts, the last part is shorter (`ragged_parts.py`). Squared
distances from a mean then have a sweep of their own.

Outputs that need none of these folds can be written by the first kernel, which reads what they are
made of: so the backward pass of a norm makes its gradient of every row and its sums over all rows
in one sweep over memory.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from ..errors import Refused
from ..graph.graph import Arg, Ref, TensorType, contiguous
from ..graph.op import Accuracy, Op
from ..graph.sizes import divisor_of, nominal, reciprocal, varies
from ..values.axes import Factors
from ..values.values import (
    Compute,
    Dims,
    Fold,
    Load,
    LoadDim,
    Output,
    Scan,
    Value,
    ValueKind,
    Values,
    compute,
    mapped,
)
from .masked_rows import of_nothing
from .masked_sums import is_exposed
from .online import Correction, derive, followed
from .ragged_parts import guarded, is_inside, length_of, neutral, places

SMALLEST, _SMALLEST_PRODUCT = 4096, 1024
"""Elements below which a reduction is not worth cutting; where products are summed, or computed, of
which each element is a row of a matrix."""

HELD_ROW = 16384
"""Elements of a row that a loop over rows may hold whole, with the sums over the rows."""

Written = Literal["tmp", "out"]


@dataclass(frozen=True, slots=True)
class Phase:
    """The values of one kernel. Load k of a temporary has input `first_temporary` + k. written: for
    each output, whether it is a temporary or an output of the whole, and its number there. along:
    the axis to loop over in a kernel that writes outputs of the whole on its way."""

    values: Values
    written: tuple[tuple[Written, int], ...]
    along: int | None = None


@dataclass(frozen=True, slots=True)
class SplitKernels:
    """The kernels in order, and the types of the temporaries between them. early: whether the first
    kernel writes outputs of the whole."""

    phases: tuple[Phase, ...]
    temporaries: tuple[TensorType, ...]
    early: bool


def cut(values: Values, parts: int, first_temporary: int, early: bool) -> SplitKernels:
    """The values with one reduction in `parts`. early: outputs that need no such fold are
    written by the first kernel. Raises Refused where it cannot be cut."""
    if any(output.part is not None for output in values.outputs):
        raise Refused("split", "a result is stored in parts")
    if any(isinstance(value.kind, Scan) for value in values.values):
        raise Refused("split", "a scan is not cut into parts")
    classes = _reduced_together(values)
    rows = _rows(values, classes, parts)
    over = rows or max(classes, key=lambda c: _elements(c, values))
    least = _SMALLEST_PRODUCT if _are_multiplied(values, over) else SMALLEST
    walked = sum(classes, ()) if rows else over
    if _elements(walked, values) < least or _elements(over, values) < 2 * parts:
        raise Refused("split", "no reduction is large enough to be cut")
    wholes, divided, length = _divided(values, over, parts)
    derived = derive(values, frozenset(over))
    builder = _SplitBuilder(
        derived.values, derived.corrections, frozenset(over), wholes, divided, parts, length
    )
    if builder.is_ragged and any(_is_about(value) for value in builder.values.values):
        builder.values, builder.corrections = values, {}
    builder.first_temporary = first_temporary
    if early and not builder.is_ragged:
        builder.early = builder.independent()
    return builder.build()


def _is_about(value: Value) -> bool:
    return isinstance(value.kind, Fold) and value.kind.about is not None


def _are_multiplied(values: Values, over: Factors) -> bool:
    """Whether a product is summed over these factors, or has them as its rows or columns."""
    products = [v for v in values.values if isinstance(v.kind, Fold) and v.kind.times is not None]
    return any(
        {*over} <= {*fold.kind.reduced, *(f for dim in fold.dims for f in dim)}
        for fold in products
        if isinstance(fold.kind, Fold)
    )


def _divided(values: Values, over: Factors, parts: int) -> tuple[Factors, int, int]:
    """The factor that is divided into parts, and the length of one; or where none has so many, the
    outer ones of which each element is a part, and the next, which is divided further; else the
    longest, whose last part is shorter."""
    extents = values.extents
    for factor in over:
        if _divides(parts, extents[factor]):
            return (), factor, extents[factor] // parts
    left = parts
    for place, factor in enumerate(over):
        if _divides(left, extents[factor]):
            return over[:place], factor, extents[factor] // left
        if varies(extents[factor]) or left % extents[factor]:
            break
        left //= extents[factor]
    longest = max(over, key=lambda factor: nominal(extents[factor]))
    return (), longest, length_of(extents[longest], parts)


def _has_parts(values: Values, over: Factors, parts: int) -> bool:
    try:
        _divided(values, over, parts)
    except Refused:
        return False
    return True


def _divides(parts: int, extent: int) -> bool:
    """Whether an axis has equal parts, and where it varies at all sizes of its bucket."""
    return (divisor_of(extent) if varies(extent) else extent) % parts == 0


def _reduced_together(values: Values) -> list[Factors]:
    """The factors that the same folds reduce, outer to inner."""
    classes: dict[frozenset[int], list[int]] = {}
    for factor in values.extents:
        folds = frozenset(
            v.id for v in values.values if isinstance(v.kind, Fold) and factor in v.kind.reduced
        )
        if folds:
            classes.setdefault(folds, []).append(factor)
    if not classes:
        raise Refused("split", "nothing is reduced")
    reduced = [v.kind.reduced for v in values.values if isinstance(v.kind, Fold)]
    order = {frozenset(c): next(r for r in reduced if {*c} <= {*r}) for c in classes.values()}
    return [tuple(f for f in order[frozenset(c)] if f in c) for c in classes.values()]


def _rows(values: Values, classes: Sequence[Factors], parts: int) -> Factors:
    """Rows that are summed up while each is reduced along memory, as in the backward pass of a
    norm: a program holds one and walks over several, however few they are beside their length.
    Empty where there are none, or no such parts."""
    products = any(isinstance(v.kind, Fold) and v.kind.times is not None for v in values.values)
    if len(classes) != 2 or products:
        return ()
    for rows, row in (classes, reversed(classes)):
        if _lie_along(values, row) and not _lie_along(values, rows):
            is_held = _elements(row, values) <= HELD_ROW
            is_long = _elements(rows, values) >= 2 * parts
            return rows if is_held and is_long and _has_parts(values, rows, parts) else ()
    return ()


def _lie_along(values: Values, factors: Collection[int]) -> bool:
    """Whether neighbours along one of the factors lie side by side in the largest operand."""
    loads = [v.kind for v in values.values if isinstance(v.kind, Load)]
    most = max((_loaded(load, values) for load in loads), default=0)
    return any(
        d.stride * d.step == 1 and not {*factors}.isdisjoint(d.factors[-1:])
        for load in loads
        if _loaded(load, values) == most
        for d in load.dims
    )


def _loaded(load: Load, values: Values) -> int:
    return math.prod(nominal(values.size(d.factors)) for d in load.dims)


def _elements(factors: Factors, values: Values) -> int:
    return math.prod(nominal(values.extents[f]) for f in factors)


@dataclass(slots=True)
class _SplitBuilder:
    values: Values
    corrections: Mapping[int, Correction]
    over: frozenset[int]
    wholes: Factors
    divided: int
    parts: int
    length: int
    """Elements of the divided factor in a part; the last part may have fewer."""
    first_temporary: int = 0
    early: tuple[Output, ...] = ()
    """Outputs of the whole that the first kernel writes."""
    temporaries: list[TensorType] = field(default_factory=list)
    place: dict[int, int] = field(default_factory=dict)
    """Temporary of each fold that has one."""

    @property
    def part(self) -> int:
        return max(self.values.extents) + 1

    @property
    def rest(self) -> int:
        return max(self.values.extents) + 2

    @property
    def share(self) -> int:
        """Into how many the divided factor is cut."""
        return self.parts // math.prod(self.values.extents[f] for f in self.wholes)

    @property
    def is_ragged(self) -> bool:
        """Whether the last part is shorter."""
        return self.share * self.length != self.values.extents[self.divided]

    @property
    def parted(self) -> Factors:
        """The factors that number the parts where they are worked on."""
        return (*self.wholes, self.part)

    def build(self) -> SplitKernels:
        sweeps = self._sweeps()
        phases = []
        for number in range(1, max(sweeps.values()) + 1):
            folds = [f for f in sorted(sweeps) if sweeps[f] == number]
            phases.append(self._partial(folds))
        last = _Copy(self, divide=False)
        rest = [o for o in self.values.outputs if o not in self.early]
        outputs = [replace(o, index=i, value=last.value(o.value)) for i, o in enumerate(rest)]
        written: list[tuple[Written, int]] = [("out", o.index) for o in rest]
        phases.append(Phase(last.finish(outputs), tuple(written)))
        return SplitKernels(tuple(phases), tuple(self.temporaries), bool(self.early))

    def independent(self) -> tuple[Output, ...]:
        """The outputs that need no fold that is cut."""
        ancestors = self.values.ancestors()
        folds = {v.id for v in self.values.values if self.is_cut(v)}
        return tuple(
            o for o in self.values.outputs if folds.isdisjoint({o.value, *ancestors[o.value]})
        )

    def _strides(self, fold: Value, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Of a temporary with a fold's parts in its first dimension. What is reduced along memory
        has one result in a program, and the parts of a result lie side by side for who puts them
        together; what is reduced across memory has neighbouring results, as a product of matrices
        has in a tile, and those stay neighbours."""
        if self._is_product(fold):
            return contiguous(shape)
        if not _lie_along(self.values, self.over):
            return contiguous(shape)
        *rest, part = contiguous((*shape[1:], shape[0]))
        return (part, *rest)

    def _is_product(self, fold: Value) -> bool:
        """Whether it has rows and columns, each of one operand alone."""
        assert isinstance(fold.kind, Fold)
        if fold.kind.times is None:
            return False
        left, right = (
            {f for f in self.values.values[v].axes if self.values.extents[f] != 1}
            for v in (fold.kind.source, fold.kind.times)
        )
        return bool(left - right and right - left)

    def is_cut(self, value: Value) -> bool:
        return isinstance(value.kind, Fold) and self.over <= set(value.kind.reduced)

    def _sweeps(self) -> dict[int, int]:
        """In which sweep over the axis each of its folds is under way."""
        ancestors = self.values.ancestors()
        found: dict[int, int] = {}
        for value in self.values.values:
            if self.is_cut(value):
                joined = followed(self.values.values, self.corrections, value.id)
                before = {f for f in found if f in ancestors[value.id]}
                later = [found[f] + 1 for f in before - joined]
                found[value.id] = max([1, *later, *(found[x] for x in joined & before)])
        return found

    def _partial(self, folds: Sequence[int]) -> Phase:
        copy = _Copy(self, divide=True, under_way=frozenset(folds))
        outputs = []
        first = len(self.temporaries)
        for index, fold in enumerate(folds):
            value = self.values.values[fold]
            dims = (self.parted, *(copy.factors(d) for d in value.dims))
            shape = (self.parts, *(self.values.size(d) for d in value.dims))
            kind = TensorType(shape, self._strides(value, shape), value.dtype)
            copy.value(fold)
            outputs.append(Output(index, copy.folded[fold], dims, kind))
        for index, fold in enumerate(folds):
            self.place[fold] = first + index
            self.temporaries.append(outputs[index].type)
        written: list[tuple[Written, int]] = [("tmp", first + i) for i in range(len(folds))]
        for output in () if first else self.early:
            dims = tuple(map(copy.factors, output.dims))
            known = copy.value(output.value)
            outputs.append(replace(output, index=len(outputs), value=known, dims=dims))
            written.append(("out", output.index))
        made = replace(copy.finish(outputs), are_parts=True)
        whole = any(kind == "out" for kind, _ in written) and not self._is_row_of_tiles(made)
        return Phase(made, tuple(written), self.rest if whole else None)

    def _is_row_of_tiles(self, made: Values) -> bool:
        """Whether a part is one row of tiles of a product: it is held then, and the loop is that of
        the product, as it is without the sums of its result."""
        rest = self.length
        folds = (v.kind for v in made.values if isinstance(v.kind, Fold))
        return any(rest < made.size(f.reduced) for f in folds if f.times is not None)


@dataclass(slots=True)
class _Copy:
    """The values of one kernel: folds of earlier sweeps read from their parts, those under way
    over one part only."""

    builder: _SplitBuilder
    divide: bool
    under_way: frozenset[int] = frozenset()
    made: list[Value] = field(default_factory=list)
    known: dict[int, int] = field(default_factory=dict)
    folded: dict[int, int] = field(default_factory=dict)
    """Of the folds under way what they come to in a part."""

    def value(self, number: int) -> int:
        """The copy of a value, made with all that it reads."""
        if number not in self.known:
            old = self.builder.values.values[number]
            if self.builder.is_cut(old) and number in self.builder.place:
                self.known[number] = self._combined(old)
            else:
                for source in old.reads:
                    self.value(source)
                self.known[number] = self._copied(old)
        return self.known[number]

    def factors(self, factors: Factors) -> Factors:
        """The same factors, the divided one in two where this kernel works on parts."""
        if not self.divide:
            return factors
        both = (self.builder.part, self.builder.rest)
        return tuple(p for f in factors for p in (both if f == self.builder.divided else (f,)))

    def finish(self, outputs: Sequence[Output]) -> Values:
        extents = dict(self.builder.values.extents)
        extents[self.builder.part] = self.builder.share if self.divide else self.builder.parts
        extents[self.builder.rest] = self.builder.length
        used = {f for v in self.made for f in v.axes} | {
            f for o in outputs for d in o.dims for f in d
        }
        # What is folded along a broadcast dimension does not vary along it.
        used |= {f for v in self.made if isinstance(v.kind, Fold) for f in v.kind.reduced}
        kept = {f: n for f, n in sorted(extents.items()) if f in used}
        return Values(tuple(self.made), tuple(outputs), kept)

    def _copied(self, old: Value) -> int:
        dims = tuple(self.factors(d) for d in old.dims)
        kind = mapped(old.kind, self.known.__getitem__, self.factors)
        if self.divide and self.builder.is_ragged:
            kind = guarded(old, kind, self.builder.values, self.builder.divided)
        if isinstance(kind, Fold) and old.id in self.under_way:
            if self.builder.is_ragged:
                kind = replace(kind, source=self._masked(old, kind))
            kept = tuple(f for f in kind.reduced if f not in self.builder.parted)
            kind = replace(kind, reduced=kept, mean=False)
            dims = (self.builder.parted, *dims)
            self.folded[old.id] = found = self._add(kind, dims, old.dtype, old.origin)
            return self._finite(old, found, dims) if self._is_followed(old.id) else found
        return self._add(kind, dims, old.dtype, old.origin)

    def _masked(self, old: Value, kind: Fold) -> int:
        """What is folded, and beyond the end of the divided factor what changes nothing."""
        other, along = neutral(old, kind), self.factors((self.builder.divided,))
        place = self._add(places(along), (along,), "int64", old.origin)
        extent = self.builder.values.extents[self.builder.divided]
        inside = self._add(is_inside(place, extent), (along,), "bool", old.origin)
        source = self.made[kind.source]
        own: dict[str, Arg] = {"condition": Ref(inside), "self": Ref(source.id), "other": other}
        return self._compute(Op.WHERE, source.dims, source, **own)

    def _is_followed(self, fold: int) -> bool:
        """Whether other folds have this extremum in them."""
        return any(fold in each.follows for each in self.builder.corrections.values())

    def _finite(self, old: Value, found: int, dims: Dims) -> int:
        """An extremum as it stands in exponents: 0 where a mask leaves a part nothing. Its sums are
        then 0, and not of inf - inf, which is NaN."""
        kind = compute(Op.EQ, old.dtype, self=Ref(found), other=of_nothing(old.kind))
        empty = self._add(kind, dims, "bool", old.origin)
        own: dict[str, Arg] = {"condition": Ref(empty), "self": 0.0, "other": Ref(found)}
        return self._compute(Op.WHERE, dims, old, **own)

    def _combined(self, old: Value) -> int:
        """A fold of an earlier sweep, from its parts."""
        builder, fold = self.builder, old.kind
        assert isinstance(fold, Fold)
        if self.divide and builder.wholes:
            raise Refused("split", f"parts of {old.origin} are not numbered by one axis")
        state = self._state(old)
        correction = builder.corrections.get(old.id)
        dims: Dims = ((builder.part,), *(self.factors(d) for d in old.dims))
        if correction is not None:
            state = self._corrected(state, correction, fold, dims, old)
        if fold.about is not None:
            state = self._spread(state, builder.values.values[fold.about], dims, old)
        kept = tuple(self.factors(d) for d in old.dims)
        total = self._add(Fold(fold.monoid, state, (builder.part,)), kept, old.dtype, old.origin)
        if fold.mean:
            count = builder.values.size(fold.reduced)
            share = reciprocal(count)
            total = self._compute(Op.MUL, kept, old, self=Ref(total), other=share)
        if correction is not None and is_exposed(builder.values, old.id, correction):
            total = self._infinite_where_masked(total, correction, kept, old)
        return total

    def _infinite_where_masked(
        self, total: int, correction: Correction, kept: Dims, old: Value
    ) -> int:
        """See `masked_sums.py`."""
        for _, x in correction.exponent:
            extremum = self.builder.values.values[x]
            found, dims = self.value(x), tuple(self.factors(d) for d in extremum.dims)
            kind = compute(Op.EQ, extremum.dtype, self=Ref(found), other=of_nothing(extremum.kind))
            own: dict[str, Arg] = {"condition": Ref(self._add(kind, dims, "bool", extremum.origin))}
            factor = self._compute(Op.WHERE, dims, old, **own, self=math.inf, other=1.0)
            total = self._compute(Op.MUL, kept, old, self=Ref(total), other=Ref(factor))
        return total

    def _scale(self, correction: Correction, source: ValueKind, dims: Dims, old: Value) -> int:
        """What brings every part of a fold up to the extrema of the whole."""
        total: int | None = None
        for c, x in correction.exponent:
            before = self._state(self.builder.values.values[x])
            one = self._compute(Op.CHANGE, dims, old, new=Ref(self.value(x)), old=Ref(before))
            one = self._compute(Op.MUL, dims, old, self=Ref(one), other=c)
            if total is not None:
                one = self._compute(Op.ADD, dims, old, self=Ref(total), other=Ref(one))
            total = one
        assert total is not None
        op = Op.EXP if correction.base == "e" else Op.EXP2
        flushes = isinstance(source, Compute) and source.accuracy is Accuracy.FLUSHING
        accuracy = Accuracy.FLUSHING if flushes else Accuracy.EXACT
        return self._compute(op, dims, old, accuracy, self=Ref(total))

    def _corrected(
        self, state: int, correction: Correction, fold: Fold, dims: Dims, old: Value
    ) -> int:
        """Every part of a fold as if it had known the extrema of the whole."""
        values = self.builder.values.values
        weights = None if fold.weight is None else self._state(values[fold.weight])
        if correction.exponent:
            summed = fold if fold.weight is None else values[fold.weight].kind
            assert isinstance(summed, Fold)
            scale = Ref(self._scale(correction, values[summed.source].kind, dims, old))
            state = self._compute(Op.MUL, dims, old, self=Ref(state), other=scale)
            if weights is not None:
                weights = self._compute(Op.MUL, dims, old, self=Ref(weights), other=scale)
        for k, x in correction.shift:
            assert weights is not None, "a shift is of something that is summed beside"
            before = self._finite(values[x], self._state(values[x]), dims)
            after = self._finite(values[x], self.value(x), dims)
            step = self._compute(Op.SUB, dims, old, self=Ref(after), other=Ref(before))
            step = self._compute(Op.MUL, dims, old, self=Ref(step), other=k)
            step = self._compute(Op.MUL, dims, old, self=Ref(step), other=Ref(weights))
            state = self._compute(Op.ADD, dims, old, self=Ref(state), other=Ref(step))
        return state

    def _spread(self, state: int, total: Value, dims: Dims, old: Value) -> int:
        """The squared distances of every part from the mean of the whole: those from its own mean,
        and n times the square of how far that lies from the mean of the whole."""
        fold = total.kind
        assert isinstance(fold, Fold)
        count = self.builder.values.size(fold.reduced)
        each = count // self.builder.parts
        mean = self.value(total.id)
        if not fold.mean:
            mean = self._quotient(mean, count, tuple(map(self.factors, total.dims)), old)
        own = self._quotient(self._state(total), each, dims, old)
        apart = self._compute(Op.SUB, dims, old, self=Ref(own), other=Ref(mean))
        square = self._compute(Op.MUL, dims, old, self=Ref(apart), other=Ref(apart))
        square = self._compute(Op.MUL, dims, old, self=Ref(square), other=each)
        return self._compute(Op.ADD, dims, old, self=Ref(state), other=Ref(square))

    def _quotient(self, value: int, count: int, dims: Dims, old: Value) -> int:
        return self._compute(Op.DIV, dims, old, self=Ref(value), other=count)

    def _state(self, old: Value) -> int:
        """The load of a fold's parts."""
        builder = self.builder
        place = builder.place[old.id]
        tensor = builder.temporaries[place]
        dims: Dims = ((builder.part,), *(self.factors(d) for d in old.dims))
        parts = tuple(LoadDim(d, stride) for d, stride in zip(dims, tensor.stride, strict=True))
        load = Load(builder.first_temporary + place, parts, tensor.dtype)
        same = next((v.id for v in self.made if v.kind == load), None)
        return same if same is not None else self._add(load, dims, tensor.dtype, old.origin)

    def _compute(
        self,
        op: Op,
        dims: Dims,
        like: Value,
        accuracy: Accuracy = Accuracy.EXACT,
        /,
        **operands: Arg,
    ) -> int:
        kind = compute(op, like.dtype, accuracy, **operands)
        return self._add(kind, dims, like.dtype, like.origin)

    def _add(self, kind: ValueKind, dims: Dims, dtype: str, origin: str) -> int:
        self.made.append(Value(len(self.made), kind, dims, dtype, origin))
        return len(self.made) - 1
