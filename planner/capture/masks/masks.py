"""The keys that a known mask keeps for a query, and the simplest comparisons that give a known
value.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from .positions import Cases, Known, PositionForm, Scalar, negated


@dataclass(frozen=True, slots=True)
class Band:
    """Query i sees the keys from i - before to i + after; None: all on that side."""

    before: int | None = None
    after: int | None = None

    @property
    def is_all(self) -> bool:
        return self.before is None and self.after is None

    def is_causal(self, queries: int, keys: int) -> bool:
        return queries == keys and self.before is None and self.after == 0

    def is_seen_by_all(self, queries: int, keys: int) -> bool:
        """Whether every query sees some key."""
        before = queries if self.before is None else self.before
        after = keys if self.after is None else self.after
        return after >= 0 and before + after >= 0 and queries - 1 - before < keys


def band(mask: Known, dtype: torch.dtype) -> Band | None:
    """The band of keys around the query's own index that a mask over [..., queries, keys] keeps,
    boolean or to be added; None where it keeps something else."""
    if not isinstance(mask, Cases):
        return None
    kept = [_keeps(value, dtype) for value in mask.values]
    if any(kept[i] is None for i in mask.possible()):
        return None
    forms = conjunction(replace(mask, values=tuple(bool(k) for k in kept)))
    if forms is None:
        return None
    before, after = [], []
    for form in forms:
        match form.steps[-2:]:
            case (1, -1) if not any(form.steps[:-2]):
                after.append(form.constant)
            case (-1, 1) if not any(form.steps[:-2]):
                before.append(form.constant)
            case _:
                return None
    return Band(min(before, default=None), min(after, default=None))


def _keeps(value: Scalar, dtype: torch.dtype) -> bool | None:
    """Whether a mask's number keeps a score (0) or leaves it out (at most the lowest finite
    number); None for any other."""
    if dtype == torch.bool:
        return bool(value)
    if not dtype.is_floating_point:
        return None
    return True if value == 0 else False if value <= torch.finfo(dtype).min else None


def conjunction(cases: Cases) -> list[PositionForm] | None:
    """Forms that are all >= 0 exactly where the cases are true, if there are such."""
    possible = cases.possible()
    true = [i for i in possible if cases.values[i]]
    forms, needed, wanted = [], 0, 0
    for place, atom in enumerate(cases.atoms):
        seen = {i >> place & 1 for i in true}
        if len(seen) == 1:
            holds = seen == {1}
            needed |= 1 << place
            wanted |= holds << place
            forms.append(atom if holds else negated(atom))
    matching = [i for i in possible if i & needed == wanted]
    return forms if true and matching == true else None


@dataclass(frozen=True, slots=True)
class Piecewise:
    """A value that is `inside` where all forms are >= 0, and `outside` elsewhere."""

    forms: tuple[PositionForm, ...]
    inside: Scalar
    outside: Scalar

    @property
    def operations(self) -> int:
        """Comparisons, sums and choices that it takes."""
        sums = sum(f.constant != 0 and min(f.steps) < 0 < max(f.steps) for f in self.forms)
        chosen = bool(self.forms) and (self.inside, self.outside) != (True, False)
        return sums + max(0, 2 * len(self.forms) - 1) + chosen


def split(cases: Cases) -> Piecewise | None:
    """The cases as one number inside and one outside of some forms, with as few operations as
    possible; None where they are not of that kind."""
    uniform = cases.uniform
    if uniform is not None:
        return Piecewise((), uniform, uniform)
    numbers = {repr(cases.values[i]): cases.values[i] for i in cases.possible()}
    found = []
    if len(numbers) == 2:
        for inside, outside in (tuple(numbers), tuple(numbers)[::-1]):
            is_inside = tuple(repr(v) == inside for v in cases.values)
            forms = conjunction(replace(cases, values=is_inside))
            if forms:
                found.append(Piecewise(tuple(forms), numbers[inside], numbers[outside]))
    return min(found, key=lambda each: each.operations, default=None)
