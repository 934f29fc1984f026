"""Sums of exponentials over rows that are masked altogether.

While it is under way an extremum that is still the identity stands as 0 in exponents (`online.py`),
so that the sum of a row in which all is -inf is 0. Eager has exp(-inf + inf) there, NaN. So the sum
is multiplied by infinity in such a row, which of 0 is NaN. Where all that reads it divides it by
what follows the same extremum, or that by it, 0 / 0 is NaN in any case.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from ..graph.graph import Ref
from ..graph.op import Op
from ..graph.ops import SUM
from ..values.values import Compute, Fold, Value, Values
from .masked_rows import multiplier
from .online import Correction
from .rewriting import Rewriting


def infinite_where_masked(
    values: Values, corrections: Mapping[int, Correction]
) -> tuple[Values, Mapping[int, Correction]]:
    """The values with such sums multiplied behind their loop, and the corrections by their ids."""
    found = [fold for fold in corrections if is_exposed(values, fold, corrections[fold])]
    if not found:
        return values, corrections
    work, sums = Rewriting(values, frozenset()), dict(corrections)
    for fold in found:
        correction = sums.pop(fold)
        total = result = work.copied(fold)
        sums[total] = correction
        for _, x in correction.exponent:
            factor = multiplier(work, x, masked=math.inf)
            result = work.compute(Op.MUL, fold, self=Ref(result), other=Ref(factor))
        work.put(fold, result)
    made, renamed = work.finish()
    return made, {renamed[f]: each.renamed(renamed) for f, each in sums.items() if f in renamed}


def is_exposed(values: Values, fold: int, correction: Correction) -> bool:
    """Whether something reads the sum that is no such quotient. Not where zeros are selected in
    place of elements: those of a masked row may all be. Nor where the user lets the extremum of a
    masked row be another number, as torch's logsumexp does."""
    kind = values.values[fold].kind
    assert isinstance(kind, Fold)
    if not correction.exponent or correction.shift or correction.masked or kind.monoid != SUM:
        return False
    if any(isinstance(v.kind, Fold) and v.kind.weight == fold for v in values.values):
        return False
    quotients = _Quotients(values, {x for _, x in correction.exponent})
    return not (quotients.are_chosen(kind.source) or quotients.hold(fold))


class _Quotients:
    """Of values that are 0 or infinite in a masked row: whether what reads them is NaN there."""

    def __init__(self, values: Values, extrema: Collection[int]) -> None:
        self.values, self.extrema = values, extrema
        self.behind = values.ancestors()

    def hold(self, number: int) -> bool:
        """Whether all that reads a value is a quotient of two such values. No store does."""
        stored = any(output.value == number for output in self.values.outputs)
        readers = (v for v in self.values.values if number in v.reads)
        return not stored and all(self._holds(reader, number) for reader in readers)

    def are_chosen(self, source: int) -> bool:
        """Whether something is chosen by an extremum before it comes into a source."""
        kinds = (self.values.values[v].kind for v in self.behind[source] if self._follows(v))
        return any(isinstance(kind, Compute) and kind.op is Op.WHERE for kind in kinds)

    def _holds(self, reader: Value, number: int) -> bool:
        kind = reader.kind
        if not isinstance(kind, Compute):
            return False
        if kind.op in (Op.CONVERT, Op.RECIPROCAL):
            return self.hold(reader.id)
        others = [a.node for _, a in kind.operands if isinstance(a, Ref) and a.node != number]
        is_quotient = kind.op is Op.DIV or (kind.op is Op.MUL and self._divides(number, *others))
        return is_quotient and bool(others) and all(map(self._follows, others))

    def _follows(self, number: int) -> bool:
        return not self.behind[number].isdisjoint(self.extrema)

    def _divides(self, *factors: int) -> bool:
        """Whether one factor of a product is 1 over a sum."""
        kinds = (self.values.values[each].kind for each in factors)
        return any(isinstance(kind, Compute) and kind.op is Op.RECIPROCAL for kind in kinds)
