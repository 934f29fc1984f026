"""The scope at a point of a kernel's text: the lines so far and the name of every value."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from ..graph.dtypes import FLOAT8, TRITON_DTYPE
from ..nests.linear_forms import Access
from ..tiles.blocks import Blocks, TileDims
from ..tiles.descriptors import Described
from ..tiles.program import TileProgram
from ..values.values import Value
from .body import convert
from .numbers import Numbers
from .source import Buffer
from .text import Text


def zero(dtype: str) -> str:
    """The number that a masked load of this type gives where nothing is read. Triton makes no
    float8 of an integer."""
    return "0.0" if dtype in FLOAT8 else "0"


class Scope:
    """Lines of a kernel, and for each value its name and the dimensions it has there."""

    def __init__(self, program: TileProgram) -> None:
        self.program = program
        self.nest = program.nest
        self.text = Text(program.blocks, Numbers())
        self.names: dict[int, str] = {}
        self.raw: dict[int, str] = {}
        self.dims: dict[int, TileDims] = {}
        self.beside: dict[int, str] = {}
        """The names of values at the ends of rows, where those have names of their own."""
        self._suffix = ""
        """Of the names that are given now."""
        self.dtypes = {v.id: v.dtype for v in self.nest.values}
        self.starts: dict[int, str] = {}
        self.descriptors: dict[Buffer, str] = {}
        self.functions: dict[str, str] = {}
        """By name those that the kernel calls and no other has."""
        self.lines: list[str] = []
        self._indent = 1

    @property
    def blocks(self) -> Blocks:
        """The blocks at this point of the text."""
        return self.text.blocks

    @property
    def numbers(self) -> Numbers:
        return self.text.numbers

    # --- what an interpreter may write otherwise ---

    def evaluated(self, value: Value, text: str, dims: TileDims) -> str:
        """The expression of a computed value."""
        return text

    def loaded(self, text: str, source: str, target: str) -> str:
        """A loaded value, in the dtype of registers."""
        return convert(text, source, target)

    def converted(self, text: str, source: str, target: str, dims: TileDims) -> str:
        """A computed value, in the dtype of registers."""
        bytes_to_floats = source in ("int8", "uint8") and target == "float32"
        if bytes_to_floats and self.blocks.fills_words(dims):
            return f"from_{source}({text})"
        return convert(text, source, target)

    def stored(self, text: str, source: str, target: str) -> str:
        """A value on its way to an output of dtype `target`."""
        return convert(text, source, target)

    def operand(self, text: str, source: str, target: str) -> str:
        """A computed value as an operand of an mma of dtype `target`."""
        return convert(text, source, target)

    def multiplied(self, dtype: str) -> str:
        """The dtype in which an mma takes operands of a dtype."""
        return dtype

    # --- lines ---

    def described(self, kind: str, index: int, access: Access, via: Described) -> str:
        """A descriptor and the coordinates of this block in it, as `{0}` fits in a call."""
        buffer = Buffer(kind, index, access.type.dtype, via.descriptor)
        name = self.descriptors.setdefault(buffer, f"{kind}{index}_blocks{len(self.descriptors)}")
        return f"{name}.{{0}}({self.text.coordinates(via, self.starts)}{{1}})"

    def line(self, text: str, comment: str = "") -> None:
        note = f"  # {comment}" if comment else ""
        self.lines.append("    " * self._indent + text + note)

    @contextmanager
    def indented(self) -> Iterator[None]:
        self._indent += 1
        yield
        self._indent -= 1

    @contextmanager
    def at_ends(self, axis: int) -> Iterator[None]:
        """With names of their own for all that is computed, and for what lies along the axis."""
        names, dims, text = self.names, self.dims, self.text
        along = {v: name for v, name in self.beside.items() if axis in self.nest.live[v]}
        self.names, self.dims = names | along, dict(dims)
        self.text, self._suffix = replace(text, ends=axis), "_end"
        yield
        self.beside |= {v: name for v, name in self.names.items() if name != names.get(v)}
        self.names, self.dims, self.text, self._suffix = names, dims, text, ""

    @contextmanager
    def within(self, blocks: Blocks | None) -> Iterator[None]:
        """With other blocks; None leaves them."""
        before = self.text
        self.text = Text(blocks, before.numbers) if blocks is not None else before
        yield
        self.text = before

    def bind(self, value: int, text: str, dims: TileDims) -> None:
        """Write `v<id> = text`; readers find it by that name."""
        self.assign(value, f"v{value}{self._suffix}", text, dims)

    def assign(self, value: int, name: str, text: str, dims: TileDims) -> None:
        shape = self.text.shape(dims) if dims else "scalar"
        self.line(f"{name} = {text}", f"{self.nest.values[value].origin} {shape}")
        self.names[value], self.dims[value] = name, dims

    def cut(self, value: int, axis: int, parts: int) -> list[str]:
        """The names of equal parts of a tile along one of its dimensions, in order."""
        dims, names = self.dims[value], [self.names[value]]
        place, size = dims.index(axis), self.blocks.sizes[axis]
        order = [*(d for d in range(len(dims) + 1) if d != place), place]
        while len(names) < parts:
            size, count = size // 2, 2 * len(names)
            shape = [self.blocks.sizes[d] for d in dims]
            shape[place : place + 1] = [2, size]
            halves = [f"v{value}_{number}of{count}" for number in range(count)]
            for number, name in enumerate(names):
                pair = ", ".join(halves[2 * number : 2 * number + 2])
                apart = f"tl.permute(tl.reshape({name}, {shape}), {order})"
                self.line(f"{pair} = tl.split({apart})")
            names = halves
        return names

    def at(self, value: int, dims: TileDims) -> str:
        """A value among the dimensions of its reader."""
        return self.text.broadcast(self.names[value], self.dims[value], dims)

    def laid(self, value: int, dims: TileDims) -> str:
        """The same for a tile that keeps its place in the registers of threads."""
        return self.text.reshaped(self.names[value], self.dims[value], dims)

    def places(self, access: Access, dims: TileDims) -> tuple[list[str], list[str]]:
        """The terms of an offset that values give, and the conditions under which those are
        indices of the tensor."""
        terms: list[str] = []
        inside: list[str] = []
        number = self.numbers.text
        target = "int64" if self.blocks.wide else "int32"
        for at in access.at:
            text = self.at(at.value, dims)
            if at.checked:
                inside += [f"({text} >= 0)", f"({text} < {number(at.size)})"]
            text = convert(text, self.dtypes[at.value], target)
            # Along an expanded dimension too: the address needs the shape of the mask.
            terms.append(f"{text} * {number(at.stride)}" if at.stride != 1 else text)
        return terms, inside

    def union(self, values: tuple[int, ...]) -> TileDims:
        return tuple(sorted({d for v in values for d in self.dims[v]}))

    def full(self, value: int, dims: TileDims, dtype: str) -> str:
        """A value in `dtype` with every one of the dimensions, repeated along those it lacks."""
        text = convert(self.at(value, dims), self.dtypes[value], dtype)
        if self.dims[value] == dims:
            return text
        if not self.dims[value]:
            return f"tl.full({self.text.shape(dims)}, {text}, {TRITON_DTYPE[dtype]})"
        return f"tl.broadcast_to({text}, {self.text.shape(dims)})"
