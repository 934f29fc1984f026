"""Sums of the one element that an index selects, read by that index: sum(where(j == i, f(u[j]), 0))
is f(u[i]), and 0 where i lies outside the axis.

One element is loaded in place of a comparison, a selection and a sum for each. That needs an f of
tensors in memory and of what does not vary along j; what a matrix product gives is summed instead,
in passing (`move_behind_reduce.pick`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..graph.graph import Arg, Ref
from ..graph.op import Op
from ..graph.ops import SUM
from ..values.values import At, Compute, Dims, Fold, Index, Load, LoadDim, Value, Values
from .move_behind_reduce import is_on_axis, sought_index
from .rewriting import Rewriting


class _NotAlone(Exception):
    """What is summed is not one element, or not one that can be had alone."""


def read_by_index(values: Values) -> Values:
    """The same values, each sum of one selected element a load where that is possible."""
    work = Rewriting(values, frozenset())
    for value in values.values:
        match value.kind:
            case Fold(monoid=monoid, reduced=reduced, times=None, mean=False) if monoid == SUM:
                work.along = frozenset(reduced)
                try:
                    work.put(value.id, _selected(work, value.id))
                except _NotAlone:
                    continue
    found, _ = work.finish()
    used = frozenset[int]().union(*(f for v in found.values for f in (v.axes, _reduced(v))))
    used = used.union(f for o in found.outputs for dim in o.dims for f in dim)
    return replace(found, extents={f: n for f, n in found.extents.items() if f in used})


def _reduced(value: Value) -> frozenset[int]:
    return frozenset(value.kind.reduced) if isinstance(value.kind, Fold) else frozenset()


def _selected(work: Rewriting, fold: int) -> int:
    """What a fold gives. Raises _NotAlone where it selects no single element, or one that cannot be
    had alone."""
    value = work.values[fold]
    assert isinstance(value.kind, Fold)
    source = work.values[value.kind.source]
    operands = dict(source.kind.operands) if isinstance(source.kind, Compute) else {}
    match source.kind, operands.get("condition"):
        case Compute(op=Op.WHERE), Ref(node=condition):
            sought = sought_index(work, condition)
        case _:
            sought = None
    if sought is None or work.constant(operands["other"]) != 0:
        raise _NotAlone
    found = _Element(work, value.kind.reduced, sought, value.dims).at(operands["self"])
    if isinstance(found, Ref):
        found = Ref(work.cast(found.node, value.dtype))
    inside = Ref(is_on_axis(work, sought))
    return work.compute(Op.WHERE, fold, condition=inside, self=found, other=operands["other"])


class _Element:
    """Values where the index along `axis` is the value `sought`; of dimensions `dims`."""

    def __init__(self, work: Rewriting, axis: tuple[int, ...], sought: int, dims: Dims) -> None:
        self.work, self.axis, self.sought, self.dims = work, axis, sought, dims

    def at(self, argument: Arg) -> Arg:
        """Raises _NotAlone for what is neither in memory nor computed from that alone."""
        if not isinstance(argument, Ref):
            return argument
        found: dict[int, Arg] = {}
        for each in self.work.operands_first([argument.node]):
            found[each] = self._one(each, found) if self.work.streams(Ref(each)) else Ref(each)
        return found[argument.node]

    def _one(self, number: int, found: Mapping[int, Arg]) -> Arg:
        """A value of the axis; found: what it reads."""
        value = self.work.values[number]
        kind = value.kind
        match kind:
            case Load():
                kind = self._load(kind, found)
            case Compute(operands=operands):
                own = ((n, found[a.node] if isinstance(a, Ref) else a) for n, a in operands)
                kind = replace(kind, operands=tuple(own))
            case Index(factors=factors, start=0, step=1) if factors == self.axis:
                return Ref(self.work.cast(self.sought, value.dtype))
            case _:
                raise _NotAlone
        return Ref(self.work.add(kind, self.dims, value.dtype, value.origin))

    def _load(self, load: Load, found: Mapping[int, Arg]) -> Load:
        """Where a dimension goes along the axis, the sought index is its place."""
        dims: list[LoadDim] = []
        places = ((a, found[a.value]) for a in load.at)
        at = [replace(a, value=p.node) for a, p in places if isinstance(p, Ref)]
        for dim in load.dims:
            if self.work.along.isdisjoint(dim.factors):
                dims.append(dim)
            elif dim.factors == self.axis and dim.limit is None:
                size = self.work.given.size(self.axis)
                at.append(At(self.sought, dim.stride * dim.step, size))
                dims += [LoadDim((), dim.stride, dim.start, 0)] * bool(dim.start)
            else:
                raise _NotAlone
        return replace(load, dims=tuple(dims), at=tuple(at))
