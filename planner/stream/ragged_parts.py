"""Parts of an axis that has no equal ones: the last is shorter (see `split_reduction.py`).

All parts have the same length in the kernel. What lies beyond the end of the axis is not read, and
is masked before it is folded.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ..errors import Refused
from ..graph.dtypes import FLOATS
from ..graph.graph import Ref
from ..graph.op import Op
from ..graph.ops import MAX, MIN, SUM
from ..graph.sizes import varies
from ..values.axes import Factors
from ..values.values import (
    Choice,
    Compute,
    Fold,
    Index,
    Load,
    LoadDim,
    Scan,
    Value,
    ValueKind,
    Values,
    compute,
)

_STEP = 64
"""Elements of which the length of a part is a multiple: whole vectors of some threads."""

_NEUTRAL = {SUM: 0.0, MAX: -math.inf, MIN: math.inf}


def length_of(extent: int, parts: int) -> int:
    """Elements of a part. Raises Refused where the last would have none."""
    length = 0 if varies(extent) else -(-extent // (parts * _STEP)) * _STEP
    if not length or length * (parts - 1) >= extent:
        raise Refused("split", f"no reduced axis divides into {parts} parts")
    return length


def guarded(old: Value, kind: ValueKind, values: Values, divided: int) -> ValueKind:
    """The kind of a value, by parts, that reads nothing beyond the end of a divided factor. Raises
    Refused where that is not the outermost of a dimension, for what lies beyond it would be another
    element, and where indices vary along it.

    old, values: as they were before the division."""
    match old.kind:
        case Load(dims=dims, at=at):
            along = [dim.factors for dim in dims]
            ends = [_end(dim, values) if divided in dim.factors else None for dim in dims]
            is_limited = any(d.limit is not None for d in dims if divided in d.factors)
            # An index beyond the end may point anywhere.
            is_limited |= any(divided in values.values[a.value].axes for a in at)
        case Index(factors=factors) | Choice(factors=factors) | Scan(along=factors):
            along, ends, is_limited = [factors], [], False
        case _:
            return kind
    if is_limited or any(divided in factors[1:] for factors in along):
        raise Refused("split", f"{old.origin} has no part that is shorter")
    if not isinstance(kind, Load):
        return kind
    pairs = zip(kind.dims, ends, strict=True)
    return replace(kind, dims=tuple(d if e is None else replace(d, limit=e) for d, e in pairs))


def _end(dim: LoadDim, values: Values) -> int:
    """One more than the largest index of a dimension of a load; beyond the end of one that is read
    backwards lie indices below its least, which are read if they are not negative."""
    return dim.start + max(0, dim.step * (values.size(dim.factors) - 1)) + 1


def neutral(value: Value, fold: Fold) -> float:
    """What a fold leaves as it is. Raises Refused where nothing is known."""
    is_plain = fold.times is None and fold.weight is None and fold.about is None
    if not is_plain or value.dtype not in FLOATS or fold.monoid not in _NEUTRAL:
        raise Refused("split", f"{value.origin} has no part that is shorter")
    return _NEUTRAL[fold.monoid]


def places(factors: Factors) -> Index:
    """Where an element lies along a divided factor."""
    return Index(factors, 0, 1)


def is_inside(places: int, extent: int) -> Compute:
    """Whether it lies before the end."""
    return compute(Op.LT, "int64", self=Ref(places), other=extent)
