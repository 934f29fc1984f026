"""Numbers of a graph that depend on sizes which vary.

A graph with symbolic sizes is captured at the present sizes and at two sets of *probe* sizes, which
never change. A number that differs between them becomes a `Size` (or an `Amount`, a float). It
holds the number itself, which all decisions and sums use, and its values at the probes. By these
the text of a kernel tells it from other numbers and from a constant. It equals, hashes and prints
as the plain number, so a graph's key is that of the static graph.

A kernel gets such a number as an argument. If some arithmetic makes a plain number of it, nothing
is wrong: the number is in the text, and another size gets another kernel.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations_with_replacement
from math import gcd, prod
from typing import Any

ALIGNED = 16
"""What Triton wants to know of an integer argument: whether it is a multiple of this."""

PROBES = 2
"""Sets of probe sizes."""


class Size(int):
    """An integer that varies. probes: what it is at each set of probe sizes. divisor: a power of
    two, at most 16, that divides it at all sizes of the same bucket."""

    probes: tuple[int, ...]
    divisor: int

    def __new__(cls, value: int, probes: tuple[int, ...] = (), divisor: int = 1) -> Size:
        made = super().__new__(cls, value)
        made.probes, made.divisor = probes, divisor
        return made

    def __getnewargs__(self) -> tuple[int, tuple[int, ...], int]:  # type: ignore[override]
        return int(self), self.probes, self.divisor

    def __add__(self, other: int) -> int:
        return _combined(operator.add, self, other, _common)

    def __radd__(self, other: int) -> int:
        return _combined(operator.add, other, self, _common)

    def __sub__(self, other: int) -> int:
        return _combined(operator.sub, self, other, _common)

    def __rsub__(self, other: int) -> int:
        return _combined(operator.sub, other, self, _common)

    def __mul__(self, other: int) -> int:
        return _combined(operator.mul, self, other, _product)

    def __rmul__(self, other: int) -> int:
        return _combined(operator.mul, other, self, _product)

    def __mod__(self, other: int) -> int:
        return _combined(operator.mod, self, other, _common)

    def __rmod__(self, other: int) -> int:
        return _combined(operator.mod, other, self, _common)

    def __floordiv__(self, other: int) -> int:
        return _combined(operator.floordiv, self, other, _quotient)

    def __rfloordiv__(self, other: int) -> int:
        return _combined(operator.floordiv, other, self, _quotient)

    def __neg__(self) -> int:
        return Size(-int(self), tuple(-p for p in self.probes), self.divisor)

    def __abs__(self) -> int:
        return Size(abs(int(self)), tuple(map(abs, self.probes)), self.divisor)


class Amount(float):
    """A float that varies, as `Size` is an integer. Arithmetic gives plain floats."""

    probes: tuple[float, ...]

    def __new__(cls, value: float, probes: tuple[float, ...] = ()) -> Amount:
        made = super().__new__(cls, value)
        made.probes = probes
        return made

    def __getnewargs__(self) -> tuple[float, tuple[float, ...]]:  # type: ignore[override]
        return float(self), self.probes


def size(value: int, probes: Iterable[int], divisor: int = 1) -> int:
    """A Size, or the plain integer where it is the same at all probes."""
    probed = tuple(probes)
    if all(p == value for p in probed):
        return int(value)
    return Size(value, probed, divisor)


def varies(number: object) -> bool:
    return isinstance(number, (Size, Amount))


def plain(number: Any) -> Any:
    """The same number without what it is at the probes."""
    if isinstance(number, Size):
        return int(number)
    return float(number) if isinstance(number, Amount) else number


def at_probe(number: Any, probe: int) -> Any:
    """The value of a number at one of the sets of probe sizes."""
    return number.probes[probe] if isinstance(number, (Size, Amount)) else number


def nominal(number: int) -> int:
    """A size as it counts where sizes are compared and either choice would be right: a varying
    one rounded up, so that the choice is the same in all of a bucket."""
    return rounded_up(number) if isinstance(number, Size) else number


def rounded_up(number: int) -> int:
    """The smallest power of two that is at least the number."""
    return 1 << max(0, int(number) - 1).bit_length()


def reciprocal(number: float) -> float:
    """1 / number, which varies as the number does."""
    if not isinstance(number, (Size, Amount)) or not all(number.probes):
        return 1.0 / number
    return Amount(1.0 / number, tuple(1.0 / p for p in number.probes))


def either(one: int, other: int) -> int:
    """Of two equal integers the one that varies."""
    return other if isinstance(other, Size) else one


def _combined(
    apply: Callable[[int, int], int],
    left: int,
    right: int,
    divisor: Callable[[int, int], int],
) -> int:
    if not isinstance(left, int) or not isinstance(right, int):
        return NotImplemented
    value = apply(int(left), int(right))
    try:
        if not isinstance(right, Size):
            probes = tuple([apply(p, right) for p in left.probes])  # type: ignore[attr-defined]
        elif not isinstance(left, Size):
            probes = tuple([apply(left, p) for p in right.probes])
        else:
            probes = tuple(map(apply, left.probes, right.probes))
    except ZeroDivisionError:  # at a probe, of which nothing is then known
        return value
    if probes.count(value) == len(probes):
        return value
    return Size(value, probes, min(ALIGNED, divisor(left, right)))


def divisor_of(number: int) -> int:
    """The largest power of two, at most 16, that is known to divide a number."""
    return number.divisor if isinstance(number, Size) else gcd(number, ALIGNED)


def _common(left: int, right: int) -> int:
    return min(divisor_of(left), divisor_of(right))


def _product(left: int, right: int) -> int:
    return divisor_of(left) * divisor_of(right)


def _quotient(left: int, right: int) -> int:
    exact = not isinstance(right, Size) and divisor_of(left) % right == 0
    return divisor_of(left) // right if exact and right > 0 else 1


# --- buckets -------------------------------------------------------------------------------------


def bases(sizes: Iterable[object]) -> tuple[Size, ...]:
    """Of the varying ones among these, those from which the others follow: no multiple and no
    product of others. Smaller at the probes comes first."""
    distinct = {s.probes: s for s in sizes if isinstance(s, Size)}
    found: list[Size] = []
    for probes, one in sorted(distinct.items()):
        if factored(probes, found) is None:
            found.append(one)
    return tuple(found)


def bucket(bases: Iterable[Size]) -> list[list[int]]:
    """The properties that the sizes of one bucket share: each rounded up to a power of two, and
    whether it is a multiple of 16."""
    return [[rounded_up(b), int(int(b) % ALIGNED == 0)] for b in bases]


def factored(probes: tuple[int, ...], bases: Sequence[Size]) -> tuple[int, tuple[Size, ...]] | None:
    """scale and factors among the bases whose product a number is at the probes."""
    for count in (1, 2, 3):
        for factors in combinations_with_replacement(bases, count):
            products = [prod(f.probes[i] for f in factors) for i in range(len(probes))]
            scale = probes[0] // products[0]
            if all(scale * p == w for p, w in zip(products, probes, strict=True)):
                return scale, factors
    return None
