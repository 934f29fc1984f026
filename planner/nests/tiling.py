"""The tile axes of a nest: which factors one index walks together, and the role of each axis."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..config import Layout
from ..errors import Refused
from ..graph.sizes import nominal
from ..stream.split_reduction import HELD_ROW
from ..values.values import Fold, Index, Load, Output, Scan, Values
from .linear_forms import LinearForm, Role, TileAxis, all_forms, load_form, store_form

HELD_BESIDE_LOOP = 4096
"""Elements that reductions beside the looped one may hold whole."""

HELD_RESULT = 512
"""Elements of a result axis held whole so that a contraction before it is not done again."""

REPEATS = (2, 4, 8)
"""Neighbours along an axis that may have one element of an input, which is loaded once for them."""

_GRID_NAMES, _REDUCED_NAMES = "xyzuvw", "rstpqo"


@dataclass(frozen=True, slots=True)
class _Roles:
    """The factors of each role, outer to inner; every class of `looped` becomes one loop."""

    grid: tuple[int, ...]
    looped: tuple[tuple[int, ...], ...]
    held: tuple[int, ...]


def tile_axes(
    values: Values, layout: Layout, phase: int, along: int | None = None
) -> tuple[TileAxis, ...]:
    """The axes of a nest under a layout. along: a factor of the one axis to loop
    over. Raises Refused where it has none."""
    forms = all_forms(values)
    order = _order(values)
    folded = _folded(values)
    roles = _roles(values, order, folded, layout, along)
    if layout.is_flat and (roles.held or roles.looped):
        raise Refused("flat", "flat tiling is for groups without a reduction")

    def merged(factors: Sequence[int], everything: bool = False) -> list[list[int]]:
        return _merged(factors, values, forms, folded, everything)

    contracted = _contracted(values)
    x, r = _GRID_NAMES[phase], _REDUCED_NAMES[phase]
    runs = _sides(roles.grid, values) if not layout.is_flat else []
    rest = [f for f in roles.grid if not any(f in run for run in runs)]
    runs += merged(rest, everything=layout.is_flat)
    place_of = {f: i for i, f in enumerate(order)}
    runs.sort(key=lambda run: place_of[run[-1]])
    axes = [_axis(f"{x}{i}", Role.GRID, run, values) for i, run in enumerate(runs)]
    reduced = [(Role.LOOP, list(run)) for run in roles.looped]
    for one in _by_class(roles.held, folded):
        # A dot sums over one axis.
        whole = bool(folded[one[0]] & contracted)
        reduced += [(Role.HELD, run) for run in merged(one, everything=whole)]
    axes += [_axis(f"{r}{i}", role, run, values) for i, (role, run) in enumerate(reduced)]

    crossed = _crossed(values, folded, contracted)

    def place(axis: TileAxis) -> tuple[bool, int]:
        # Tensor cores spread the first dimension of a product over warps and keep most of the
        # second in one thread: that is the one to reduce.
        last = bool(contracted) and axis.role is not Role.GRID and axis.factors[-1] not in crossed
        return last, place_of[axis.factors[-1]]

    return tuple(sorted(axes, key=place))


def _crossed(
    values: Values, folded: Mapping[int, frozenset[int]], contracted: frozenset[int]
) -> set[int]:
    """Factors that a sum beside the products reduces across memory, of a tile that is stored as
    well: as it lies in memory, so its rows are its first dimension."""
    forms = [store_form(output, values) for output in values.outputs]
    across = {f for form in forms for f, stride in form.items() if stride != 1}
    return {f for f in across if folded[f] - contracted}


def _sides(grid: Sequence[int], values: Values) -> list[list[int]]:
    """Axes of the results of products that one index walks although a store or another access
    does not agree: factors of only one operand, side by side in it. Tiles are as tall as that
    operand allows; the others recover the parts by division."""
    products = [values.values[fold].reads for fold in sorted(_contracted(values))]
    if not products:
        return []
    depends, ancestors = values.dependence(), values.ancestors()
    operands = dict.fromkeys(source for pair in products for source in pair)
    # Masks bound loops by comparing positions, which they can no more once those share an index.
    positions = {f for v in values.values if isinstance(v.kind, Index) for f in v.kind.factors}
    runs: list[list[int]] = []
    for load in operands:
        kind = values.values[load].kind
        if not isinstance(kind, Load):
            continue
        form = load_form(kind, values)
        # What is computed from this operand shares its factors, but not what it is multiplied by.
        beside = {source for pair in products if load in pair for source in pair} - {load}
        others = [depends[o] for o in operands if load not in ancestors[o] or o in beside]
        shared = positions.union(*others)
        own = [f for f in grid if form.get(f) and f not in shared]
        for factor in sorted(own, key=lambda f: -abs(form[f])):
            last = runs[-1][-1] if runs and runs[-1][-1] in own else None
            if last is not None and form[last] == form[factor] * values.extents[factor]:
                runs[-1].append(factor)
            else:
                runs.append([factor])
    return [run for run in runs if len(run) > 1]


def _roles(
    values: Values,
    order: Sequence[int],
    folded: Mapping[int, frozenset[int]],
    layout: Layout,
    along: int | None,
) -> _Roles:
    kept = _kept_whole(values)
    free = [f for f in order if not folded[f]]
    grid = tuple(f for f in free if f not in kept)
    classes = _by_class([f for f in order if folded[f]], folded)
    if layout.holds:
        looped: list[tuple[int, ...]] = []
    elif not classes:
        raise Refused("loop", "nothing is reduced")
    elif layout.is_nested:
        if len(classes) == 1:
            raise Refused("loop", "there is only one axis to loop over")
        looped = classes
    else:
        looped = [max(classes, key=lambda c: (along in c, _size(c, values)))]
        most = HELD_BESIDE_LOOP if along is None else HELD_ROW
        if any(_size(c, values) > most for c in classes if c not in looped):
            raise Refused("loop", "reductions over different axes cannot share one loop")
    walked = {f for one in looped for f in one}
    held = tuple(f for f in order if (folded[f] or f in kept) and f not in walked)
    return _Roles(grid, tuple(looped), held)


def _folded(values: Values) -> dict[int, frozenset[int]]:
    """By factor, the folds that reduce it and the scans that go along it."""
    over = {v.id: v.kind.reduced for v in values.values if isinstance(v.kind, Fold)}
    over |= {v.id: v.kind.along for v in values.values if isinstance(v.kind, Scan)}
    return {f: frozenset(v for v, own in over.items() if f in own) for f in values.extents}


def _contracted(values: Values) -> frozenset[int]:
    return frozenset(
        v.id for v in values.values if isinstance(v.kind, Fold) and v.kind.times is not None
    )


def _by_class(
    factors: Iterable[int], folded: Mapping[int, frozenset[int]]
) -> list[tuple[int, ...]]:
    """Factors that the same folds reduce, together."""
    classes: dict[frozenset[int], list[int]] = {}
    for factor in factors:
        classes.setdefault(folded[factor], []).append(factor)
    return [tuple(each) for each in classes.values()]


def _kept_whole(values: Values) -> frozenset[int]:
    """Result axes over which a contraction before would be repeated, were they cut into blocks:
    the last axis of `softmax(q @ k.T) @ v`. Raises Refused where they are too long to hold."""
    contracted = _contracted(values)
    if not contracted:
        return frozenset()
    depends, reads = values.dependence(), values.ancestors()
    kept: set[int] = set()
    for fold in contracted:
        for value in values.values:
            if fold in reads[value.id]:
                kept |= depends[value.id] - depends[fold] - _reduced(values, fold)
    if _size(kept, values) > HELD_RESULT:
        raise Refused("recompute", "a matrix product would be repeated in every block of an axis")
    return frozenset(kept)


def _reduced(values: Values, fold: int) -> frozenset[int]:
    kind = values.values[fold].kind
    assert isinstance(kind, Fold)
    return frozenset(kind.reduced)


def _size(factors: Iterable[int], values: Values) -> int:
    return math.prod(nominal(values.extents[f]) for f in factors)


def _axis(name: str, role: Role, factors: Sequence[int], values: Values) -> TileAxis:
    return TileAxis(name, role, tuple(factors), tuple(values.extents[f] for f in factors))


def _merged(
    factors: Sequence[int],
    values: Values,
    forms: Sequence[LinearForm],
    folded: Mapping[int, frozenset[int]],
    everything: bool,
) -> list[list[int]]:
    """Runs of factors that one index can walk: all of them, or those every access agrees on. Where
    neighbours along an axis are values of their own, some may read each element for a few
    neighbours in a row, as of an image whose channels are repeated."""
    apart = any(output.part is not None for output in values.outputs)
    stored = [store_form(output, values) for output in values.outputs if apart]

    def agrees(form: LinearForm, outer: int, factor: int) -> bool:
        extent, step = values.extents[factor], form.get(factor, 0)
        if form.get(outer, 0) == step * extent:
            return True
        few = apart and not step and extent in REPEATS
        return few and all(own.get(factor) == 1 for own in stored)

    runs: list[list[int]] = []
    for factor in factors:
        if runs and (
            everything
            or (
                folded[runs[-1][-1]] == folded[factor]
                and all(agrees(form, runs[-1][-1], factor) for form in forms)
            )
        ):
            runs[-1].append(factor)
        else:
            runs.append([factor])
    return runs


def _elements(output: Output) -> int:
    return math.prod(map(nominal, output.type.shape))


def _order(values: Values) -> list[int]:
    """Factors outer to inner, by the strides of the largest accesses first."""
    forms = [(_elements(o), 0, store_form(o, values)) for o in values.outputs]
    for value in values.values:
        if isinstance(value.kind, Load):
            form = load_form(value.kind, values)
            size = _size(form, values)
            forms.append((size, 1, form))
    order: list[int] = []
    for _, _, form in sorted(forms, key=lambda item: (-item[0], item[1])):
        place = len(order)
        for factor in sorted(form, key=lambda f: (abs(form[f]), values.extents[f])):
            if factor in order:
                place = order.index(factor)
            else:
                order.insert(place, factor)
    order[:0] = [f for f in values.extents if f not in order]
    return order
