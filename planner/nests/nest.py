"""The nest of a group: its tile axes, their roles, and where every operation stands.

A nest is data. The emitter writes it as Triton, the cost model counts it, `show` prints it; the
block sizes are not part of it (`config.Config` has them).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..config import Layout
from ..errors import Refusal, Refused
from ..graph.graph import Graph, TensorType
from ..graph.sizes import nominal
from ..memo import by_identity
from ..stream.masked_sums import infinite_where_masked
from ..stream.online import Correction, Proof, derive
from ..trace.trace import trace
from ..values.values import (
    Choice,
    Fold,
    Index,
    Load,
    Output,
    Scan,
    Value,
    Values,
    places,
)
from .linear_forms import (
    Access,
    Affine,
    Role,
    TileAxis,
    affine,
    linear,
    load_access,
    store_form,
)
from .mask_bounds import Limit, limits
from .placement import Carry, Evaluate, Item, NestBody, NestLoop, WriteOutput, place
from .scans import refuse_scans, refuse_turns, scans_in
from .tiling import tile_axes


@dataclass(frozen=True, slots=True)
class Derivation:
    """The proofs for the looped axes, and by origin the folds that need a sweep of their own, with
    the step that failed."""

    proofs: tuple[Proof, ...] = ()
    refusals: Mapping[str, Refusal] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LaidVectors:
    """Vectors along a tile axis that a kernel before copies, each side by side (see
    `laid_vectors`)."""

    axis: int
    extent: int
    """Elements of a vector."""
    count: int
    first: int
    """The first element of the first vector, in the tensor that has them,"""
    step: int
    """elements from there to the next vector's,"""
    scale: int
    """and from one element of a vector to the next."""
    given: str
    """The dtype of that tensor."""
    stride: int
    """Elements of the copy from one vector to the next."""
    dtype: str
    """That of the copy."""


@dataclass(frozen=True, slots=True)
class Nest:
    """`live[v]` are the tile axes on which value v really depends; `loads`, `stores` and
    `forms` give the accesses and index expressions of values and outputs by their ids;
    `corrections`, by id, those of the folds that follow a running extremum; `limits`, by looped
    axis, what masks leave of it; `laid`, by input, what loads read from copies."""

    axes: tuple[TileAxis, ...]
    values: tuple[Value, ...]
    outputs: tuple[Output, ...]
    live: tuple[frozenset[int], ...]
    loads: Mapping[int, Access]
    stores: Mapping[int, Access]
    forms: Mapping[int, Affine]
    body: NestBody
    corrections: Mapping[int, Correction]
    derived: Derivation
    limits: Mapping[int, tuple[Limit, ...]]
    laid: Mapping[int, LaidVectors] = field(default_factory=dict)
    are_chosen: bool = False
    """Whether who reads its results leaves out parts that limits leave nothing of (see
    `live_parts`)."""
    chosen: Mapping[int, int] = field(default_factory=dict)
    """By load, the condition under which the kernel before has stored what it reads."""

    def reduced(self, fold: Fold) -> tuple[int, ...]:
        """The tile axes a fold consumes."""
        own = set(fold.reduced)
        return tuple(i for i, a in enumerate(self.axes) if own.issuperset(a.factors))

    def count(self, fold: Fold) -> int:
        """The number of elements that a fold takes in for each of its results."""
        return math.prod(self.axes[axis].extent for axis in self.reduced(fold))

    def fold(self, value: int) -> Fold:
        """The kind of a value that is a fold."""
        kind = self.values[value].kind
        assert isinstance(kind, Fold)
        return kind

    def scanned(self, value: int) -> int:
        """The tile axis along which a value that is a scan goes."""
        kind = self.values[value].kind
        assert isinstance(kind, Scan)
        return next(i for i, axis in enumerate(self.axes) if axis.factors == kind.along)

    @property
    def contractions(self) -> tuple[int, ...]:
        """The values that are contractions."""
        return _contractions(self.values)

    def largest_tile(self, blocks: Sequence[int]) -> int:
        """Elements of the largest value, given the block of every axis."""
        of_axis = blocks.__getitem__
        return max([math.prod(map(of_axis, axes)) for axes in _tiles(self.live)], default=1)

    def with_role(self, role: Role) -> tuple[int, ...]:
        return tuple(i for i, axis in enumerate(self.axes) if axis.role is role)

    def walk(self) -> Iterator[tuple[Item, tuple[NestLoop, ...]]]:
        """Every item of the body but the loops themselves, and the loops around it."""
        return iter(_steps(self))

    def loops(self) -> Iterator[NestLoop]:
        """Every loop, outer before inner."""
        return _loops(self.body)

    def __str__(self) -> str:
        lines = [f"axis {a.name}: {a.extent} {a.role.value}" for a in self.axes]
        return "\n".join([*lines, *self._lines(self.body, "")])

    def _lines(self, body: NestBody, indent: str) -> Iterator[str]:
        for item in body:
            match item:
                case NestLoop(axis=axis, carries=carries, body=inner):
                    names = ", ".join(f"v{v}" for v in carries)
                    yield f"{indent}loop {self.axes[axis].name} carrying {names}"
                    yield from self._lines(inner, indent + "  ")
                case WriteOutput(output=output):
                    yield f"{indent}store output {output} <- v{self.outputs[output].value}"
                case Carry(value=value):
                    yield f"{indent}v{value} takes {self._sources(value)} in"
                case Evaluate(value=value):
                    yield indent + self._line(self.values[value])

    def _line(self, value: Value) -> str:
        over = " ".join(self.axes[a].name for a in sorted(self.live[value.id]))
        kind = type(value.kind).__name__.lower()
        if isinstance(value.kind, Fold) and value.kind.times is not None:
            kind = f"dot {self._sources(value.id)}"
        places = value.kind.at if isinstance(value.kind, Load) else ()
        at = "".join(f" at v{place.value}" for place in places)
        return f"v{value.id} = {kind} [{over}] {value.origin}{at}"

    def _sources(self, fold: int) -> str:
        kind = self.fold(fold)
        times = "" if kind.times is None else f" * v{kind.times}"
        return f"v{kind.source}{times}"


@by_identity(256)
def _tiles(live: tuple[frozenset[int], ...]) -> frozenset[frozenset[int]]:
    return frozenset(live)


@by_identity(256)
def _contractions(values: tuple[Value, ...]) -> tuple[int, ...]:
    return tuple(v.id for v in values if isinstance(v.kind, Fold) and v.kind.times is not None)


@by_identity(256)
def _steps(nest: Nest) -> tuple[tuple[Item, tuple[NestLoop, ...]], ...]:
    return tuple(_walk(nest.body, ()))


def _walk(
    body: NestBody, around: tuple[NestLoop, ...]
) -> Iterator[tuple[Item, tuple[NestLoop, ...]]]:
    for item in body:
        if isinstance(item, NestLoop):
            yield from _walk(item.body, (*around, item))
        else:
            yield item, around


def _loops(body: NestBody) -> Iterator[NestLoop]:
    for item in body:
        if isinstance(item, NestLoop):
            yield item
            yield from _loops(item.body)


def schedule(group: Graph, layout: Layout, phase: int = 0) -> Nest | Refusal:
    """The nest of a group under a layout, the split left out, or why there is none. `phase` numbers
    the kernels of a split group: each has axis names of its own."""
    try:
        return build(trace(group), layout, phase)
    except Refused as refused:
        return refused.refusal


def build(values: Values, layout: Layout, phase: int = 0, along: int | None = None) -> Nest:
    """Tile axes and roles, then every operation at its place: once for the same values, as a group
    is asked about more than once. along: a factor of the axis to loop over; None is the longest
    reduced one. Raises Refused."""
    known, asked = _built(values), (layout, phase, along)
    found = known.get(asked)
    if found is None:
        try:
            found = _build(values, layout, phase, along)
        except Refused as refused:
            found = refused.refusal
        known[asked] = found
    if isinstance(found, Refusal):
        raise found.error()
    return found


@by_identity(16)
def _built(values: Values) -> dict[tuple[Layout, int, int | None], Nest | Refusal]:
    return {}


def _build(values: Values, layout: Layout, phase: int, along: int | None) -> Nest:
    assert all(extent != 0 for extent in values.extents.values()), "the trace refuses what is empty"
    axes = tile_axes(values, layout, phase, along)
    are_parts = values.are_parts
    values, corrections, derived = _derived(values, axes)
    if not are_parts:
        values, corrections = infinite_where_masked(values, corrections)
    loops = frozenset(i for i, axis in enumerate(axes) if axis.role is Role.LOOP)
    place_of = {f: (i, axis) for i, axis in enumerate(axes) for f in axis.factors}
    loads, forms = {}, {}
    for value in values.values:
        if isinstance(value.kind, Load):
            loads[value.id] = load_access(value, value.kind, values, place_of)
        elif isinstance(value.kind, (Index, Choice)):
            forms[value.id] = affine(linear(value.kind.factors, values), place_of)
    live = _live_axes(values, axes, loads, forms)
    stores = _stores(values, place_of, live)
    refuse_scans(values, live, axes)
    loads = _placed_loads(values, loads, live)
    _refuse_apart(values, live, stores, axes)
    carried = _carried(values, axes, loops)
    stored = {index: access.axes for index, access in stores.items()}
    body = place(values, live, stored, carried, loops, corrections)
    refuse_turns(values, _loops(body))
    _refuse_recomputed_folds(values, live, axes)
    nest = Nest(
        axes,
        values.values,
        values.outputs,
        live,
        loads,
        stores,
        forms,
        body,
        corrections,
        derived,
        {
            loop.axis: limits(values, loop, place_of, live)
            for loop in body
            if isinstance(loop, NestLoop)
            and not scans_in(values, loop)
            and sum(other.axis == loop.axis for other in _loops(body)) == 1
        },
    )
    _refuse_repeated_contractions(nest)
    _refuse_weights_of_other_loops(nest)
    return nest


def _stores(
    values: Values,
    place_of: Mapping[int, tuple[int, TileAxis]],
    live: Sequence[frozenset[int]],
) -> dict[int, Access]:
    """The access of each output, whole where it is written at places that the group computes."""
    found: dict[int, Access] = {}
    for out in values.outputs:
        access = Access(affine(store_form(out, values), place_of, out.start), (), out.type)
        if at := places(values.values[out.value]):
            named = frozenset[int]().union(*(live[a.value] for a in at))
            shape, stride = ((getattr(a, n) for a in at) for n in ("size", "stride"))
            whole = TensorType(
                (*out.type.shape, *shape), (*out.type.stride, *stride), out.type.dtype
            )
            access = replace(access, type=whole, at=at, along=named)
        found[out.index] = access
    return found


def _placed_loads(
    values: Values, loads: Mapping[int, Access], live: Sequence[frozenset[int]]
) -> dict[int, Access]:
    """The accesses with the axes of the places at which they read, where the group computes those,
    and whether nothing that is loaded is in between."""
    found = dict(loads)
    behind = values.ancestors() if any(access.at for access in loads.values()) else ()
    for load, access in loads.items():
        if access.at:
            named = frozenset[int]().union(*(live[a.value] for a in access.at))
            made_of = frozenset[int]().union(*(behind[a.value] for a in access.at))
            near = not any(isinstance(values.values[v].kind, Load) for v in made_of)
            found[load] = replace(access, along=named, near=near)
    return found


def _carried(values: Values, axes: Sequence[TileAxis], loops: frozenset[int]) -> dict[int, int]:
    """The looped axis of every fold that has one."""
    found: dict[int, int] = {}
    for value in values.values:
        if isinstance(value.kind, Fold):
            own = [i for i in loops if set(axes[i].factors) <= set(value.kind.reduced)]
            if len(own) > 1:
                raise Refused("loop", f"{value.origin} reduces over two looped axes")
            if own:
                found[value.id] = own[0]
    return found


def _derived(
    values: Values, axes: Sequence[TileAxis]
) -> tuple[Values, Mapping[int, Correction], Derivation]:
    """The values as they are streamed over the looped axes, the longest first; corrections name
    values by id, so that nothing is rewritten once there are any."""
    proofs: list[Proof] = []
    refusals: dict[str, Refusal] = {}
    looped = [axis for axis in axes if axis.role is Role.LOOP]
    for axis in sorted(looped, key=lambda axis: -math.prod(map(nominal, axis.extents))):
        found = derive(values, frozenset(axis.factors))
        proofs += found.proofs
        refusals |= found.refusals
        values = found.values
        if found.corrections or any(p.rule == "welford" for p in found.proofs):
            return values, found.corrections, Derivation(tuple(proofs), refusals)
    return values, {}, Derivation(tuple(proofs), refusals)


# --- places ---


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
        if isinstance(value.kind, Scan):
            along = set(value.kind.along)
            own |= {i for i, axis in enumerate(axes) if along.issuperset(axis.factors)}
        if isinstance(value.kind, Fold):
            reduced = set(value.kind.reduced)
            own = frozenset(a for a in own if not set(axes[a].factors) <= reduced)
        live.append(own)
    return tuple(live)


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


def _refuse_repeated_contractions(nest: Nest) -> None:
    """A product that several sweeps need would be computed in each of them."""
    seen: set[int] = set()
    contractions = set(nest.contractions)
    for item, _ in nest.walk() if contractions else ():
        if isinstance(item, (Evaluate, Carry)) and item.value in contractions:
            if item.value in seen:
                name = nest.values[item.value].origin
                reasons = "; ".join(r.reason for r in nest.derived.refusals.values())
                why = f" ({reasons})" if reasons else ""
                raise Refused("recompute", f"two sweeps would compute {name}{why}")
            seen.add(item.value)


def _refuse_weights_of_other_loops(nest: Nest) -> None:
    """A shift follows an extremum under way, by the weights that the same loop has summed so far.
    Those that depend on less than the shift may be summed in a loop of their own."""
    for loop in nest.loops():
        for fold in loop.carries:
            correction = nest.corrections.get(fold)
            moving = {x for _, x in correction.shift} if correction else set()
            if moving & {*loop.carries} and nest.fold(fold).weight not in loop.carries:
                name = nest.values[fold].origin
                raise Refused("loop", f"the weights of {name} are summed in another loop")


def _refuse_recomputed_folds(
    values: Values, live: Sequence[frozenset[int]], axes: Sequence[TileAxis]
) -> None:
    grid = {i for i, axis in enumerate(axes) if axis.role is Role.GRID}
    # Weights are summed beside another fold, whatever they depend on.
    beside = {v.kind.weight for v in values.values if isinstance(v.kind, Fold)}
    for value in values.values:
        if isinstance(value.kind, Fold) and value.id not in beside and grid - live[value.id]:
            size = math.prod(nominal(values.extents[f]) for f in value.kind.reduced)
            if size > RECOMPUTED_LIMIT:
                names = ", ".join(axes[a].name for a in sorted(grid - live[value.id]))
                raise Refused(
                    "recompute", f"{value.origin} folds {size} elements again for each {names}"
                )
