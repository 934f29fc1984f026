"""Drops values that no result depends on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .values import Output, Value, mapped


def without_unread(
    values: Sequence[Value], stores: Sequence[Output]
) -> tuple[list[Value], tuple[Output, ...]]:
    """The values that a result is made of: of a function and 1 that became one function, the first
    is read no more."""
    read = {o.value for o in stores}
    for value in reversed(values):
        if value.id in read:
            read.update(value.reads)
    if len(read) == len(values):
        return list(values), tuple(stores)
    renamed = {old: new for new, old in enumerate(sorted(read))}
    kept = [
        Value(renamed[v.id], mapped(v.kind, renamed.__getitem__), v.dims, v.dtype, v.origin)
        for v in values
        if v.id in read
    ]
    return kept, tuple(replace(o, value=renamed[o.value]) for o in stores)
