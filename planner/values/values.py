"""The values of a group with its views gone: what is loaded, computed, folded and stored, each
over the factors of one iteration space.

Slices, selects and concatenations move up to the loads: a *window* says at which index of its
source a value is read, so that `cat(-x[64:], x[:64])` becomes two guarded loads of `x` and a
choice. A value read through two different windows is computed for each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..graph.dtypes import BOUNDS, FLOATS, INDICES
from ..graph.graph import Arg, Ref, TensorType
from ..graph.op import PREDICATES, Accuracy, Op
from ..graph.ops import Monoid
from ..graph.texts import CostClass, cost_of
from .axes import Factors

Dims = tuple[Factors, ...]
Number = bool | int | float


@dataclass(frozen=True, slots=True)
class Window:
    """Index i of a dimension stands for index start + step * i of the source's dimension."""

    start: int
    step: int
    size: int

    def inside(self, outer: Window | None) -> Window:
        """The window onto the source for a reader that sees this one through `outer`."""
        if outer is None:
            return self
        return Window(self.start + self.step * outer.start, self.step * outer.step, outer.size)

    def is_whole(self, size: int) -> bool:
        return (self.start, self.step, self.size) == (0, 1, size)


Windows = tuple[Window | None, ...]


@dataclass(frozen=True, slots=True)
class LoadDim:
    """One dimension of a load: element stride of the tensor, index start + step * factors; where
    `limit` is given the index may fall outside [0, limit) and the load is guarded."""

    factors: Factors
    stride: int
    start: int = 0
    step: int = 1
    limit: int | None = None

    def over(self, factors: Factors) -> LoadDim:
        """The same over other factors."""
        if factors is self.factors:
            return self
        return LoadDim(factors, self.stride, self.start, self.step, self.limit)


@dataclass(frozen=True, slots=True)
class At:
    """A dimension of a load along which a value is the index: element stride and size of the
    tensor there. checked: the value may lie outside [0, size), where nothing is read."""

    value: int
    stride: int
    size: int
    checked: bool = True


@dataclass(frozen=True, slots=True)
class Load:
    input: int
    dims: tuple[LoadDim, ...]
    dtype: str
    at: tuple[At, ...] = ()


@dataclass(frozen=True, slots=True)
class Compute:
    """An operation on named operands: a value id wrapped in Ref, a number, None, or a dtype.
    `working` is the dtype that operands are converted to, None where they come as they are;
    `result` is the dtype that the operation yields. Made by `compute` and `conversion`."""

    op: Op
    operands: tuple[tuple[str, Arg], ...]
    working: str | None
    result: str
    accuracy: Accuracy = Accuracy.EXACT

    @property
    def cost(self) -> CostClass:
        return cost_of(self.op, self.accuracy)


def compute(
    op: Op,
    working: str | None,
    accuracy: Accuracy = Accuracy.EXACT,
    result: str = "",
    /,
    **operands: Arg,
) -> Compute:
    """An operation in a register dtype. result: where operands come as they are."""
    yields = "bool" if op in PREDICATES else working or result
    return Compute(op, tuple(operands.items()), working, yields, accuracy)


def place(value: Value, at: Sequence[At]) -> Compute:
    """A value that is stored where others name places."""
    named: dict[str, Arg] = {"self": Ref(value.id)}
    for number, one in enumerate(at):
        named |= {f"at{number}": Ref(one.value), f"stride{number}": one.stride}
        named[f"size{number}"] = one.size
    return compute(Op.PLACE, None, Accuracy.EXACT, value.dtype, **named)


def places(value: Value) -> tuple[At, ...]:
    """The places at which a value is stored, besides those of its dimensions."""
    if not isinstance(value.kind, Compute) or value.kind.op is not Op.PLACE:
        return ()
    named = dict(value.kind.operands)
    found = []
    for number in range(len(named) // 3):
        one, stride, size = (named[f"{part}{number}"] for part in ("at", "stride", "size"))
        assert isinstance(one, Ref)
        assert isinstance(stride, int)
        assert isinstance(size, int)
        found.append(At(one.node, stride, size))
    return tuple(found)


def conversion(value: Value, target: str) -> Compute:
    """The value in another register dtype."""
    op, source = Op.RECAST, value.dtype
    if source in (target, "bool") or target in FLOATS:
        op = Op.CONVERT
    elif target in INDICES:
        op = Op.CONVERT if source in BOUNDS else Op.TRUNCATE
    return compute(op, None, Accuracy.EXACT, source, self=Ref(value.id))


@dataclass(frozen=True, slots=True)
class Fold:
    """`source` folded over `reduced`; divided by their extent when `mean`.

    With `times` it is a contraction: the sum of the products of the two, each of dtype `operand`;
    `precision` is that of float32 products: "ieee" or "tf32". unrounded: where no tensor core
    multiplies, factors that registers have in float32 need not be rounded to `operand`.

    With `about`, the fold that sums or averages `source` over `reduced`, it is the sum of the
    squared distances of `source` from its mean.

    With `weight`, the fold that sums the weights w where `source` is w * (v + x): by it the sum
    follows an extremum x that is under way (see `stream/online.py`)."""

    monoid: Monoid
    source: int
    reduced: Factors
    mean: bool = False
    times: int | None = None
    operand: str = ""
    precision: str = "ieee"
    unrounded: bool = False
    about: int | None = None
    weight: int | None = None


@dataclass(frozen=True, slots=True)
class Scan:
    """Each element of `source` combined with all before it along the factors, outer to inner;
    with all after it when `reverse`.

    With `combine`, the text of a graph of 0-dimensional tensors, several values are scanned
    together: it takes an element of each of `sources`, then a later one of each, and gives what
    they come to. This is the scan's result for `source`, which is `sources[item]`."""

    monoid: Monoid
    source: int
    along: Factors
    reverse: bool = False
    sources: tuple[int, ...] = ()
    item: int = 0
    combine: str = ""


@dataclass(frozen=True, slots=True)
class Index:
    """start + step * (index along factors)."""

    factors: Factors
    start: int
    step: int


@dataclass(frozen=True, slots=True)
class Literal:
    number: Number


@dataclass(frozen=True, slots=True)
class Choice:
    """pieces (value, low, high): that value where low <= index along `factors` < high."""

    factors: Factors
    pieces: tuple[tuple[int, int, int], ...]


ValueKind = Load | Compute | Fold | Scan | Index | Literal | Choice


@dataclass(frozen=True, slots=True)
class Value:
    """`dtype` is what it is in registers: 16-bit floats live as float32. `origin` names the
    node of the user's graph. `axes` are the factors it varies over or is shaped by. `reads` are
    the values of its operands."""

    id: int
    kind: ValueKind
    dims: Dims
    dtype: str
    origin: str
    reads: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "reads", tuple(dict.fromkeys(_operands(self.kind))))

    @property
    def axes(self) -> frozenset[int]:
        return frozenset(f for dim in self.dims for f in dim)


def written(kind: ValueKind) -> tuple[object, ...]:
    """The numbers in a kind as they are written, by which kinds differ that Python calls equal: 0.0
    equals -0.0 there, and a number that varies one that does not."""
    match kind:
        case Compute(operands=operands):
            numbers = [a for _, a in operands if not isinstance(a, Ref)]
        case Literal(number=number):
            numbers = [number]
        case _:
            return ()
    return tuple((repr(n), getattr(n, "probes", None)) for n in numbers)


def _operands(kind: ValueKind) -> Iterable[int]:
    match kind:
        case Compute(operands=operands):
            return (a.node for _, a in operands if isinstance(a, Ref))
        case Fold(source=source, times=times, about=about, weight=weight):
            return (v for v in (source, times, about, weight) if v is not None)
        case Scan(source=source, sources=sources):
            return sources or (source,)
        case Choice(pieces=pieces):
            return (piece for piece, _, _ in pieces)
        case Load(at=at):
            return (a.value for a in at)
    return ()


def mapped(
    kind: ValueKind,
    value: Callable[[int], int],
    factors: Callable[[Factors], Factors] = lambda own: own,
) -> ValueKind:
    """The kind with other values for those it reads, and other factors for its own."""
    match kind:
        case Compute(op, operands, working, result, accuracy):
            new = tuple((n, Ref(value(a.node)) if isinstance(a, Ref) else a) for n, a in operands)
            return Compute(op, new, working, result, accuracy)
        case Load(source, dims, dtype, at):
            moved = tuple(d.over(factors(d.factors)) for d in dims)
            return Load(source, moved, dtype, tuple(replace(a, value=value(a.value)) for a in at))
        case Fold(source=source, times=times, about=about, weight=weight):
            return replace(
                kind,
                source=value(source),
                reduced=factors(kind.reduced),
                times=None if times is None else value(times),
                about=None if about is None else value(about),
                weight=None if weight is None else value(weight),
            )
        case Scan(source=source, sources=sources):
            own, every = value(source), tuple(map(value, sources))
            return replace(kind, source=own, sources=every, along=factors(kind.along))
        case Index():
            return replace(kind, factors=factors(kind.factors))
        case Choice(pieces=pieces):
            chosen = tuple((value(v), low, high) for v, low, high in pieces)
            return replace(kind, factors=factors(kind.factors), pieces=chosen)
    return kind


@dataclass(frozen=True, slots=True)
class Output:
    """A store: the value's element at `dims` goes to the output's own strides. Several stores may
    fill one result: `part` is then that result, and `start` the element at which its own begin."""

    index: int
    value: int
    dims: Dims
    type: TensorType
    part: int | None = None
    start: int = 0

    @property
    def result(self) -> int:
        """The result that is written."""
        return self.index if self.part is None else self.part


@dataclass(frozen=True, slots=True)
class Values:
    values: tuple[Value, ...]
    outputs: tuple[Output, ...]
    extents: Mapping[int, int]
    are_parts: bool = False
    """Whether the outputs are folds of parts of a loop, which another kernel puts together."""

    def size(self, factors: Factors) -> int:
        """Elements along factors."""
        return math.prod(self.extents[f] for f in factors)

    def dependence(self) -> tuple[frozenset[int], ...]:
        """For each value the factors on which it really depends."""
        found: list[frozenset[int]] = []
        for value in self.values:
            found.append(depends(value, found))
        return tuple(found)

    def ancestors(self) -> tuple[frozenset[int], ...]:
        """For each value all those that it is computed from, itself included."""
        return ancestors(self.values)


def depends(
    value: Value, known: Sequence[frozenset[int]] | Mapping[int, frozenset[int]]
) -> frozenset[int]:
    """The factors on which a value really depends; known: those of what it reads."""
    own: set[int] = set()
    match value.kind:
        case Load(dims=dims):
            moving = (d for d in dims if d.stride * d.step or d.limit is not None)
            own.update(f for dim in moving for f in dim.factors)
        case Index(factors=factors) | Choice(factors=factors):
            own.update(factors)
        case Scan(along=along):
            own.update(along)
    own.update(*(known[read] for read in value.reads))
    if isinstance(value.kind, Fold):
        own.difference_update(value.kind.reduced)
    return frozenset(own)


def ancestors(values: Sequence[Value]) -> tuple[frozenset[int], ...]:
    """For each value, numbered as it stands, all those that it is computed from and itself."""
    found: list[frozenset[int]] = []
    for value in values:
        found.append(frozenset({value.id}).union(*(found[r] for r in value.reads)))
    return tuple(found)
