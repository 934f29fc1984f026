"""Rows that begin anywhere as Triton: blocks of lanes that begin at the last start of a vector
before the row, so that loads and stores move whole vectors (see `tiles/passes/align_rows.py`).

Triton joins what a thread accesses to one instruction where it can tell that the addresses are
multiples of 16 bytes and that masks are the same for all of a vector. Starts are rounded down, and
compared with lanes are only numbers that are rounded, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..graph.sizes import divisor_of, varies
from ..nests.linear_forms import Access, Role
from ..tiles.alignment import copied_stride, row_end, row_start, vector
from ..tiles.blocks import AlignedRows
from ..tiles.instructions import EndLanes, RowEnds, TileLoad, TileStore
from .scope import Scope, zero


class AlignedText:
    """Writes the lanes of aligned rows, and what is loaded and stored by them. With the axis r0:

    r0_skip   lanes of the first block before the row
    r0_lane   the number of each lane, from the start of the first block
    r0, r0_in the index along the row, and whether it lies in the row
    r0_from   the address of the first lane, by tensors whose rows begin at the same place
    r0_head   the first lane of the first vector that lies in the row whole
    r0_tail   the end of the last such vector
    r0_past   the end of the vector in which the row ends
    """

    def __init__(self, scope: Scope, rows: AlignedRows) -> None:
        self.scope = scope
        self.axis = rows.axis
        self.vector = rows.vector
        self.start = scope.text.affine(rows.start, ())
        self.name = scope.nest.axes[rows.axis].name
        self.extent = scope.nest.axes[rows.axis].extent
        self.length = scope.numbers.text(self.extent)
        self.block = "0"
        """Where the block of lanes starts."""
        self.is_at_ends = False
        """Whether the lanes are those of a `RowEnds`: the row's elements within a vector."""
        self.has_end_lanes = False
        """Whether these have names."""
        self.are_ends_apart = any(
            isinstance(each, RowEnds) and each.apart for each in scope.program.body
        )
        """Whether the ends are no part of the row's tiles."""

    def begin(self) -> None:
        """Writes the lines that hold for all blocks of a row, and for a held axis its lanes."""
        scope, name = self.scope, self.name
        # By `&`: of a remainder, which may be negative, the compiler knows no range.
        scope.line(f"{name}_skip = ({self.start}) & {self.vector - 1}", "elements before the row")
        steps = [*scope.program.head, *(each for each, _ in scope.program.walk())]
        moved = (each for each in steps if isinstance(each, (TileLoad, TileStore)))
        aligned = [each for each in moved if each.rows == "aligned"]
        self.starts = {self._start(e.access): "" for e in aligned}
        for number, start in enumerate(self.starts):
            self.starts[start] = f"{name}_from{number}" if number else f"{name}_from"
            text = f"{self.starts[start]} = ({start}) // {self.vector} * {self.vector}"
            scope.line(text, "a multiple of 16 bytes")
        loads, stores = (
            [each for each in aligned if isinstance(each, kind)] for kind in (TileLoad, TileStore)
        )
        for size in sorted({vector(load.access) for load in loads if not load.ends}):
            text = f"({name}_skip + {self._longer(size - 1)}) // {size} * {size}"
            scope.line(f"{name}_past{size} = {text}")
        whole = [*stores, *(load for load in loads if load.ends)]
        for size in sorted({self._vector(e) for e in (whole if self.are_ends_apart else stores)}):
            scope.line(f"{name}_head{size} = ({name}_skip + {size - 1}) // {size} * {size}")
        for size in sorted({self._vector(each) for each in whole}):
            text = f"({name}_skip + {self.length}) // {size} * {size}"
            scope.line(f"{name}_tail{size} = {text}")
        if self.axis in scope.nest.with_role(Role.HELD):
            self.lanes(f"tl.arange(0, {scope.blocks.sizes[self.axis]})")

    def lanes(self, text: str, start: str = "0") -> None:
        """The lanes of a block that starts there, the index along the row, and which lie in it."""
        self.block = start
        line, name = self.scope.line, self.name
        role = self.scope.nest.axes[self.axis].role.value
        line(f"{name}_lane = {text}")
        line(f"{name} = {name}_lane - {name}_skip", f"{role} axis of {self.extent}")
        if self.scope.blocks.inner == self.axis:
            return
        if self.are_ends_apart:
            # The same number for all lanes of a vector: it is compared once for each.
            each = f"{name}_lane // {self.vector} * {self.vector}"
            bounds = f"({each} >= {name}_head{self.vector}) & ({each} < {name}_tail{self.vector})"
        elif varies(self.extent):
            # No lane is known to lie in the row: comparing lanes, whose numbers have no part that
            # differs from row to row, takes a subtraction less for each of them.
            bounds = f"({name}_lane >= {name}_skip) & ({name}_lane < {name}_skip + {self.length})"
        else:
            bounds = f"({name} >= 0) & ({name} < {self.length})"
        line(f"{name}_in = {bounds}")

    def begin_ends(self, lanes: EndLanes) -> None:
        """Lanes of the row's last vector, and before them of its first where that is asked for,
        too; in the row are those that no store of whole vectors has."""
        line, name, each = self.scope.line, self.name, lanes.each
        head, tail = f"{name}_head{self.vector}", f"{name}_tail{self.vector}"
        if lanes.ends == "both":
            line(f"{name}_end = tl.arange(0, {lanes.size})", "both ends")
            text = f"tl.where({name}_end < {each}, 0, {tail} - {each}) + {name}_end"
            line(f"{name}_end_lane = {text}")
            own = f"(({name}_end < {each}) == ({name}_end_lane < {head}))"
        else:
            line(f"{name}_end_lane = {tail} + tl.arange(0, {each})", "the last end")
            own = f"({name}_end_lane >= {head})"
        inside = (
            f"({name}_end_lane >= {name}_skip) & ({name}_end_lane < {name}_skip + {self.length})"
        )
        line(f"{name}_end_in = {inside} & {own}")
        self.has_end_lanes = True

    def load_ends(self, each: TileLoad) -> str:
        """A row at those lanes, where they say how it is accessed."""
        lane = f"{self.name}_end_lane"
        match each.rows:
            case "aligned":
                pointer = f"in{each.input} + {self.starts[self._start(each.access)]} + {lane}"
            case "apart":
                pointer = self.apart(each, lane)
            case _:
                pointer = self._copy(each, lane)
        return f"tl.load({pointer}, mask={self.name}_end_in, other={_other(each)})"

    @contextmanager
    def at_ends(self, ends: RowEnds) -> Iterator[None]:
        """With these lanes."""
        line, name = self.scope.line, self.name
        if not self.has_end_lanes:
            self.begin_ends(ends.lanes)
        if ends.apart:
            with self.scope.at_ends(self.axis):
                self.is_at_ends = True
                yield
                self.is_at_ends = False
            return
        line(f"{name}_lane = {name}_end_lane", "the ends once more")
        line(f"{name} = {name}_lane - {name}_skip")
        line(f"{name}_in = {name}_end_in")
        self.is_at_ends = True
        yield
        self.is_at_ends = False

    def load(self, each: TileLoad, value: str, origin: str) -> str:
        """A tile by whole vectors; where the tensor's end lies within one, the last elements one by
        one."""
        size, name, end = vector(each.access), self.name, row_end(each.access)
        start = self.starts[self._start(each.access)]
        if self.is_at_ends:
            return self.load_ends(each)
        pointer, past = f"in{each.input} + {start} + {name}_lane", f"{name}_past{size}"
        hint = f', eviction_policy="evict_{each.hint}"' if each.hint else ""
        if self.scope.blocks.inner == self.axis:
            return f"tl.load({pointer}{hint})"
        other = f", other={_other(each)}"
        options = other + hint
        if self.are_ends_apart:
            return f"tl.load({pointer}, mask={name}_in{options})"
        if each.ends:
            return f"tl.load({pointer}, mask={name}_lane < {name}_tail{self.vector}{options})"
        if divisor_of(end) % size == 0:
            return f"tl.load({pointer}, mask={name}_lane < {past}{options})"
        line, number = self.scope.line, self.scope.numbers.text
        whole = f"{number(end)} // {size} * {size}" if varies(end) else str(end // size * size)
        least = f"tl.minimum({past}, {whole} - {start})"
        line(f"{value}_past = {least} // {size} * {size}", "a multiple, as Triton then sees")
        whole, rest = f"{name}_lane < {value}_past", f"{name}_lane >= {value}_past"
        line(f"{value}_whole = tl.load({pointer}, mask={whole}{options})", origin)
        line(f"if {value}_past < {past}:", "the tensor ends within this vector")
        with self.scope.indented():
            single = f"tl.load({pointer}, mask=({rest}) & {name}_in{other})"
            line(f"{value}_whole = tl.where({whole}, {value}_whole, {single})")
        return f"{value}_whole"

    def store(self, each: TileStore, out: str, value: str, masks: list[str], options: str) -> None:
        """The vectors that lie in the row whole, then the elements at its ends one by one. masks:
        what both ask besides."""
        size, name = self._vector(each), self.name
        lane = f"{name}_end_lane" if self.is_at_ends and self.are_ends_apart else f"{name}_lane"
        pointer = f"{out} + {self.starts[self._start(each.access)]} + {lane}"
        if self.scope.blocks.inner == self.axis:
            mask = f", mask={' & '.join(masks)}" if masks else ""
            self.scope.line(f"tl.store({pointer}, {value}{mask}{options})")
            return
        if self.is_at_ends:
            self.scope.line(f"tl.store({pointer}, {value}, mask={' & '.join(masks)})")
            return
        others = "".join(f" & {mask}" for mask in masks if mask != f"{name}_in")
        line, inner = self.scope.line, f"({name}_lane >= {name}_head{size})"
        inner += f" & ({name}_lane < {name}_tail{size})"
        if self.are_ends_apart:
            inner = f"{name}_in"
        line(f"tl.store({pointer}, {value}, mask={inner}{others}{options})")
        if each.ends:
            if each.ends == "last":
                mask = f"{name}_in & ({name}_lane < {name}_head{size})"
                line(f"tl.store({pointer}, {value}, mask={mask}{others}{options})")
            return
        tail = f"({name}_lane >= {name}_tail{size})"
        is_whole = self.scope.nest.axes[self.axis].role is Role.HELD
        if is_whole and not varies(self.extent):
            # A number lets the compiler leave out the stores of most of a tile.
            tail = f"({name}_lane >= {self.extent // size * size}) & {tail}"
        ends = f"({name}_lane < {name}_head{size}) | ({tail})"
        narrow = f"tl.store({pointer}, {value}, mask={name}_in & ({ends}){others}{options})"
        if is_whole:
            line(narrow)
            return
        end = f"{self.block} + {self.scope.blocks.sizes[self.axis]}"
        line(f"if ({self.block} < {name}_head{size}) | ({end} > {name}_tail{size}):", "an end")
        with self.scope.indented():
            line(narrow)

    def apart(self, each: TileLoad, lane: str = "") -> str:
        """The addresses of a row that begins elsewhere: one, and lanes from there."""
        start = f"{self._start(each.access)} - {self.name}_skip"
        return f"in{each.input} + ({start}) + {lane or f'{self.name}_lane'}"

    def copied(self, each: TileLoad) -> str:
        """A row from the copy that begins as the rows of the program do."""
        if self.is_at_ends:
            return self.load_ends(each)
        size, name = vector(each.access), self.name
        pointer = self._copy(each, f"{name}_lane")
        hint = f', eviction_policy="evict_{each.hint}"' if each.hint else ""
        if self.scope.blocks.inner == self.axis:
            return f"tl.load({pointer}{hint})"
        past = f"({name}_skip + {self.extent + size - 1}) // {size} * {size}"
        other = f", other={zero(each.access.type.dtype)}"
        return f"tl.load({pointer}, mask={name}_lane < {past}{other}{hint})"

    def _copy(self, each: TileLoad, lane: str) -> str:
        stride = copied_stride(self.extent, self.vector)
        return f"row{each.input} + {self.name}_skip * {stride} + {lane}"

    def _vector(self, each: TileLoad | TileStore) -> int:
        """Elements of the vectors that an access moves whole: where it leaves the ends of rows, as
        many as of all others, so that no tile stores what it has not read."""
        return self.vector if each.ends else vector(each.access)

    def _longer(self, more: int) -> str:
        """The length of a row and so many elements."""
        return f"{self.length} + {more}" if varies(self.extent) else str(self.extent + more)

    def _start(self, access: Access) -> str:
        return self.scope.text.affine(row_start(access, self.axis), ())


def _other(each: TileLoad) -> str:
    """What a load gives where it reads nothing."""
    return 'float("-inf")' if each.lowest else zero(each.access.type.dtype)
