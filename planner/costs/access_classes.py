"""Classes of loads and stores that cost the same with any block sizes: each is counted once.

A stencil or a recurrence in one kernel has hundreds of loads that differ in their offsets alone.
"""

from __future__ import annotations

from ..graph.sizes import ALIGNED, varies
from ..memo import by_identity
from ..nests.linear_forms import Access
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


@by_identity(64)
def alignments(nest: Nest) -> dict[int, object]:
    """For every load and store of a nest, by the id of its access, what is equal for those that are
    as wide (see `alignment.vector_width`), with any block sizes."""
    numbers = classes(nest)
    accesses = (*nest.loads.values(), *nest.stores.values())
    return {id(access): _alignment(access, numbers[id(access)]) for access in accesses}


def _alignment(access: Access, number: int) -> object:
    bases = (access.offset.base, *(form.base for form, _ in access.guards))
    if any(map(varies, bases)):
        return id(access)
    terms = tuple(form.terms for form, _ in access.guards)
    return number, terms, tuple(base % ALIGNED for base in bases)
