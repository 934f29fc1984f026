"""Ranges of integers, where they follow from positions and numbers alone.

PyTorch counts in int64, but what is computed from positions mostly fits half of it, and a GPU's
integer units have 32 bits. An index that provably lies inside its tensor needs no check."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..graph.dtypes import INDICES
from ..graph.graph import Arg, Ref
from ..graph.op import Op
from ..values.values import At, Compute, Index, Literal, Load, Value, ValueKind, Values

_LIMIT = 2**31 - 1
Range = tuple[int, int]


def narrowed(values: Values) -> Values:
    """The same values; integers that provably fit are int32, and indices that provably lie inside
    are not checked."""
    ranges: dict[int, Range] = {}
    found: list[Value] = []
    for value in values.values:
        if value.dtype in INDICES:
            own = _range(value, ranges, values)
            if own is not None and max(map(abs, own)) <= _LIMIT:
                ranges[value.id] = own
                value = replace(value, dtype="int32")
        kind = _trusted(_kind(value, found), ranges)
        found.append(value if kind is value.kind else replace(value, kind=kind))
    return replace(values, values=tuple(found))


def _range(value: Value, ranges: Mapping[int, Range], values: Values) -> Range | None:
    match value.kind:
        case Index(factors=factors, start=start, step=step):
            last = start + step * (values.size(factors) - 1)
            return min(start, last), max(start, last)
        case Literal(number=int() as number):
            return number, number
        case Compute() as compute:
            return _computed(compute, ranges)
    return None


def _computed(compute: Compute, ranges: Mapping[int, Range]) -> Range | None:
    """By the operations whose result's range follows from the operands'."""
    if compute.working not in {None, *INDICES}:
        return None
    bounds = dict(compute.operands)
    if compute.op is Op.CLAMP and isinstance(low := bounds.get("min"), int):
        high = bounds.get("max")
        return (low, high) if isinstance(high, int) and low <= high else None
    named = {n: _of(a, ranges) for n, a in compute.operands if n not in ("condition", "alpha")}
    if None in named.values():
        return None
    alpha = dict(compute.operands).get("alpha", 1)
    (low, high), *rest = (r for r in named.values() if r is not None)
    other = rest[0] if rest else (0, 0)
    match compute.op:
        case Op.CONVERT:
            return low, high
        case Op.NEG:
            return -high, -low
        case Op.WRAP_INDEX:
            size = other[0]
            return (low, high) if low >= 0 else (min(low + size, 0), max(high, size - 1))
        case Op.WHERE:
            return min(low, other[0]), max(high, other[1])
        case Op.ADD | Op.SUB if isinstance(alpha, int):
            scale = alpha if compute.op is Op.ADD else -alpha
            ends = (other[0] * scale, other[1] * scale)
            return low + min(ends), high + max(ends)
        case Op.MUL:
            products = [a * b for a in (low, high) for b in other]
            return min(products), max(products)
    return None


def _trusted(kind: ValueKind, ranges: Mapping[int, Range]) -> ValueKind:
    """A load whose indices are checked only where they may lie outside; a place that needs no
    counting from the end is copied."""
    if isinstance(kind, Load) and kind.at:
        return replace(kind, at=tuple(replace(a, checked=_may_leave(a, ranges)) for a in kind.at))
    if isinstance(kind, Compute) and kind.op is Op.WRAP_INDEX:
        (_, source), _ = kind.operands
        own = _of(source, ranges)
        if own is not None and own[0] >= 0:
            return replace(kind, op=Op.CONVERT, operands=(("self", source),))
    return kind


def _may_leave(at: At, ranges: Mapping[int, Range]) -> bool:
    low, high = ranges.get(at.value, (-1, -1))
    return at.checked and not 0 <= low <= high < at.size


def _of(argument: Arg, ranges: Mapping[int, Range]) -> Range | None:
    if isinstance(argument, Ref):
        return ranges.get(argument.node)
    return (argument, argument) if isinstance(argument, int) else None


def _kind(value: Value, before: list[Value]) -> ValueKind:
    """The kind, evaluated in the dtype that its operands and its result now have."""
    kind = value.kind
    if not isinstance(kind, Compute):
        return kind
    sources = {n: before[a.node].dtype for n, a in kind.operands if isinstance(a, Ref)}
    sources.pop("condition", None)
    if kind.working is None and kind.op is Op.CONVERT:
        return replace(kind, result=next(iter(sources.values())))
    fits = all(dtype == "int32" for dtype in sources.values()) and sources
    if kind.working == "int64" and fits and (value.dtype == "int32" or kind.result == "bool"):
        result = "int32" if kind.result == "int64" else kind.result
        return replace(kind, working="int32", result=result)
    return kind
