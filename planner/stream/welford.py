"""A sum of squared distances from a mean, joined to the sweep of the sum that gives the mean.

    sum((u - mean(u))**2) over a set of n elements, t below, s = sum(u), m = s / n:
    t of a and b together = (t_a + n_a * (m_a - m)**2) + (t_b + n_b * (m_b - m)**2),

so that lanes, turns of a loop and parts of a split each keep their own (n, s, t), and none sums
squares of what lies far from zero.
"""

from __future__ import annotations

from dataclasses import replace

from ..graph.dtypes import FLOATS
from ..graph.graph import Arg, Ref
from ..graph.op import Op
from ..graph.sizes import PROBES, at_probe, reciprocal
from ..values.values import Compute, Fold, Literal, Value
from .rewriting import Rewriting


def follow_mean(work: Rewriting, fold: int, kind: Fold) -> str:
    """Make a carried sum that is one of squared distances follow the sum under way that gives the
    mean (see `Fold.about`). The statement; "" where it is none."""
    distance = _squared(work, kind)
    found = None if distance is None else _from_mean(work, distance, kind)
    value = work.values[fold]
    if found is None or value.dtype not in FLOATS or any(map(_is_contraction, work.values)):
        return ""
    source, total = found
    near = replace(kind, source=source, about=total)
    work.put(fold, work.add(near, value.dims, value.dtype, value.origin))
    return f"H(t, m, m') = t + n * (m - m')**2, m = mean({work.values[source].origin}) of n so far"


def _is_contraction(value: Value) -> bool:
    """Loops around these keep one state for a tile, not one for every lane."""
    return isinstance(value.kind, Fold) and value.kind.times is not None


def _squared(work: Rewriting, kind: Fold) -> int | None:
    """The value whose squares are summed."""
    match work.values[kind.source].kind:
        case Compute(op=Op.MUL, operands=((_, Ref(node=one)), (_, Ref(node=other)))):
            return one if one == other else None
        case Compute(op=Op.SQUARE, operands=((_, Ref(node=one)),)):
            return one
    return None


def _from_mean(work: Rewriting, distance: int, kind: Fold) -> tuple[int, int] | None:
    """For u - mean(u), the mean over all that the fold reduces: u, and the fold that sums it."""
    match work.values[distance].kind:
        case Compute(op=Op.SUB, operands=((_, Ref(node=source)), (_, Ref(node=mean)))):
            total = _mean_of(work, mean, work.given.size(kind.reduced))
        case _:
            return None
    summed = work.values[total].kind
    if total not in work.waits(total) or not isinstance(summed, Fold):
        return None
    like = replace(kind, source=source, mean=summed.mean)
    return (source, total) if summed == like and summed.mean == (total == mean) else None


def _mean_of(work: Rewriting, value: int, count: int) -> int:
    """For total / count: the total; else the value itself."""
    match work.values[value].kind:
        case Compute(op=Op.DIV, operands=((_, Ref(node=total)), (_, divisor))):
            return total if _is_same(_number(work, divisor), count) else value
        case Compute(op=Op.MUL, operands=((_, Ref(node=total)), (_, factor))):
            return total if _is_same(_number(work, factor), reciprocal(count)) else value
    return value


def _number(work: Rewriting, argument: Arg) -> float:
    """A number as it stands, a size that varies included; 0 for what is none."""
    if isinstance(argument, Ref):
        kind = work.values[argument.node].kind
        return kind.number if isinstance(kind, Literal) else 0.0
    return argument if isinstance(argument, (int, float)) else 0.0


def _is_same(one: float, other: float) -> bool:
    """Whether two numbers are equal, at all sizes where they vary."""
    probes = ((at_probe(one, p), at_probe(other, p)) for p in range(PROBES))
    return one == other and all(a == b for a, b in probes)
