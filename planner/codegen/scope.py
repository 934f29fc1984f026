"""What is known at a point of a kernel's text: the lines so far and the name of every value."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..config import Config
from ..graph.dtypes import TRITON_DTYPE, itemsize
from ..graph.graph import Ref
from ..graph.op import Op
from ..nests.linear_forms import Access
from ..nests.nest import Nest
from ..values.values import Compute, Fold, Value, ancestors
from .access import Dims, Tiles
from .body import convert
from .descriptors import coordinates, described
from .source import Buffer


class Scope:
    """Lines of a kernel, and for each value its name and the dimensions it has there."""

    def __init__(self, nest: Nest, config: Config, interpreted: bool) -> None:
        self.nest = nest
        self.config = config
        self.interpreted = interpreted
        self.tiles = Tiles.of(nest, config)
        self.names: dict[int, str] = {}
        self.raw: dict[int, str] = {}
        self.dims: dict[int, Dims] = {}
        self.dtypes = {v.id: v.dtype for v in nest.values}
        self.starts: dict[int, str] = {}
        self.descriptors: dict[Buffer, str] = {}
        self.lines: list[str] = []
        self._indent = 1
        self.dots = {c: dot for c in nest.contractions if (dot := self.tiles.dot(c)) is not None}
        self.by_ones = {v.id for v in nest.values if self.tiles.is_by_ones(v.id)}
        """Sums that are products with ones."""
        self.narrow = all(itemsize(out.type.dtype) <= 2 for out in nest.outputs)
        """Whether no output is wider than 16 bits."""
        self.ancestors = ancestors(nest.values)
        self.apart = frozenset[int]() if self.dots or interpreted else _cancelled(nest)
        """Products that must be rounded before they are subtracted."""

    def described(self, kind: str, index: int, access: Access, dims: Dims) -> str | None:
        """A descriptor and the coordinates of this block in it, as `{0}` fits in a call; None
        where the access goes by pointers."""
        if self.config.access != "descriptor":
            return None
        found = described(self.tiles, access, dims)
        if found is None:
            return None
        buffer = Buffer(kind, index, access.type.dtype, found.descriptor)
        name = self.descriptors.setdefault(buffer, f"{kind}{index}_blocks{len(self.descriptors)}")
        place = coordinates(self.tiles, found, self.starts)
        return f"{name}.{{0}}({place}{{1}})"

    def line(self, text: str, comment: str = "") -> None:
        note = f"  # {comment}" if comment else ""
        self.lines.append("    " * self._indent + text + note)

    @contextmanager
    def indented(self) -> Iterator[None]:
        self._indent += 1
        yield
        self._indent -= 1

    def bind(self, value: int, text: str, dims: Dims) -> None:
        """Write `v<id> = text`; readers find it by that name."""
        self.assign(value, f"v{value}", text, dims)

    def assign(self, value: int, name: str, text: str, dims: Dims) -> None:
        shape = self.tiles.shape(dims) if dims else "scalar"
        self.line(f"{name} = {text}", f"{self.nest.values[value].origin} {shape}")
        self.names[value], self.dims[value] = name, dims

    def cut(self, value: int, axis: int, parts: int) -> list[str]:
        """The names of equal parts of a tile along one of its dimensions, in order."""
        dims, names = self.dims[value], [self.names[value]]
        place, size = dims.index(axis), self.tiles.blocks[axis]
        order = [*(d for d in range(len(dims) + 1) if d != place), place]
        while len(names) < parts:
            size, count = size // 2, 2 * len(names)
            shape = [self.tiles.blocks[d] for d in dims]
            shape[place : place + 1] = [2, size]
            halves = [f"v{value}_{number}of{count}" for number in range(count)]
            for number, name in enumerate(names):
                pair = ", ".join(halves[2 * number : 2 * number + 2])
                apart = f"tl.permute(tl.reshape({name}, {shape}), {order})"
                self.line(f"{pair} = tl.split({apart})")
            names = halves
        return names

    def at(self, value: int, dims: Dims) -> str:
        """A value among the dimensions of its reader."""
        return self.tiles.spread(self.names[value], self.dims[value], dims)

    def places(self, access: Access, dims: Dims) -> tuple[list[str], list[str]]:
        """The terms of an offset that values give, and the conditions under which those are
        indices of the tensor."""
        terms: list[str] = []
        inside: list[str] = []
        number = self.tiles.numbers.text
        target = "int64" if self.tiles.wide else "int32"
        for at in access.at:
            text = self.at(at.value, dims)
            if at.checked:
                inside += [f"({text} >= 0)", f"({text} < {number(at.size)})"]
            text = convert(text, self.dtypes[at.value], target)
            # Along an expanded dimension too: the address needs the shape of the mask.
            terms.append(f"{text} * {number(at.stride)}" if at.stride != 1 else text)
        return terms, inside

    def union(self, values: tuple[int, ...]) -> Dims:
        return tuple(sorted({d for v in values for d in self.dims[v]}))

    def full(self, value: int, dims: Dims, dtype: str) -> str:
        """A value in `dtype` with every one of the dimensions, repeated along those it lacks."""
        text = convert(self.at(value, dims), self.dtypes[value], dtype)
        if self.dims[value] == dims:
            return text
        if not self.dims[value]:
            return f"tl.full({self.tiles.shape(dims)}, {text}, {TRITON_DTYPE[dtype]})"
        return f"tl.broadcast_to({text}, {self.tiles.shape(dims)})"


def _cancelled(nest: Nest) -> frozenset[int]:
    """Products in float32 of which a difference is taken, one side of it made of a fold, or a sum,
    both sides of it made of folds, as in the gradients of norms and softmax. These vanish where a
    row has one element, or equal ones: joined to one instruction, product and difference would
    leave the product's rounding error."""
    folded: set[int] = set()
    found: set[int] = set()
    for value in nest.values:
        kind = value.kind
        if isinstance(kind, Fold) or not folded.isdisjoint(value.reads):
            folded.add(value.id)
        made = folded.intersection(value.reads)
        op = kind.op if isinstance(kind, Compute) else None
        if (op is Op.SUB and made) or (op is Op.ADD and len(made) == len(value.reads) == 2):
            sides = [_behind(nest, v) for v in value.reads]
            found.update(v.id for v in sides if _is_product(v))
    return frozenset(found)


def _behind(nest: Nest, number: int) -> Value:
    """The value behind conversions and folds of single elements."""
    value = nest.values[number]
    kind = value.kind
    if isinstance(kind, Compute) and kind.op is Op.CONVERT:
        return _behind(nest, value.reads[0])
    if isinstance(kind, Fold) and kind.times is None and not nest.reduced(kind):
        return _behind(nest, kind.source)
    return value


def _is_product(value: Value) -> bool:
    kind = value.kind
    if not isinstance(kind, Compute) or kind.op is not Op.MUL or kind.working != "float32":
        return False
    return all(isinstance(operand, Ref) for _, operand in kind.operands)
