"""The nest of a group: its tile axes, their roles, and where every operation stands.

A nest is data. The emitter writes it as Triton, the cost model counts it, `show` prints it; the
block sizes are not part of it (`config.Config` has them).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from .errors import Refusal, Refused
from .graph import Graph, TensorType
from .trace import trace
from .values import Choice, Fold, Index, Load, Output, Value, Values

Form = Mapping[int, int]
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

    @property
    def extent(self) -> int:
        return math.prod(self.extents)


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

    @property
    def axes(self) -> frozenset[int]:
        return frozenset(term.axis for term in self.terms)


@dataclass(frozen=True, slots=True)
class Access:
    """Offset in elements into a buffer of type `type`; each guard (index, limit) asks
    0 <= index < limit."""

    offset: Affine
    guards: tuple[tuple[Affine, int], ...]
    type: TensorType

    @property
    def axes(self) -> frozenset[int]:
        return self.offset.axes.union(*(index.axes for index, _ in self.guards))


@dataclass(frozen=True, slots=True)
class Step:
    """Evaluate one value here."""

    value: int


@dataclass(frozen=True, slots=True)
class Store:
    """Write output `output` here."""

    output: int


@dataclass(frozen=True, slots=True)
class Loop:
    """Walk tile axis `axis` in blocks; each carry is a fold over it, complete after the loop."""

    axis: int
    carries: tuple[int, ...]
    body: tuple[Step | Store, ...]


@dataclass(frozen=True, slots=True)
class Nest:
    """`live[v]` are the tile axes on which value v really depends; `loads`, `stores` and
    `forms` give the accesses and index expressions of values and outputs by their ids."""

    axes: tuple[TileAxis, ...]
    values: tuple[Value, ...]
    outputs: tuple[Output, ...]
    live: tuple[frozenset[int], ...]
    loads: Mapping[int, Access]
    stores: Mapping[int, Access]
    forms: Mapping[int, Affine]
    body: tuple[Step | Store | Loop, ...]

    def reduced(self, fold: Fold) -> tuple[int, ...]:
        """The tile axes a fold consumes."""
        return tuple(i for i, a in enumerate(self.axes) if set(a.factors) <= set(fold.reduced))

    def largest_tile(self, blocks: Sequence[int]) -> int:
        """Elements of the largest value, given the block of every axis."""
        return max(math.prod(blocks[a] for a in live) for live in self.live)

    def with_role(self, role: Role) -> tuple[int, ...]:
        return tuple(i for i, axis in enumerate(self.axes) if axis.role is role)

    def __str__(self) -> str:
        lines = [f"axis {a.name}: {a.extent} {a.role.value}" for a in self.axes]
        for step in self.body:
            if isinstance(step, Loop):
                lines.append(f"loop {self.axes[step.axis].name} carrying {_names(step.carries)}")
                lines += [f"  {self._line(inner)}" for inner in step.body]
            else:
                lines.append(self._line(step))
        return "\n".join(lines)

    def _line(self, step: Step | Store) -> str:
        if isinstance(step, Store):
            return f"store output {step.output} <- v{self.outputs[step.output].value}"
        value = self.values[step.value]
        over = "".join(self.axes[a].name + " " for a in sorted(self.live[step.value]))
        return f"v{value.id} = {type(value.kind).__name__.lower()} [{over.strip()}] {value.origin}"


def _names(values: Iterable[int]) -> str:
    return ", ".join(f"v{v}" for v in values)


def schedule(group: Graph, tiling: str, reduction: str, phase: int = 0) -> Nest | Refusal:
    """The nest of a group under a layout (see `Config`), or why there is none. `phase` numbers
    the kernels of a split group: each has axis names of its own."""
    try:
        return build(trace(group), tiling, reduction, phase)
    except Refused as refused:
        return refused.refusal


def build(values: Values, tiling: str, reduction: str, phase: int = 0) -> Nest:
    """Tile axes and roles, then every operation at its place. Raises Refused."""
    if any(extent == 0 for extent in values.extents.values()):
        raise Refused("empty", "a tensor of the group has no elements")
    axes = _tile_axes(values, tiling, reduction, phase)
    place = {f: (i, axis) for i, axis in enumerate(axes) for f in axis.factors}
    loads, forms = {}, {}
    for value in values.values:
        if isinstance(value.kind, Load):
            loads[value.id] = _load_access(value, value.kind, values, place)
        elif isinstance(value.kind, (Index, Choice)):
            forms[value.id] = _affine(_linear(value.kind.factors, values), place)
    stores = {
        out.index: Access(_affine(_store_form(out, values), place), (), out.type)
        for out in values.outputs
    }
    live = _live_axes(values, axes, loads, forms)
    _refuse_apart(values, live, stores, axes)
    loop = next((i for i, axis in enumerate(axes) if axis.role is Role.LOOP), None)
    body = _place(values, live, axes, loop)
    _refuse_recomputed_folds(values, live, axes)
    return Nest(axes, values.values, values.outputs, live, loads, stores, forms, body)


# --- tile axes ---------------------------------------------------------------------------------


_GRID_NAMES, _REDUCED_NAMES = "xyzuvw", "rstpqo"


def _tile_axes(values: Values, tiling: str, reduction: str, phase: int) -> tuple[TileAxis, ...]:
    forms = _all_forms(values)
    order = _order(values)
    folds = [v for v in values.values if isinstance(v.kind, Fold)]
    folded = {
        f: frozenset(v.id for v in folds if isinstance(v.kind, Fold) and f in v.kind.reduced)
        for f in values.extents
    }
    grid = [f for f in order if not folded[f]]
    looped = _looped(order, folded, values) if reduction == "loop" else []
    held = [f for f in order if folded[f] and f not in looped]
    if tiling == "flat" and (held or looped):
        raise Refused("flat", "flat tiling is for groups without a reduction")
    runs = {
        Role.GRID: _merged(grid, values, forms, folded, everything=tiling == "flat"),
        Role.LOOP: _merged(looped, values, forms, folded, everything=True),
        Role.HELD: _merged(held, values, forms, folded, everything=False),
    }
    x, r = _GRID_NAMES[phase], _REDUCED_NAMES[phase]
    axes = [_axis(f"{x}{i}", Role.GRID, run, values) for i, run in enumerate(runs[Role.GRID])]
    reduced = [(role, run) for role in (Role.LOOP, Role.HELD) for run in runs[role]]
    axes += [_axis(f"{r}{i}", role, run, values) for i, (role, run) in enumerate(reduced)]
    position = {f: i for i, f in enumerate(order)}
    return tuple(sorted(axes, key=lambda axis: position[axis.factors[-1]]))


def _looped(
    order: Sequence[int], folded: Mapping[int, frozenset[int]], values: Values
) -> list[int]:
    """The factors of the one loop: the largest set that the same folds reduce. What other folds
    reduce besides is held, so it has to be small."""
    classes: dict[frozenset[int], list[int]] = {}
    for factor in order:
        if folded[factor]:
            classes.setdefault(folded[factor], []).append(factor)
    if not classes:
        raise Refused("loop", "nothing is reduced")
    size = {c: math.prod(values.extents[f] for f in factors) for c, factors in classes.items()}
    largest = max(classes, key=lambda c: size[c])
    if any(size[c] > HELD_BESIDE_LOOP for c in classes if c != largest):
        raise Refused("loop", "reductions over different axes cannot share one loop")
    return classes[largest]


def _axis(name: str, role: Role, factors: Sequence[int], values: Values) -> TileAxis:
    return TileAxis(name, role, tuple(factors), tuple(values.extents[f] for f in factors))


def _merged(
    factors: Sequence[int],
    values: Values,
    forms: Sequence[Form],
    folded: Mapping[int, frozenset[int]],
    everything: bool,
) -> list[list[int]]:
    """Runs of factors that one index can walk: all of them, or those every access agrees on."""
    runs: list[list[int]] = []
    for factor in factors:
        if runs and (
            everything
            or (
                folded[runs[-1][-1]] == folded[factor]
                and all(
                    form.get(runs[-1][-1], 0) == form.get(factor, 0) * values.extents[factor]
                    for form in forms
                )
            )
        ):
            runs[-1].append(factor)
        else:
            runs.append([factor])
    return runs


def _order(values: Values) -> list[int]:
    """Factors outer to inner, by the strides of the largest accesses first."""
    forms = [(o.type.numel, 0, _store_form(o, values)) for o in values.outputs]
    for value in values.values:
        if isinstance(value.kind, Load):
            form = _load_form(value.kind, values)
            size = math.prod(values.extents[f] for f in form)
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


# --- linear forms over factors, and over tile axes -----------------------------------------------


def _linear(factors: Sequence[int], values: Values, scale: int = 1) -> dict[int, int]:
    form: dict[int, int] = {}
    for factor in reversed(factors):
        form[factor] = scale
        scale *= values.extents[factor]
    return form


def _load_form(load: Load, values: Values) -> dict[int, int]:
    form: dict[int, int] = {}
    for dim in load.dims:
        if dim.stride * dim.step:
            form.update(_linear(dim.factors, values, dim.stride * dim.step))
    return form


def _store_form(output: Output, values: Values) -> dict[int, int]:
    form: dict[int, int] = {}
    for factors, stride in zip(output.dims, output.type.stride, strict=True):
        form.update(_linear(factors, values, stride))
    return form


def _all_forms(values: Values) -> list[Form]:
    forms: list[Form] = [_store_form(output, values) for output in values.outputs]
    for value in values.values:
        match value.kind:
            case Load(dims=dims):
                forms.append(_load_form(value.kind, values))
                forms += [_linear(d.factors, values) for d in dims if d.limit is not None]
            case Index(factors=factors) | Choice(factors=factors):
                forms.append(_linear(factors, values))
    return forms


def _affine(form: Form, place: Mapping[int, tuple[int, TileAxis]], base: int = 0) -> Affine:
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


def _load_access(
    value: Value, load: Load, values: Values, place: Mapping[int, tuple[int, TileAxis]]
) -> Access:
    base = sum(dim.start * dim.stride for dim in load.dims)
    offset = _affine(_load_form(load, values), place, base)
    guards = tuple(
        (_affine(_linear(dim.factors, values, dim.step), place, dim.start), dim.limit)
        for dim in load.dims
        if dim.limit is not None
    )
    shape = tuple(math.prod(values.extents[f] for f in dim.factors) for dim in load.dims)
    stride = tuple(dim.stride * dim.step for dim in load.dims)
    return Access(offset, guards, TensorType(shape, stride, load.dtype))


# --- places ------------------------------------------------------------------------------------


def _live_axes(
    values: Values,
    axes: Sequence[TileAxis],
    loads: Mapping[int, Access],
    forms: Mapping[int, Affine],
) -> tuple[frozenset[int], ...]:
    live: list[frozenset[int]] = []
    for value in values.values:
        own = frozenset[int]()
        if value.id in loads:
            own = loads[value.id].axes
        elif value.id in forms:
            own = forms[value.id].axes
        own = own.union(*(live[source] for source in value.reads))
        if isinstance(value.kind, Fold):
            reduced = set(value.kind.reduced)
            own = frozenset(a for a in own if not set(axes[a].factors) <= reduced)
        live.append(own)
    return tuple(live)


def _place(
    values: Values, live: Sequence[frozenset[int]], axes: Sequence[TileAxis], loop: int | None
) -> tuple[Step | Store | Loop, ...]:
    """Straight-line work where it is first possible; streamed work once in every pass over the
    loop axis that needs it. Pass p carries the folds whose inputs p earlier passes completed."""
    folds = {
        v.id
        for v in values.values
        if loop is not None
        and isinstance(v.kind, Fold)
        and set(axes[loop].factors) <= set(v.kind.reduced)
    }
    level: list[int] = []
    for value in values.values:
        below = max((level[source] for source in value.reads), default=0)
        level.append(below + (value.id in folds))
    streamed = {v.id for v in values.values if loop is not None and loop in live[v.id]}
    body: list[Step | Store | Loop] = []
    done: set[int] = set(folds)

    def settle(targets: Iterable[int]) -> list[int]:
        """Emit what the targets need outside the loop; return what they need inside."""
        needed = _closure(values, targets, stop=folds)
        for ready in sorted(needed - streamed - done):
            done.add(ready)
            body.append(Step(ready))
        return sorted(v for v in needed if v in streamed and v not in folds)

    for index in range(max(level, default=0) + 1):
        carries = tuple(sorted(f for f in folds if level[f] == index + 1))
        stores = [o for o in values.outputs if o.value in streamed and level[o.value] == index]
        targets = [s for f in carries for s in values.values[f].reads]
        inside = settle([*targets, *(o.value for o in stores)])
        if carries or stores:
            assert loop is not None
            inner: list[Step | Store] = []
            for streamed_value in inside:
                inner.append(Step(streamed_value))
                inner += [Store(o.index) for o in stores if o.value == streamed_value]
            body.append(Loop(loop, carries, tuple(inner)))
    for output in values.outputs:
        if output.value not in streamed:
            settle([output.value])
            body.append(Store(output.index))
    return tuple(body)


def _closure(values: Values, targets: Iterable[int], stop: set[int]) -> set[int]:
    needed: set[int] = set()
    stack = list(targets)
    while stack:
        value = stack.pop()
        if value not in needed:
            needed.add(value)
            if value not in stop:
                stack.extend(values.values[value].reads)
    return needed


HELD_BESIDE_LOOP = 4096
"""Elements that reductions beside the looped one may hold whole."""

RECOMPUTED_LIMIT = 1 << 16
"""Elements of a fold that every block of an unrelated grid axis may compute again."""


def _refuse_apart(
    values: Values,
    live: Sequence[frozenset[int]],
    stores: Mapping[int, Access],
    axes: Sequence[TileAxis],
) -> None:
    """Some value must span the whole grid: were the grid the product of axes that no value has
    together, every program of the one would compute all of the other again."""
    grid = {i for i, axis in enumerate(axes) if axis.role is Role.GRID and axis.extent > 1}
    spans = [*live, *(stores[o.index].axes | live[o.value] for o in values.outputs)]
    if not any(grid <= span for span in spans):
        names = ", ".join(axes[i].name for i in sorted(grid))
        raise Refused("apart", f"no value of the group spans all grid axes {names}")


def _refuse_recomputed_folds(
    values: Values, live: Sequence[frozenset[int]], axes: Sequence[TileAxis]
) -> None:
    grid = {i for i, axis in enumerate(axes) if axis.role is Role.GRID}
    for value in values.values:
        if isinstance(value.kind, Fold) and grid - live[value.id]:
            size = math.prod(values.extents[f] for f in value.kind.reduced)
            if size > RECOMPUTED_LIMIT:
                names = ", ".join(axes[a].name for a in sorted(grid - live[value.id]))
                raise Refused(
                    "recompute", f"{value.origin} folds {size} elements again for each {names}"
                )
