"""Rows that are masked altogether: a softmax that is to be 0 there, as torch's own attention has it
(see `online.py`).

Where an extremum is infinite, no element of the row but masked ones was seen, and an exponential
under way is 0 in all of the row. So of e * u the choice moves behind the sum, as a multiplier that
is 0 in such a row, else 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from ..graph.graph import Ref
from ..graph.op import NOTS, Op
from ..graph.ops import ANY, MIN
from ..values.values import Compute, Fold, ValueKind
from .rewriting import Rewriting


def of_nothing(extremum: ValueKind) -> float:
    """What an extremum is of no element, or of masked ones alone."""
    assert isinstance(extremum, Fold)
    return math.inf if extremum.monoid == MIN else -math.inf


def infinite_extremum(work: Rewriting, condition: int, extrema: Iterable[int]) -> int | None:
    """The one of the extrema that is infinite where the condition holds, and only there: it is
    compared with infinity, or no element that it bounds is another number."""
    operands = _operands(work, condition, Op.EQ)
    for x in extrema:
        kind = work.values[x].kind
        assert isinstance(kind, Fold)
        limit = of_nothing(kind)
        if operands is not None and operands == (x, limit):
            return x
        if _is_never_another(work, condition, kind, limit):
            return x
    return None


def multiplier(work: Rewriting, extremum: int, masked: float = 0.0) -> int:
    """The number `masked` where an extremum is infinite, else 1."""
    own = work.values[extremum]
    infinite = work.compute(Op.EQ, extremum, self=Ref(extremum), other=of_nothing(own.kind))
    there, one = (work.number(n, own.dtype) for n in (masked, 1.0))
    operands = {"condition": Ref(infinite), "self": Ref(there), "other": Ref(one)}
    return work.compute(Op.WHERE, extremum, **operands)


def _is_never_another(work: Rewriting, condition: int, extremum: Fold, limit: float) -> bool:
    """Whether the condition is "not any element is other than the limit"."""
    found = _negated(work, condition)
    fold = work.values[found].kind if found is not None else None
    if not isinstance(fold, Fold) or fold.monoid != ANY or fold.reduced != extremum.reduced:
        return False
    wanted = (extremum.source, limit)
    if _operands(work, fold.source, Op.NE) == wanted:
        return True
    inner = _negated(work, fold.source)
    return inner is not None and _operands(work, inner, Op.EQ) == wanted


def _negated(work: Rewriting, value: int) -> int | None:
    kind = work.values[value].kind
    if not isinstance(kind, Compute) or kind.op not in NOTS:
        return None
    ((_, argument),) = kind.operands
    return argument.node if isinstance(argument, Ref) else None


def _operands(work: Rewriting, value: int, op: Op) -> tuple[int, float | None] | None:
    """The value that a comparison compares with a number, and the number."""
    kind = work.values[value].kind
    if not isinstance(kind, Compute) or kind.op is not op:
        return None
    operands = dict(kind.operands)
    left = operands["self"]
    return (left.node, work.constant(operands["other"])) if isinstance(left, Ref) else None
