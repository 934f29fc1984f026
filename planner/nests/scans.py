"""Nests that scan along one axis, held whole or walked in order by one loop: where they can be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..errors import Refused
from ..values.values import Scan, Values
from .linear_forms import Role, TileAxis
from .placement import Evaluate, NestLoop


def refuse_scans(values: Values, live: Sequence[frozenset[int]], axes: Sequence[TileAxis]) -> None:
    """A scan goes along one axis in the order of its elements; its loop is the only one around."""
    loops = {i for i, axis in enumerate(axes) if axis.role is Role.LOOP}
    for value in values.values:
        if not isinstance(value.kind, Scan):
            continue
        own = [i for i, a in enumerate(axes) if a.factors == value.kind.along]
        if not own:
            raise Refused("scan", f"{value.origin} goes along an axis that is divided")
        if own[0] in loops and len(live[value.id] & loops) > 1:
            raise Refused("scan", f"{value.origin} is inside two loops")


def refuse_turns(values: Values, loops: Iterable[NestLoop]) -> None:
    """A loop has one direction."""
    for loop in loops:
        if len({scan.reverse for scan in scans_in(values, loop)}) > 1:
            raise Refused("scan", "one loop would have to go forwards and backwards")


def scans_in(values: Values, loop: NestLoop) -> list[Scan]:
    """The scans in the body of a loop that depend on its turns."""
    steps = (values.values[i.value].kind for i in loop.body if isinstance(i, Evaluate))
    return [kind for kind in steps if isinstance(kind, Scan)]
