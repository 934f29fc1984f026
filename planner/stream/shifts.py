"""Shifts: what a factor of a streamed product adds to what varies, w * (v + x), x a fold under way
(see `online.py`).

An extremum stays in the sum, which follows it as it moves: v - max(v) is exact to the last digit
however large v is. A logarithm moves behind the sum, for it is small. Of another x, as a mean, the
two sums might be large and leave nothing of each other: that is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..errors import Refused
from ..graph.graph import Ref
from ..graph.op import Op
from ..values.values import Compute, Fold
from .rewriting import Rewriting, unless_zero


@dataclass(frozen=True, slots=True)
class Shift:
    """The folds x of w * (v + sum(c * x)): `extrema` and `logs` hold c by x, `weight` is the
    value w, None for 1."""

    extrema: Mapping[int, float]
    logs: Mapping[int, float]
    weight: int | None = None

    def scaled(self, factor: float) -> Shift:
        """Times a number."""
        extrema = {x: c * factor for x, c in self.extrema.items()}
        return replace(self, extrema=extrema, logs={x: c * factor for x, c in self.logs.items()})

    def weighted(self, weight: int) -> Shift:
        """With another weight."""
        return replace(self, weight=weight)


LOGARITHMS = {Op.LOG, Op.LOG2}


def shift_of(work: Rewriting, origin: str, form: Mapping[int, float]) -> Shift:
    """The shift that a value adds, from its linear form. Raises Refused where that loses digits."""
    waiting = {x: c for x, c in form.items() if c and work.waits(x)}
    extrema = {x: c for x, c in waiting.items() if work.is_extremum(x)}
    logs = {x: c for x, c in waiting.items() if _is_logarithm(work, x)}
    others = waiting.keys() - extrema.keys() - logs.keys()
    if others:
        why = f"adds {work.names(frozenset(others))}, which is no running extremum and no logarithm"
        raise Refused("online", f"{origin} {why}")
    return Shift(extrema, logs)


def _is_logarithm(work: Rewriting, value: int) -> bool:
    kind = work.values[value].kind
    return isinstance(kind, Compute) and kind.op in LOGARITHMS


def weights_of(work: Rewriting, fold: int, kind: Fold, shift: Shift) -> int:
    """The fold that sums the weights beside a fold. Raises Refused where it is of another sweep."""
    value = work.values[fold]
    weight = work.number(1.0, value.dtype) if shift.weight is None else shift.weight
    summed = replace(kind, source=weight, weight=None)
    total = work.add(summed, value.dims, value.dtype, value.origin)
    if work.sweeps.setdefault(total, work.now) != work.now:
        raise Refused("online", f"the weights of {value.origin} are summed in an earlier sweep")
    return total


def shifted(work: Rewriting, total: int, weights: int, shift: Shift, masked: bool) -> int:
    """A sum with its logarithms behind it, each times the sum of the weights: nothing where a mask
    leaves no weight."""
    result = total
    for x, c in shift.logs.items():
        added = work.compute(Op.MUL, total, self=Ref(weights), other=Ref(x))
        if c != 1:
            added = work.compute(Op.MUL, total, self=Ref(added), other=c)
        if masked:
            added = unless_zero(work, weights, added)
        result = work.compute(Op.ADD, total, self=Ref(result), other=Ref(added))
    return result
