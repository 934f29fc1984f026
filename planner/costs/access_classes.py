"""Classes of loads and stores that cost the same with any block sizes: each is counted once.

A stencil or a recurrence in one kernel has hundreds of loads that differ in their offsets alone.
"""

from __future__ import annotations

from ..memo import by_identity
from ..nests.nest import Nest
from ..tiles.blocks import conditions


@by_identity(64)
def classes(nest: Nest) -> dict[int, int]:
    """For every load and store of a nest, by the id of its access, the number of its class."""
    known: dict[object, int] = {}
    found = {}
    for access in (*nest.loads.values(), *nest.stores.values()):
        checked = sum(conditions(each, nest.axes).count(True) for each in access.guards)
        indexed = tuple(a.checked for a in access.at)
        limits = tuple(limit for _, limit in access.guards)
        where = access.offset.terms, access.axes, access.along
        alike = (*where, access.type, indexed, checked, limits)
        found[id(access)] = known.setdefault(alike, len(known))
    return found
