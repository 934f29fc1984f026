"""Linear forms: where an element of a tensor lies, over factors and over tile axes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from ..graph.graph import TensorType
from ..values.values import At, Choice, Index, Load, Output, Value, Values

LinearForm = Mapping[int, int]
"""A linear form over factors: coefficient by factor id."""


class Role(Enum):
    GRID = "grid"  # program ids
    LOOP = "loop"  # walked in blocks by each program
    HELD = "held"  # whole in one tile


@dataclass(frozen=True, slots=True)
class TileAxis:
    """One axis of the tiles: adjacent factors as one index, outer to inner."""

    name: str
    role: Role
    factors: tuple[int, ...]
    extents: tuple[int, ...]
    extent: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "extent", math.prod(self.extents))


@dataclass(frozen=True, slots=True)
class Term:
    """scale * (index of tile axis `axis` // div % mod); mod 0 stands for no modulus."""

    axis: int
    div: int
    mod: int
    scale: int


@dataclass(frozen=True, slots=True)
class Affine:
    """base + sum of terms."""

    terms: tuple[Term, ...]
    base: int = 0
    axes: frozenset[int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "axes", frozenset(term.axis for term in self.terms))


@dataclass(frozen=True, slots=True)
class Access:
    """Offset in elements into a buffer of type `type`; each guard (index, limit) asks
    0 <= index < limit. at: more terms of the offset, which values give; `along`: the tile axes on
    which those depend; `near`: they are made of positions alone, as the places of the pixels that
    an enlarged image repeats, so that neighbours lie near each other."""

    offset: Affine
    guards: tuple[tuple[Affine, int], ...]
    type: TensorType
    at: tuple[At, ...] = ()
    along: frozenset[int] = frozenset()
    near: bool = False
    axes: frozenset[int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        guards = (index.axes for index, _ in self.guards)
        object.__setattr__(self, "axes", self.offset.axes.union(self.along, *guards))


def linear(factors: Sequence[int], values: Values, scale: int = 1) -> dict[int, int]:
    form: dict[int, int] = {}
    for factor in reversed(factors):
        form[factor] = scale
        scale *= values.extents[factor]
    return form


def load_form(load: Load, values: Values) -> dict[int, int]:
    form: dict[int, int] = {}
    for dim in load.dims:
        if dim.stride * dim.step:
            form.update(linear(dim.factors, values, dim.stride * dim.step))
    return form


def store_form(output: Output, values: Values) -> dict[int, int]:
    form: dict[int, int] = {}
    for factors, stride in zip(output.dims, output.type.stride, strict=True):
        form.update(linear(factors, values, stride))
    return form


def all_forms(values: Values) -> list[LinearForm]:
    forms: list[LinearForm] = [store_form(output, values) for output in values.outputs]
    for value in values.values:
        match value.kind:
            case Load(dims=dims):
                forms.append(load_form(value.kind, values))
                forms += [linear(d.factors, values) for d in dims if d.limit is not None]
            case Index(factors=factors) | Choice(factors=factors):
                forms.append(linear(factors, values))
    return forms


def affine(form: LinearForm, place: Mapping[int, tuple[int, TileAxis]], base: int = 0) -> Affine:
    """The form over tile axes: neighbouring factors whose coefficients agree share a term."""
    terms: list[Term] = []
    for position, axis in dict(place.values()).items():
        inner, open_term = 1, None
        for factor, extent in reversed(list(zip(axis.factors, axis.extents, strict=True))):
            scale = form.get(factor, 0)
            if open_term and scale == open_term.scale * (inner // open_term.div):
                mod = inner * extent // open_term.div
                open_term = Term(position, open_term.div, mod, open_term.scale)
            else:
                terms += [open_term] if open_term else []
                open_term = Term(position, inner, extent, scale) if scale else None
            inner *= extent
        terms += [open_term] if open_term else []
    whole = {i: axis.extent for i, axis in place.values()}
    return Affine(
        tuple(
            Term(t.axis, t.div, 0 if t.div * t.mod == whole[t.axis] else t.mod, t.scale)
            for t in terms
        ),
        base,
    )


def load_access(
    value: Value, load: Load, values: Values, place: Mapping[int, tuple[int, TileAxis]]
) -> Access:
    base = sum(dim.start * dim.stride for dim in load.dims)
    offset = affine(load_form(load, values), place, base)
    guards = tuple(
        (affine(linear(dim.factors, values, dim.step), place, dim.start), dim.limit)
        for dim in load.dims
        if dim.limit is not None
    )
    shape = [math.prod(values.extents[f] for f in dim.factors) for dim in load.dims]
    stride = [dim.stride * dim.step for dim in load.dims]
    shape += [a.size for a in load.at]
    stride += [a.stride for a in load.at]
    read = TensorType(tuple(shape), tuple(stride), load.dtype)
    return Access(offset, guards, read, load.at)
