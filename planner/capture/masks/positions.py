"""Integers as affine forms of indices, and other values as cases by comparisons of such forms."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

Scalar: TypeAlias = bool | int | float


@dataclass(frozen=True, slots=True)
class PositionForm:
    """constant + sum of steps[d] * index along dimension d."""

    constant: int
    steps: tuple[int, ...]

    def plus(self, other: PositionForm, scale: int = 1) -> PositionForm:
        """This form + scale * other, dimensions aligned at the last."""
        rank = max(len(self.steps), len(other.steps))
        pairs = zip(padded(self.steps, rank), padded(other.steps, rank), strict=True)
        steps = tuple(a + scale * b for a, b in pairs)
        return PositionForm(self.constant + scale * other.constant, steps)

    def times(self, number: int) -> PositionForm:
        return PositionForm(self.constant * number, tuple(s * number for s in self.steps))

    def range(self, shape: Sequence[int]) -> tuple[int, int]:
        """The smallest and the largest value over a shape."""
        ends = [s * (n - 1) for s, n in zip(self.steps, _last(shape, len(self.steps)), strict=True)]
        low, high = sum(min(0, e) for e in ends), sum(max(0, e) for e in ends)
        return self.constant + low, self.constant + high

    @property
    def is_constant(self) -> bool:
        return not any(self.steps)


@dataclass(frozen=True, slots=True)
class Cases:
    """A number for each outcome of the atoms: `values[i]` where exactly those atoms k are >= 0
    for which bit k of i is set. Without atoms it is one number everywhere."""

    atoms: tuple[PositionForm, ...]
    values: tuple[Scalar, ...]

    def possible(self) -> list[int]:
        """The outcomes that some indices may have: of two atoms with the same steps, the larger
        holds where the smaller does."""
        return [i for i in range(len(self.values)) if all(self._agrees(i, *p) for p in self._pairs)]

    @property
    def _pairs(self) -> list[tuple[int, int]]:
        found = itertools.permutations(range(len(self.atoms)), 2)
        return [(a, b) for a, b in found if self._is_below(self.atoms[a], self.atoms[b])]

    @staticmethod
    def _is_below(one: PositionForm, other: PositionForm) -> bool:
        return one.steps == other.steps and one.constant <= other.constant

    @staticmethod
    def _agrees(outcome: int, smaller: int, larger: int) -> bool:
        return not outcome >> smaller & 1 or bool(outcome >> larger & 1)

    @property
    def uniform(self) -> Scalar | None:
        """The number that it is everywhere, if it is one."""
        first, *rest = (self.values[i] for i in self.possible())
        return first if all(_is_same(first, other) for other in rest) else None


Known: TypeAlias = PositionForm | Cases


def simplest(cases: Cases, shape: Sequence[int]) -> Cases:
    """With atoms of a first step above 0 and no common divisor, none of them decided or idle."""
    order: list[PositionForm] = []
    reads: list[tuple[int | None, bool]] = []  # of each old atom: its new place, or its outcome
    for atom in cases.atoms:
        low, high = atom.range(shape)
        if low >= 0 or high < 0:
            reads.append((None, low >= 0))
            continue
        common = math.gcd(*atom.steps)
        atom = PositionForm(atom.constant // common, tuple(s // common for s in atom.steps))
        flips = next(s for s in atom.steps if s) < 0
        wanted = negated(atom) if flips else atom
        if wanted not in order:
            order.append(wanted)
        reads.append((order.index(wanted), flips))
    values = []
    for outcome in range(1 << len(order)):
        bits = [
            flag if place is None else bool(outcome >> place & 1) != flag for place, flag in reads
        ]
        values.append(cases.values[sum(bit << k for k, bit in enumerate(bits))])
    found = Cases(tuple(order), tuple(values))
    for atom in order:
        found = _without_idle(found, atom)
    return found


def _without_idle(cases: Cases, atom: PositionForm) -> Cases:
    """Without an atom on which nothing depends."""
    place = cases.atoms.index(atom)
    possible = set(cases.possible())
    for i in possible:
        other = i ^ (1 << place)
        if other in possible and not _is_same(cases.values[i], cases.values[other]):
            return cases
    kept: dict[int, Scalar] = {}
    for i, value in enumerate(cases.values):
        short = (i & ((1 << place) - 1)) | (i >> (place + 1) << place)
        if short not in kept or i in possible:
            kept[short] = value
    atoms = tuple(a for a in cases.atoms if a != atom)
    return Cases(atoms, tuple(kept[i] for i in range(1 << len(atoms))))


def aligned(form: PositionForm, rank: int) -> PositionForm:
    return PositionForm(form.constant, padded(form.steps, rank))


def negated(form: PositionForm) -> PositionForm:
    """The form that is >= 0 exactly where this one is not."""
    return PositionForm(-1, ()).plus(form, -1)


def padded(steps: tuple[int, ...], rank: int) -> tuple[int, ...]:
    return (0,) * (rank - len(steps)) + steps


def _last(shape: Sequence[int], rank: int) -> tuple[int, ...]:
    return tuple(shape)[len(shape) - rank :]


def _is_same(one: Scalar, other: Scalar) -> bool:
    """Equal, also NaN with itself; 0 and -0 differ."""
    if isinstance(one, float) and isinstance(other, float):
        if math.isnan(one) or math.isnan(other):
            return math.isnan(one) and math.isnan(other)
        return one == other and math.copysign(1, one) == math.copysign(1, other)
    return one == other
