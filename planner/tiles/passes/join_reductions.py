"""Sums along the same axes that do not need each other, reduced at once: what the warps exchange
crosses in one go, and they meet once instead of once for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...graph.ops import SUM
from ...memo import by_identity
from ...nests.nest import Nest
from ...values.values import ancestors
from ..blocks import Blocks
from ..instructions import (
    NO_VALUE,
    Body,
    EndLoads,
    EpilogueSubtiles,
    Instruction,
    Reduce,
    RowEnds,
    TileLoop,
    TileReduction,
    TileRepeat,
    TileStore,
    Welford,
)
from ..program import TileProgram, walk

MOST = 4
"""Sums at once: more need more registers than meeting again costs."""


def join_reductions(program: TileProgram) -> TileProgram:
    """Sums that go together become one `Reduce`, and what they are computed from goes before it.
    The lanes of a loop's states are combined likewise."""
    sums = [v for v, each in program.reductions.items() if may_join(program.nest, each)]
    if not sums and not any(isinstance(each, TileLoop) for each in program.body):
        return program
    joiner = _Joiner(program.nest, ancestors_of(program.nest))
    return replace(program, body=joiner.body(program.body, program.blocks))


@by_identity(64)
def ancestors_of(nest: Nest) -> tuple[frozenset[int], ...]:
    return ancestors(nest.values)


def may_join(nest: Nest, each: TileReduction) -> bool:
    """Whether it is a sum in float32 that goes with others."""
    is_plain = isinstance(each, Reduce) and nest.fold(each.value).monoid == SUM
    return is_plain and nest.values[each.value].dtype == "float32"


class _Joiner:
    def __init__(self, nest: Nest, above: Sequence[frozenset[int]]) -> None:
        self.nest = nest
        self.above = above

    def body(self, body: Body, blocks: Blocks) -> Body:
        found: list[Instruction] = []
        rest = list(body)
        while rest:
            head = rest.pop(0)
            if isinstance(head, Reduce) and self._is_sum(head):
                found += self._joined(head, rest, blocks)
            elif isinstance(head, TileLoop):
                found.append(self._loop(head, head.blocks or blocks))
            elif isinstance(head, EpilogueSubtiles):
                bodies = tuple(self.body(part, head.blocks) for part in head.bodies)
                found.append(replace(head, bodies=bodies))
            else:
                found.append(head)
        return tuple(found)

    def _loop(self, loop: TileLoop, blocks: Blocks) -> TileLoop:
        combined = self._combined(loop, blocks) if loop.by_lane else ()
        return replace(loop, body=self.body(loop.body, blocks), combined=combined)

    def _is_sum(self, each: Instruction) -> bool:
        return isinstance(each, Reduce) and not each.carried and may_join(self.nest, each)

    def _joined(self, head: Reduce, rest: list[Instruction], blocks: Blocks) -> list[Instruction]:
        """A sum with those of the instructions to come that go with it, behind what these are
        computed from. What is taken leaves `rest`."""
        group, before = [head.value], list[Instruction]()
        for each in list(rest):
            if len(group) == MOST:
                break
            if not isinstance(each, Reduce) or not self._is_sum(each):
                continue
            alike = self._shape(head.value, blocks) == self._shape(each.value, blocks)
            if not alike or not self.above[each.value].isdisjoint(group):
                continue
            needed = self._needed(each.value, rest)
            if needed is not None:
                before += needed
                group.append(each.value)
                taken = {id(one) for one in (*needed, each)}
                rest[:] = [one for one in rest if id(one) not in taken]
        return [*before, replace(head, joined=tuple(group[1:])) if group[1:] else head]

    def _shape(self, value: int, blocks: Blocks) -> object:
        nest = self.nest
        fold = nest.fold(value)
        axes = nest.reduced(fold)
        live = [nest.live[v] for v in (fold.source, fold.times) if v is not None]
        return axes, blocks.dims(frozenset(axes).union(*live))

    def _needed(self, value: int, rest: Sequence[Instruction]) -> list[Instruction] | None:
        """What of the instructions to come a sum is computed from; None where a loop gives some
        of it, or the loop around takes some of it in."""
        above = self.above[value] - {value}
        found: list[Instruction] = []
        for other in rest:
            match other:
                case TileStore() | TileRepeat() | EndLoads() | RowEnds() | EpilogueSubtiles():
                    pass
                case TileLoop():
                    if not above.isdisjoint(_values(other)):
                        return None
                case Reduce(carried=True) | Welford(carried=True):
                    if other.value in above:
                        return None
                case _:
                    if other.value in above:
                        found.append(other)
        return found

    def _combined(self, loop: TileLoop, blocks: Blocks) -> tuple[tuple[int, ...], ...]:
        """The states of a loop in the order in which their lanes are combined: others than sums
        alone, for what comes after is corrected by them."""
        found: list[tuple[int, ...]] = []
        sums: list[int] = []
        states = {i.value: i for i in loop.body if isinstance(i, (Reduce, Welford)) and i.carried}
        for value in loop.carries:
            if may_join(self.nest, states[value]):
                sums.append(value)
                continue
            found += [*self._in_groups(sums, blocks), (value,)]
            sums = []
        return (*found, *self._in_groups(sums, blocks))

    def _in_groups(self, sums: Sequence[int], blocks: Blocks) -> list[tuple[int, ...]]:
        """A few states of one shape at once."""
        found: list[tuple[int, ...]] = []
        left = list(sums)
        while left:
            shape = self._shape(left[0], blocks)
            alike = [value for value in left if self._shape(value, blocks) == shape]
            found.append(tuple(alike[:MOST]))
            left = [value for value in left if value not in found[-1]]
        return found


def _values(loop: TileLoop) -> set[int]:
    """All that a loop gives."""
    inside = (each for each, _ in walk(loop.body))
    return {
        *loop.carries,
        *(i.value for i in inside if not isinstance(i, NO_VALUE)),
    }
