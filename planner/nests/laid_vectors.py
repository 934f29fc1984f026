"""Small vectors that every program reads at a stride, such as a filter's weights at one tap for
neighbouring channels: a kernel before lays each of them side by side, in the dtype of registers.

A filter of k taps lies in memory channel by channel, so that neighbouring channels' weights at one
tap are k elements apart. Each would be a load of 2 bytes and a conversion, in every thread of every
program; of a copy, a thread reads four channels at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise

from ..graph.dtypes import register_dtype
from ..graph.graph import TensorType
from ..graph.sizes import varies
from ..values.values import Load
from .linear_forms import Access, Affine, Term
from .nest import LaidVectors, Nest

_FEWEST = 16
"""Vectors of one tensor that are worth a copy: with 9 of them two convolutions of 3 x 3 taps took
7% longer and 8% less on an H100, with 25 and 49 all were faster."""

_READ_BYTES = 1 << 25
"""Bytes that all threads load beside them, from which a launch more is little."""

_WHOLE = 8
"""Elements between the starts of two vectors are a multiple: both begin on 16 bytes."""


def with_laid_vectors(nest: Nest) -> Nest:
    """The nest with loads from copies in place of such loads, if it has neighbours along an axis
    as values of their own: there each vector is read for a few elements of a thread at a time."""
    if all(output.part is None for output in nest.outputs):
        return nest
    by_input: dict[int, dict[int, Access]] = {}
    for value, access in nest.loads.items():
        kind = nest.values[value].kind
        assert isinstance(kind, Load)
        by_input.setdefault(kind.input, {})[value] = access
    found = {i: laid for i, own in by_input.items() if (laid := _laid(nest, own, by_input))}
    if not found:
        return nest
    loads = dict(nest.loads)
    for number, vectors in found.items():
        for value, access in by_input[number].items():
            loads[value] = _from_copy(access, vectors)
    return replace(nest, loads=loads, laid=found)


def _from_copy(access: Access, vectors: LaidVectors) -> Access:
    place = (access.offset.base - vectors.first) // vectors.step * vectors.stride
    offset = Affine((Term(vectors.axis, 1, 0, 1),), place)
    kind = TensorType((vectors.count, vectors.stride), (vectors.stride, 1), vectors.dtype)
    return replace(access, offset=offset, type=kind)


def _laid(
    nest: Nest, own: Mapping[int, Access], others: Mapping[int, Mapping[int, Access]]
) -> LaidVectors | None:
    """The vectors that the loads of one tensor read, if all of them do."""
    terms = {access.offset.terms for access in own.values()}
    if len(terms) != 1 or any(a.guards or a.at for a in own.values()):
        return None
    (only,) = terms
    if len(only) != 1 or (only[0].div, only[0].mod) != (1, 0) or only[0].scale < 2:
        return None
    axis, bases = only[0].axis, sorted({a.offset.base for a in own.values()})
    extent = nest.axes[axis].extent
    if len(bases) < _FEWEST or varies(extent) or any(map(varies, bases)):
        return None
    step = min(b - a for a, b in pairwise(bases))
    if any((base - bases[0]) % step for base in bases):
        return None
    count = (bases[-1] - bases[0]) // step + 1
    dense = (a for a in _beside(own, others) if Term(axis, 1, 0, 1) in a.offset.terms)
    if sum(a.type.nbytes for a in dense) < _READ_BYTES:
        return None
    stride = -(-extent // _WHOLE) * _WHOLE
    given = next(iter(own.values())).type.dtype
    return LaidVectors(
        axis=axis,
        extent=extent,
        count=count,
        first=bases[0],
        step=step,
        scale=only[0].scale,
        given=given,
        stride=stride,
        dtype=register_dtype(given),
    )


def _beside(
    own: Mapping[int, Access], others: Mapping[int, Mapping[int, Access]]
) -> Iterator[Access]:
    return (a for loads in others.values() if loads is not own for a in loads.values())
