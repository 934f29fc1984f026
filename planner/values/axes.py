"""Every dimension of every value in a group, expressed over one set of factors.

A *factor* is an iteration axis that no reshape of the group splits further. Pointwise operations
unify the factors of their operands, a reshape splits and regroups them, a broadcast drops them,
a permutation reorders them: after that a view is no work, only a map between factors. What does
not factor is refused with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..errors import Refused
from ..graph.sizes import either

Factors = tuple[int, ...]


class FactorSpace:
    """Builder of the factors of one group: union-find, in which a factor can also be split.

    A dimension is a tuple of factor ids from outer to inner; a dimension of size 1 is empty.
    """

    def __init__(self) -> None:
        self._extent: list[int] = []
        self._same_as: list[int] = []
        self._parts: dict[int, tuple[int, int]] = {}

    def fresh(self, extent: int) -> Factors:
        """A new dimension of this extent."""
        if extent == 1:
            return ()
        self._extent.append(extent)
        self._same_as.append(len(self._same_as))
        return (len(self._extent) - 1,)

    def extent(self, factor: int) -> int:
        return self._extent[self._root(factor)]

    def size(self, factors: Iterable[int]) -> int:
        total = 1
        for factor in factors:
            total *= self.extent(factor)
        return total

    def resolve(self, factors: Iterable[int]) -> Factors:
        """The same dimension over the factors as they stand now."""
        found: list[int] = []
        for factor in factors:
            root = self._root(factor)
            if root in self._parts:
                found.extend(self.resolve(self._parts[root]))
            else:
                found.append(root)
        return tuple(found)

    def unify(self, left: Iterable[int], right: Iterable[int]) -> None:
        """Make two dimensions of equal size one, splitting where one has the finer factors.
        Raises Refused where they do not factor."""
        a, b = list(self.resolve(left)), list(self.resolve(right))
        while a and b:
            x, y = a[-1], b[-1]
            if x == y:
                a.pop(), b.pop()
            elif self._extent[x] == self._extent[y]:
                self._same_as[y] = x
                self._extent[x] = either(self._extent[x], self._extent[y])
                a, b = list(self.resolve(a[:-1])), list(self.resolve(b[:-1]))
            else:
                large, small = (x, y) if self._extent[x] > self._extent[y] else (y, x)
                self._split(large, self._extent[small])
                a, b = list(self.resolve(a)), list(self.resolve(b))
        if a or b:
            raise Refused("factor", "two dimensions that meet have different sizes")

    def regroup(self, factors: Iterable[int], sizes: Sequence[int]) -> tuple[Factors, ...]:
        """The factors of a reshape's result, by its sizes. Raises Refused where a boundary of the
        result falls inside a factor that it does not divide."""
        rest = list(self.resolve(factors))
        dims: list[Factors] = []
        for size in reversed(sizes):
            taken: list[int] = []
            while size > 1:
                if not rest:
                    raise Refused("factor", f"reshape to {tuple(sizes)} runs out of elements")
                extent = self._extent[rest[-1]]
                if extent == 0:
                    raise Refused("empty", f"reshape to {tuple(sizes)} of no elements")
                if size % extent == 0:
                    taken.insert(0, rest.pop())
                    size //= extent
                elif extent % size == 0:
                    self._split(rest[-1], size)
                    rest = list(self.resolve(rest))
                else:
                    raise Refused(
                        "factor", f"reshape to {tuple(sizes)} cuts an axis of {extent} at {size}"
                    )
            dims.insert(0, tuple(taken))
        return tuple(dims)

    def _root(self, factor: int) -> int:
        while self._same_as[factor] != factor:
            self._same_as[factor] = self._same_as[self._same_as[factor]]
            factor = self._same_as[factor]
        return factor

    def _split(self, factor: int, inner: int) -> None:
        extent = self._extent[factor]
        if extent % inner:
            raise Refused("factor", f"an axis of {extent} does not split into parts of {inner}")
        (outer_part,), (inner_part,) = self.fresh(extent // inner), self.fresh(inner)
        self._parts[factor] = (outer_part, inner_part)
