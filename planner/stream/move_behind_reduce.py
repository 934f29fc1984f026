"""Operations that move behind a fold: the monotone ones behind an extremum, all of them behind
the sum of one picked element (see `online.py`)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from ..errors import Refused
from ..graph.dtypes import FLOATS, INDICES
from ..graph.graph import Arg, Ref
from ..graph.op import (
    ANDS,
    KEEPS_NONNEGATIVE,
    KEEPS_ZERO,
    KEEPS_ZERO_AND_INFINITY,
    NEVER_NEGATIVE,
    RISING,
    RISING_FROM_0,
    Op,
)
from ..graph.ops import MAX, MIN, SUM
from ..values.values import Compute, Fold, Index, Literal, Value, ValueKind, mapped
from .rewriting import Rewriting, unless_zero


def pick(work: Rewriting, fold: int, kind: Fold) -> str:
    """The sum of the only element that an index selects: what is computed from streamed values
    and waiting folds is computed from the picked elements after the loop."""
    value, source = work.values[fold], work.values[kind.source]
    if kind.times is not None or kind.mean or not isinstance(source.kind, Compute):
        return ""
    operands = dict(source.kind.operands)
    condition, chosen = operands.get("condition"), operands.get("self")
    if source.kind.op is not Op.WHERE or work.constant(operands["other"]) != 0:
        return ""
    if source.dtype != value.dtype or not work.waits(source.id):
        return ""
    if not isinstance(condition, Ref) or not isinstance(chosen, Ref):
        return ""
    if work.waits(condition.node) or not is_one_hot(work, condition.node):
        return ""

    def total(of: int) -> int:
        selected = work.rebuilt(source.id, {"self": of})
        summed = work.add(replace(kind, source=selected), value.dims, value.dtype, value.origin)
        work.sweeps[summed] = work.now
        return summed

    def behind(at: int) -> int:
        if not work.streams(Ref(at)):
            return at
        own = work.values[at]
        if not work.waits(at) and own.dtype == value.dtype:
            return total(at)
        if not isinstance(own.kind, Compute):
            raise Refused("online", f"{own.origin} cannot be picked from")
        return work.add(mapped(own.kind, behind), value.dims, own.dtype, own.origin)

    result = behind(chosen.node)
    sought = sought_index(work, condition.node)
    if sought is None:
        hits = total(work.number(1.0, source.dtype))
    else:
        hits = work.cast(is_on_axis(work, sought), source.dtype)
    work.put(fold, unless_zero(work, hits, result))
    formula = (
        f"sum(where(j == i, f(u), 0)) = f(sum(where(j == i, u, 0))), {work.names([source.id])}"
    )
    return formula


def is_one_hot(work: Rewriting, condition: int) -> bool:
    """Whether a condition holds for at most one index along the axis."""
    kind = work.values[condition].kind
    if not isinstance(kind, Compute):
        return False
    sides = [a.node for _, a in kind.operands if isinstance(a, Ref)]
    if kind.op in ANDS:
        return any(is_one_hot(work, side) for side in sides)
    if kind.op is not Op.EQ or kind.working not in INDICES:
        return False
    moving = [work.uncopied(side) for side in sides if work.streams(Ref(side))]
    if len(moving) != 1:
        return False
    index = work.values[moving[0]].kind
    return isinstance(index, Index) and index.step != 0 and work.along <= set(index.factors)


def sought_index(work: Rewriting, condition: int) -> int | None:
    """The value that an index of the whole axis is compared with; None where a condition is
    anything else."""
    kind = work.values[condition].kind
    if not isinstance(kind, Compute) or kind.op in ANDS or not is_one_hot(work, condition):
        return None
    sides = [a.node for _, a in kind.operands if isinstance(a, Ref)]
    still = [s for s in sides if not work.streams(Ref(s))]
    moving = next(s for s in sides if s not in still)
    index = work.values[work.uncopied(moving)].kind
    if len(still) != 1 or not isinstance(index, Index) or (index.start, index.step) != (0, 1):
        return None
    return still[0] if set(index.factors) == set(work.along) else None


def is_on_axis(work: Rewriting, sought: int) -> int:
    """Whether an index lies on the axis of the fold in hand."""
    length = work.given.size(tuple(work.along))
    least = work.compute(Op.GE, sought, self=Ref(sought), other=0)
    most = work.compute(Op.LT, sought, self=Ref(sought), other=length)
    return work.compute(Op.LOGICAL_AND, least, self=Ref(least), other=Ref(most))


def lift(work: Rewriting, fold: int, kind: Fold) -> str:
    """An extremum of a chain of monotone operations is the chain of the extremum. What others
    read stays, unless the extremum must wait for a part of it."""
    monoid, at = kind.monoid, kind.source
    readers = work.readers()
    chain: list[tuple[int, str]] = []
    while work.waits(at) or readers[at] <= 1:
        link, step = at, _monotone(work, at)
        swapped = None if step else _behind_mask(work, at, readers)
        if swapped:
            link, at = swapped
            step = _monotone(work, link)
        if step is None:
            break
        name, inside, direction = step
        chain.append((link, name))
        monoid = monoid if direction > 0 else MIN if monoid == MAX else MAX
        at = at if swapped else inside
    if work.waits(at):
        own = work.values[at].origin
        raise Refused("online", f"{own} does not rise with all that is streamed in it")
    if all(_is_copy(work.values[v].kind) for v, _ in chain):
        return ""
    value = work.values[fold]
    result = work.add(
        replace(kind, monoid=monoid, source=at), value.dims, work.values[at].dtype, value.origin
    )
    work.sweeps[result] = work.now
    for link, name in reversed(chain):
        old = work.values[link]
        moved = work.with_operands(link, {name: result})
        result = work.add(moved, value.dims, old.dtype, old.origin)
    work.put(fold, result)
    names = [work.values[v].origin for v, _ in reversed(chain) if not _is_copy(work.values[v].kind)]
    return f"{kind.monoid.name}(f(u)) = f({monoid.name}(u)), f = {', then '.join(names)}"


def _behind_mask(work: Rewriting, value: int, readers: Mapping[int, int]) -> tuple[int, int] | None:
    """For m * f(u), m being 0 or 1, or where(m, f(u), 0) with f(0) = 0: the ids of f(u), and of
    the same mask around u."""
    own = work.values[value]
    if not isinstance(own.kind, Compute) or own.kind.op not in (Op.MUL, Op.WHERE):
        return None
    operands, multiplies = dict(own.kind.operands), own.kind.op is Op.MUL
    for name, other in (("self", "other"), ("other", "self")):
        inner, mask = operands[name], operands[other]
        gate = _is_zero_one(work, mask) if multiplies else work.constant(mask) == 0
        if not gate or not isinstance(inner, Ref) or readers[inner.node] != 1:
            continue
        step = _monotone(work, inner.node)
        # As a factor the mask makes NaN of infinity, which f must not have made finite.
        keeps = step and _keeps_zero(work, inner.node, infinity=multiplies)
        if step and keeps and work.values[inner.node].dtype == own.dtype:
            inside = work.cast(step[1], own.dtype)
            return inner.node, work.rebuilt(value, {name: inside})
    return None


def _is_zero_one(work: Rewriting, argument: Arg) -> bool:
    if not isinstance(argument, Ref):
        return False
    match work.values[argument.node]:
        case Value(kind=Compute(op=Op.CONVERT, operands=((_, inner),))):
            return _is_zero_one(work, inner)
        case Value(dtype=dtype):
            return dtype == "bool"


def _keeps_zero(work: Rewriting, value: int, infinity: bool) -> bool:
    """Whether an operation gives 0 for 0, and if asked infinity for infinity."""
    kind = work.values[value].kind
    assert isinstance(kind, Compute)
    return kind.op in (KEEPS_ZERO_AND_INFINITY if infinity else KEEPS_ZERO)


def _is_copy(kind: ValueKind) -> bool:
    return isinstance(kind, Compute) and kind.op is Op.CONVERT


def _monotone(work: Rewriting, value: int) -> tuple[str, int, int] | None:
    """The one streamed operand of a value, by name and id, and whether the value rises with it
    (1) or falls (-1); None where it does neither."""
    own = work.values[value]
    if not isinstance(own.kind, Compute) or own.dtype not in FLOATS:
        return None
    moving = [(n, a.node) for n, a in own.kind.operands if isinstance(a, Ref) and work.streams(a)]
    if len(moving) != 1 or work.values[moving[0][1]].dtype not in FLOATS:
        return None
    name, inside = moving[0]
    operands = dict(own.kind.operands)
    slope: float | None = 0.0
    match own.kind.op:
        case op if op in RISING:
            slope = 1.0
        case op if op in RISING_FROM_0:
            slope = float(_is_nonnegative(work, inside))
        case Op.NEG:
            slope = -1.0
        case Op.ADD | Op.SUB | Op.RSUB as op:
            alpha = work.constant(operands.get("alpha", 1)) or 0.0
            scaled = "self" if op is Op.RSUB else "other"
            slope = 1.0 if name != scaled else alpha if op is Op.ADD else -alpha
        case Op.MUL:
            slope = work.constant(operands["other" if name == "self" else "self"])
        case Op.DIV if name == "self":
            slope = work.constant(operands["other"])
    if not slope or not math.isfinite(slope):
        return None
    return name, inside, 1 if slope > 0 else -1


def _is_nonnegative(work: Rewriting, value: int) -> bool:
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
            return monoid in (SUM, MAX, MIN) and times is None and holds(Ref(source))
        case Compute(op=op, operands=operands):
            arguments = [a for n, a in operands if n != "condition"]
            if op in NEVER_NEGATIVE:
                return True
            if op in (Op.CLAMP, Op.CLAMP_MIN) and holds(dict(operands).get("min")):
                return True
            if op is Op.MAXIMUM:
                return any(map(holds, arguments))
            if op is Op.MUL and len(arguments) == 2 and arguments[0] == arguments[1]:
                return True
            return op in KEEPS_NONNEGATIVE and all(map(holds, arguments))
    return own.dtype in ("bool", "uint8")
