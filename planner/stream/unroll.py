"""An axis unrolled in part: neighbours along it as values of their own, so that what several of
them read is loaded once, and stays in registers.

Under a filter each pixel is read for every tap. As values of one tile those are as many loads; of
eight neighbours that are values each, seven taps read fourteen pixels instead of 56.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from ..errors import Refused
from ..graph.dtypes import is_float
from ..graph.graph import Ref, TensorType
from ..graph.op import Op
from ..values.axes import Factors
from ..values.unread import without_unread
from ..values.values import (
    Choice,
    Compute,
    Dims,
    Fold,
    Index,
    Literal,
    Load,
    LoadDim,
    Output,
    Value,
    ValueKind,
    Values,
    mapped,
    written,
)


def unrolled(values: Values, factor: int, parts: int) -> Values:
    """The values with each run of `parts` neighbours along a factor, whose extent they divide, as
    values and stores of their own. Raises Refused where the factor is summed over, or is not the
    innermost of a dimension."""
    return _Unroll(values, factor, parts).run()


@dataclass(slots=True)
class _Unroll:
    given: Values
    factor: int
    parts: int
    made: list[Value] = field(default_factory=list)
    same: dict[object, int] = field(default_factory=dict)
    """By content, the values made: what neighbours share is one."""

    def run(self) -> Values:
        given, depends = self.given, self.given.dependence()
        place: list[tuple[int, ...]] = []
        for value in given.values:
            apart = self.factor in depends[value.id]
            dims, numbers = tuple(map(self._left, value.dims)), range(self.parts if apart else 1)
            own = [self._part(value, dims, number, place) for number in numbers]
            place.append(tuple(own if apart else own * self.parts))
        stores = [self._stores(output, place[output.value]) for output in given.outputs]
        # The first of each result have the numbers of the results.
        firsts, later = [own[0] for own in stores], [o for own in stores for o in own[1:]]
        outputs = tuple(replace(o, index=i) for i, o in enumerate([*firsts, *later]))
        rest = given.extents[self.factor] // self.parts
        extents = {f: rest if f == self.factor else n for f, n in given.extents.items()}
        if rest == 1:
            del extents[self.factor]
        kept, outputs = without_unread(self.made, outputs)
        return Values(tuple(kept), outputs, extents)

    def _part(self, value: Value, dims: Dims, number: int, place: Sequence[tuple[int, ...]]) -> int:
        """The value that stands for one neighbour, numbered within its run. dims: over runs."""
        own = mapped(value.kind, lambda v: place[v][number]) if value.reads else value.kind
        kind = self._kind(own, number)
        if isinstance(kind, Load) and is_float(value.dtype) and _is_outside(kind):
            kind, dims = Literal(0.0), ((),) * len(dims)
        elif isinstance(kind, Compute) and kind.op is Op.FMA:
            operands = dict(kind.operands)
            pixel, addend = operands["self"], operands["addend"]
            if isinstance(pixel, Ref) and isinstance(addend, Ref) and self._is_padding(pixel):
                return addend.node
        if isinstance(kind, Load):
            identity: object = (self._address(kind), frozenset(chain(*dims)), value.dtype)
        else:
            identity = (kind, written(kind), value.dtype, dims)
        if identity not in self.same:
            self.same[identity] = len(self.made)
            self.made.append(Value(len(self.made), kind, dims, value.dtype, value.origin))
        return self.same[identity]

    def _is_padding(self, operand: Ref) -> bool:
        """Whether it is 0 for all that a neighbour reads there."""
        return isinstance(self.made[operand.node].kind, Literal)

    def _kind(self, kind: ValueKind, number: int) -> ValueKind:
        match kind:
            case Load(dims=dims):
                moved = tuple(self._load_dim(d, number) for d in dims)
                return Load(kind.input, moved, kind.dtype, kind.at)
            case Index(factors=factors, start=start, step=step) if self._is_along(factors):
                start, step = start + step * number, step * self.parts
                return Index(self._left(factors), start, step)
            case Choice(factors=factors, pieces=pieces) if self._is_along(factors):
                ends = (
                    (v, self._turn(low, number), self._turn(high, number))
                    for v, low, high in pieces
                )
                return Choice(self._left(factors), tuple(p for p in ends if p[1] < p[2]))
            case Fold(reduced=reduced) if self.factor in reduced:
                raise Refused("loop", "an unrolled axis is summed over")
        return kind

    def _load_dim(self, dim: LoadDim, number: int) -> LoadDim:
        if not self._is_along(dim.factors):
            return dim
        start, step = dim.start + dim.step * number, dim.step * self.parts
        last = start + step * (self.given.size(dim.factors) // self.parts - 1)
        limit = dim.limit
        if limit is not None and min(start, last) >= 0 and max(start, last) < limit:
            limit = None  # A neighbour may see no padding where others do.
        return LoadDim(self._left(dim.factors), dim.stride, start, step, limit)

    def _address(self, load: Load) -> object:
        """What a load reads, however its dimensions are written: the tap in the middle of a filter
        reads an image that is a view as the tensor behind it, all others as an image."""
        base, strides, guarded = 0, dict[int, int](), []
        for dim in load.dims:
            if dim.limit is not None:
                guarded.append(dim)
                continue
            base += dim.start * dim.stride
            stride = dim.stride * dim.step
            for factor in reversed(dim.factors):
                strides[factor] = strides.get(factor, 0) + stride
                own = self.given.extents[factor]
                stride *= own // self.parts if factor == self.factor else own
        own_strides = frozenset(strides.items())
        return load.input, load.dtype, load.at, base, own_strides, tuple(guarded)

    def _turn(self, index: int, number: int) -> int:
        """The first run whose neighbour of this number is at an index, or behind it."""
        return -(-(index - number) // self.parts)

    def _is_along(self, factors: Factors) -> bool:
        """Whether neighbours along the factor are neighbours along these."""
        if self.factor in factors[:-1]:
            raise Refused("factor", "an unrolled axis lies inside of a dimension")
        return self.factor in factors

    def _left(self, factors: Factors) -> Factors:
        """These factors over runs."""
        if self.given.extents[self.factor] > self.parts:
            return factors
        return tuple(f for f in factors if f != self.factor)

    def _stores(self, output: Output, place: Sequence[int]) -> list[Output]:
        """The stores of one result, one for each neighbour where it has several."""
        along = [i for i, dim in enumerate(output.dims) if self._is_along(dim)]
        if not along:
            return [replace(output, value=place[0])]
        (dim,) = along
        kind = output.type
        step = kind.stride[dim]
        shape, stride = list(kind.shape), list(kind.stride)
        shape[dim], stride[dim] = shape[dim] // self.parts, step * self.parts
        dims: Dims = tuple(map(self._left, output.dims))
        part = replace(
            output,
            dims=dims,
            type=TensorType(tuple(shape), tuple(stride), kind.dtype),
            part=output.result,
        )
        return [
            replace(part, value=own, start=output.start + step * number)
            for number, own in enumerate(place)
        ]


def _is_outside(load: Load) -> bool:
    """Whether a neighbour sees nothing but padding."""
    fixed = (d for d in load.dims if d.limit is not None and not d.factors)
    return not load.at and any(not 0 <= d.start < (d.limit or 0) for d in fixed)
