"""Sums along the same axes that do not need each other, reduced at once: what the warps exchange
crosses in one go, and they meet once instead of once for each."""

from __future__ import annotations

from collections.abc import Iterator

from ..graph.ops import SUM
from ..nests.placement import Body, Carry, Item, Loop, Step
from ..values.values import Fold, Value
from .scope import Scope

MOST = 4
"""Sums at once: more need more registers than meeting again costs."""


def joined(scope: Scope, body: Body) -> Iterator[tuple[Item, ...]]:
    """The items of a body in an order that is as good, sums that go together side by side. Triton's
    interpreter reduces several values one element after the other: there each goes alone."""
    rest = list(body)
    while rest:
        head = rest.pop(0)
        group, before = [head], list[Item]()
        for item in list(rest) if _is_sum(scope, head) else ():
            if len(group) < MOST and _goes_with(scope, group, item):
                needed = _needed(scope, item, rest)
                if needed is not None:
                    before += needed
                    group.append(item)
                    rest = [i for i in rest if i not in needed and i is not item]
        for item in before:
            yield (item,)
        yield tuple(group)


def may_join(scope: Scope, value: Value) -> bool:
    """Whether a value is a sum in float32 that goes with others."""
    fold = value.kind
    plain = isinstance(fold, Fold) and fold.monoid == SUM and fold.about is None
    multiplied = value.id in scope.dots or value.id in scope.by_ones
    return plain and value.dtype == "float32" and not scope.interpreted and not multiplied


def _is_sum(scope: Scope, item: Item) -> bool:
    return isinstance(item, Step) and may_join(scope, scope.nest.values[item.value])


def _goes_with(scope: Scope, group: list[Item], item: Item) -> bool:
    """Whether a sum is over tiles of the same shape and along the same axes as those of a group,
    and is computed from none of them."""
    first = group[0]
    if not isinstance(item, Step) or not isinstance(first, Step) or not _is_sum(scope, item):
        return False
    own = {i.value for i in group if isinstance(i, Step)}
    return _shape(scope, first) == _shape(scope, item) and own.isdisjoint(
        scope.ancestors[item.value]
    )


def _shape(scope: Scope, item: Step) -> object:
    nest = scope.nest
    fold = nest.fold(item.value)
    axes = nest.reduced(fold)
    live = [nest.live[v] for v in (fold.source, fold.times) if v is not None]
    return axes, scope.tiles.dims(frozenset(axes).union(*live))


def _needed(scope: Scope, item: Item, rest: list[Item]) -> list[Item] | None:
    """What of the items to come a sum is computed from; None where a loop gives some of it."""
    assert isinstance(item, Step)
    above = scope.ancestors[item.value] - {item.value}
    found: list[Item] = []
    for other in rest:
        match other:
            case Step(value=value) if value in above:
                found.append(other)
            case Loop():
                inner = {
                    i.value for i, _ in scope.nest.walk_in(other) if isinstance(i, (Step, Carry))
                }
                if not above.isdisjoint({*inner, *other.carries}):
                    return None
    return found
