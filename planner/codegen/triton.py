"""A tile program as Triton text. Every decision was taken by the passes; nothing is chosen here."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace
from itertools import pairwise
from typing import ClassVar

from ..graph.dtypes import TRITON_DTYPE
from ..graph.graph import Ref
from ..graph.op import Accuracy, Op
from ..graph.sizes import varies
from ..nests.linear_forms import Affine, Role
from ..tiles.alignment import is_dense
from ..tiles.blocks import TileDims
from ..tiles.index_width import INT32_LIMIT
from ..tiles.instructions import (
    Body,
    EndEmpty,
    EndLoads,
    EpilogueSubtiles,
    FirstBlock,
    Grid,
    Head,
    LaunchNext,
    LoadsTogether,
    Prefetch,
    QuadSum,
    RowEnds,
    SelectedLoad,
    TileCompute,
    TileLoad,
    TileLoop,
    TileRepeat,
    TileScan,
    TileStore,
    Wait,
)
from ..tiles.program import TileProgram
from ..tiles.tile import Pass
from ..values import values
from . import quad_sums, reductions, scans
from .accesses import AccessPrinter, chosen
from .aligned_rows import AlignedText
from .body import convert, expression, literal
from .limits import rest_of
from .source import AWAIT_LAST, BEGIN_NEXT
from .text import is_taken_for_dot


class TritonPrinter(AccessPrinter):
    """Writes the lines of a kernel, walking the program's body in order."""

    left_out: ClassVar[Collection[Pass]] = ()
    """The passes whose result it cannot write."""

    def __init__(self, program: TileProgram) -> None:
        super().__init__(program)
        assert program.grid is not None, "tiles are given to programs"
        self.grid: Grid = program.grid
        self.together: set[int] = set()
        """Values that were loaded together behind the wait."""
        self.loops = 0
        """How many loops the text has begun."""

    def kernel(self) -> list[str]:
        """The lines of the kernel's body."""
        grid, head = self.grid, self.program.head
        in_parts = any(isinstance(each, EpilogueSubtiles) for each in self.program.body)
        early = (TileLoad, SelectedLoad, Prefetch, FirstBlock, EndEmpty, LoadsTogether)
        first = next((i for i, each in enumerate(head) if isinstance(each, early)), len(head))
        self._head(head[:first])
        if not in_parts:
            self._held()
        if not grid.persistent:
            self.line(f"pid = {self.wide('tl.program_id(0)')}")
            self._place(in_parts)
            self._head(head[first:])
            self._body(self.program.body, None)
            return self.lines
        more = f", num_stages={grid.stages}" if grid.stages > 1 else ""
        turns = (
            f"tl.program_id(0), {self.numbers.text(grid.tiles)}, {grid.step}, flatten=True{more}"
        )
        self.line(f"for turn in tl.range({turns}):")
        with self.indented():
            self.line(f"pid = {self.wide('turn')}")
            self._place(in_parts)
            self._body(self.program.body, None)
        return self.lines

    def _head(self, head: Head) -> None:
        for each in head:
            match each:
                case TileLoad():
                    self.load(each)
                case SelectedLoad():
                    self.selected_load(each)
                case Prefetch():
                    self.prefetch(each)
                case FirstBlock():
                    self._first_block(each)
                case EndEmpty():
                    self._end_empty(each)
                case LoadsTogether():
                    self._together(each)
                case LaunchNext():
                    self.line(f"tl.extra.cuda.{BEGIN_NEXT}()", "the next may be launched")
                case Wait():
                    self._wait()

    def _wait(self) -> None:
        self.line(f"tl.extra.cuda.{AWAIT_LAST}()", "all of the last is done and seen")

    def _place(self, in_parts: bool) -> None:
        """The indices of a tile."""
        if in_parts:
            # Again in every turn of a persistent grid: parts have indices of their own.
            self._held()
        self._grid()
        rows = self.blocks.aligned
        if rows is not None:
            self.rows = AlignedText(self, rows)
            self.rows.begin()
            if self.nest.axes[rows.axis].role is Role.GRID:
                # After the indices of the others, which tell where the row begins.
                self._index(rows.axis, f"{self.nest.axes[rows.axis].name}_block")

    def _held(self) -> None:
        rows = self.blocks.aligned
        for axis in self.nest.with_role(Role.HELD):
            if rows is None or axis != rows.axis:
                self._index(axis, "")

    def _in_parts(self, parts: EpilogueSubtiles) -> None:
        """What follows the mmas, over one part of the tile's columns after another."""
        axis, start = parts.axis, self.starts[parts.axis]
        names = {v: self.cut(v, axis, len(parts.bodies)) for v in parts.values}
        with self.within(parts.blocks):
            for number, body in enumerate(parts.bodies):
                offset = number * self.blocks.sizes[axis]
                self._lanes(axis, f"{start} + {offset}" if number else start)
                for value, own in names.items():
                    self.names[value] = own[number]
                self._body(body, None)

    def _body(self, body: Body, carried: reductions.Carried | None) -> None:
        for each in body:
            match each:
                case TileLoop():
                    self._loop(each)
                case EpilogueSubtiles():
                    self._in_parts(each)
                case TileLoad():
                    if each.value not in self.done and each.value not in self.together:
                        self.load(each)
                case SelectedLoad():
                    self.selected_load(each)
                case TileRepeat():
                    self._repeat(each)
                case EndLoads():
                    self.load_ends(each)
                case RowEnds():
                    self._ends(each)
                case TileCompute():
                    self._compute(each)
                case QuadSum():
                    quad_sums.step(self, each)
                case TileScan():
                    scans.step(self, each)
                case TileStore():
                    self.store(each)
                case _ if each.carried:
                    assert carried is not None, "a state is taken in inside its loop"
                    carried.take(each)
                case _:
                    reductions.step(self, each)

    def _repeat(self, each: TileRepeat) -> None:
        """The sums keep the names that they have before the first turn."""
        for own in each.sums:
            dims = self.blocks.dims(self.nest.live[own.after])
            zeros = f"tl.zeros({self.text.shape(dims)}, {TRITON_DTYPE[self.dtypes[own.after]]})"
            self.bind(own.before, zeros if dims else "0.0", dims)
        self.line(f"for lap in tl.range(0, {each.turns}):")
        with self.indented():
            self._begin_lap(each)
            self._body(each.body, None)
            for own in each.sums:
                self.line(f"{self.names[own.before]} = {self.names[own.after]}")
        for own in each.sums:
            self.names[own.last] = self.names[own.before]
            self.dims[own.last] = self.dims[own.before]

    def _ends(self, each: RowEnds) -> None:
        assert self.rows is not None, "the pass says what rows are aligned"
        lanes = each.lanes
        with self.within(self.blocks.having(lanes.axis, lanes.size)), self.rows.at_ends(each):
            for step in each.body:
                if isinstance(step, TileLoad) and step.value in self.ends:
                    self.loaded_end(step)
                else:
                    self._body((step,), None)

    def _begin_lap(self, each: TileRepeat) -> None:
        """One address for all loads that differ in a number alone, which is part of an instruction
        then."""
        self.laps.clear()
        for load in each.body:
            if not isinstance(load, TileLoad) or load.moved is None:
                continue
            terms = load.access.offset.terms
            if (load.input, terms) not in self.laps:
                name = self.laps[load.input, terms] = f"lap{len(self.laps)}"
                dims = self.blocks.dims(load.access.axes)
                with self.once(dims[-1] if dims else -1, load.repeats):
                    start = self.text.affine(Affine(terms), dims)
                buffer = f"row{load.input}" if load.rows == "laid" else f"in{load.input}"
                self.line(f"{name} = {buffer} + ({start} + lap * {load.moved.offset})")

    # --- axes ---

    def _grid(self) -> None:
        """Program id to block indices: the innermost axis changes fastest, or blocks of the last
        two axes go in stripes, so that neighbours in time share what they read."""
        if self.grid.reverse:
            self.line(f"pid = {self.numbers.text(self.grid.tiles - 1)} - pid")
        axes = self.nest.with_role(Role.GRID)
        counted = [a for a in axes if self.blocks.count(a) > 1]
        rest = "pid"
        blocks = dict.fromkeys(axes, "0")
        if self.grid.stripe > 1 and len(counted) > 1:
            rest = self._grouped(*counted[-2:])
            blocks.update({a: f"{self.nest.axes[a].name}_block" for a in counted[-2:]})
            counted = counted[:-2]
        for position, axis in reversed(list(enumerate(counted))):
            count = self.numbers.text(self.blocks.count(axis)) if position else ""
            blocks[axis] = f"({rest}) % {count}" if position else rest
            rest = f"{rest} // {count}"
        for axis in reversed(axes):
            name = f"{self.nest.axes[axis].name}_block"
            if blocks[axis] != name:
                self.line(f"{name} = {blocks[axis]}")
            if self.blocks.aligned is None or self.blocks.aligned.axis != axis:
                self._index(axis, name)

    def _grouped(self, outer: int, inner: int) -> str:
        """Block indices of two axes: a stripe of blocks of the outer, then all of the inner."""
        names = [self.nest.axes[a].name for a in (outer, inner)]
        number, line = self.numbers.text, self.line
        rows, columns = self.blocks.count(outer), self.blocks.count(inner)
        most = self.grid.stripe if varies(rows) else min(self.grid.stripe, rows)
        every, stripe = number(rows * columns), number(most * columns)
        line(f"stripe = (pid % {every}) // {stripe}")
        line(f"place = pid % {every} - stripe * {stripe}")
        line(
            f"height = tl.minimum({number(rows)} - stripe * {most}, {most})"
            if varies(rows) or rows % most
            else f"height = {most}"
        )
        line(f"{names[0]}_block = stripe * {most} + place % height")
        line(f"{names[1]}_block = place // height")
        return f"pid // {every}"

    def _index(self, axis: int, block_index: str) -> None:
        """The index along an axis, as a scalar or as a vector."""
        if self.nest.axes[axis].role is not Role.GRID and block_index:
            block_index = self.wide(block_index)  # Those of the grid come from a wide program id.
        start = f"{block_index} * {self.blocks.sizes[axis]}" if block_index else "0"
        self._lanes(axis, start, block_index or start)

    def _lanes(self, axis: int, start: str, scalar: str = "") -> None:
        """The index along an axis in a block that starts there; scalar: that of a block of one."""
        tile, block = self.nest.axes[axis], self.blocks.sizes[axis]
        self.starts[axis] = start
        text = scalar
        if block > 1:
            lanes = f"tl.arange(0, {block})"
            text = lanes if start == "0" else f"{start} + {lanes}"
        # Loops begin with a wide block, and so do axes of the grid, but where one block holds all.
        whole = tile.role is Role.GRID and self.blocks.count(axis) == 1
        if text != "0" and (whole or tile.role is Role.HELD):
            text = self.wide(text)
        if self.rows is not None and self.rows.axis == axis:
            self.rows.lanes(text, start)
            return
        self.line(f"{tile.name} = {text}", f"{tile.role.value} axis of {tile.extent}")
        if self.blocks.is_ragged(axis):
            accesses = (*self.nest.loads.values(), *self.nest.stores.values())
            tells = any(is_dense(t, a) for a in accesses for t in a.offset.terms if t.axis == axis)
            end = self.numbers.text(tile.extent, tells)
            self.line(f"{tile.name}_in = {tile.name} < {end}")
        self.lanes_once(axis, start)

    # --- statements ---

    def _compute(self, each: TileCompute) -> None:
        value, bits = self.nest.values[each.value], each.bits
        if bits is not None:
            name = f"from_bits_{bits.shift}_{bits.width}_{bits.offset}"
            dims = self.dims[bits.source]
            self.bind(value.id, f"{name}({self.names[bits.source]})", dims)
            return
        if each.narrow:
            self.bind(value.id, *self._narrow(value, each.narrow))
            return
        told = Accuracy.FLUSHING if each.flushes else None
        dims, text = self._computed(value, Accuracy.ROUNDED if each.rounded else told)
        self.bind(value.id, self.evaluated(value, text, dims), dims)

    def _narrow(self, value: values.Value, dtype: str) -> tuple[str, TileDims]:
        """A rounding, or a product, in a type of 16 bits."""
        assert isinstance(value.kind, values.Compute)
        dims, narrow = self.union(value.reads), TRITON_DTYPE[dtype]
        given = [operand for _, operand in value.kind.operands if isinstance(operand, Ref)]
        factors = [f"({self.at(each.node, dims)}).to({narrow})" for each in given]
        return f"({' * '.join(factors)}).to({TRITON_DTYPE[value.dtype]})", dims

    def _computed(self, value: values.Value, told: Accuracy | None) -> tuple[TileDims, str]:
        match value.kind:
            case values.Compute() as compute:
                dims = self.union(value.reads)
                texts = {source: self.at(source, dims) for source in value.reads}
                if told is not None:
                    compute = replace(compute, accuracy=told)
                compute = self._in_order(compute, dims)
                text = expression(self.accurate(compute), texts, self.dtypes, self.numbers)
                return dims, self.converted(text, compute.result, value.dtype, dims)
            case values.Index(start=start, step=step):
                dims = self.blocks.dims(self.nest.forms[value.id].axes)
                form = self.text.affine(self.nest.forms[value.id], dims)
                text = f"({form})"
                if self._is_long(value):
                    text = f"tl.cast({form}, tl.int64)"
                text += f" * {self.numbers.text(step)}" if step != 1 else ""
                text += f" + {self.numbers.text(start)}" if start != 0 else ""
                return dims, f"({text}).to({TRITON_DTYPE[value.dtype]})" if dims else text
            case values.Literal(number=number):
                return (), literal(number, value.dtype, self.numbers)
            case values.Choice() as choice:
                pieces = self.union(tuple(piece for piece, _, _ in choice.pieces))
                index = self.nest.forms[value.id].axes if len(choice.pieces) > 1 else ()
                dims = self.blocks.dims([*pieces, *index])
                return dims, self._choice(value, choice, dims)
        raise TypeError(f"v{value.id} is not computed")

    def accurate(self, compute: values.Compute) -> values.Compute:
        """The computation as it is printed."""
        return compute

    def _in_order(self, compute: values.Compute, dims: TileDims) -> values.Compute:
        """A product with its factors in the order in which Triton leaves it a product."""
        factors = [operand for _, operand in compute.operands]
        read = [self.dims[f.node] for f in factors if isinstance(f, Ref)]
        if compute.op is not Op.MUL or not is_taken_for_dot(read, dims):
            return compute
        names = (name for name, _ in compute.operands)
        return replace(compute, operands=tuple(zip(names, reversed(factors), strict=True)))

    def _is_long(self, value: values.Value) -> bool:
        """Whether an index takes more than 32 bits."""
        index = value.kind
        assert isinstance(index, values.Index)
        size = math.prod(self.nest.axes[a].extent for a in self.nest.forms[value.id].axes)
        last = index.start + index.step * (size - 1)
        return max(abs(index.start), abs(last), abs(index.step)) > INT32_LIMIT

    def _choice(self, value: values.Value, choice: values.Choice, dims: TileDims) -> str:
        index = self.text.affine(self.nest.forms[value.id], dims)
        texts = [
            convert(self.at(p, dims), self.dtypes[p], value.dtype) for p, _, _ in choice.pieces
        ]
        ends = [self.numbers.text(high) for _, _, high in choice.pieces]
        if len({*texts}) == 1 < len(texts):  # Equal constants: the index gives the tile its shape.
            return f"tl.where({index} < {ends[0]}, {texts[0]}, {texts[0]})"
        return chosen(index, texts, ends)

    def _loop(self, loop: TileLoop) -> None:
        with self.within(loop.blocks):
            self._walk(loop)

    def _walk(self, loop: TileLoop) -> None:
        axis = self.nest.axes[loop.axis]
        counter = f"{axis.name}_block{self.loops}"
        carried = reductions.Carried(self, loop, counter)
        carried.begin()
        for each in loop.body:
            if isinstance(each, TileScan) and each.carried:
                scans.begin(self, each)
        self.loops += 1
        if loop.begun:
            self._begun(loop, carried)
            if self.blocks.count(loop.axis) == 1:
                carried.end()
                return
        first, last = self._range(loop.axis)
        if loop.begun:
            first = "1"
        if loop.inner is None:
            self._turns(loop, counter, (first, last), carried)
        else:
            for turns, is_inner in self._stretches(loop, last):
                with self.within(replace(self.blocks, inner=loop.axis if is_inner else None)):
                    self._turns(loop, counter, turns, carried, last)
                carried.again()
        carried.end()

    def _stretches(self, loop: TileLoop, count: str) -> list[tuple[tuple[str, str], bool]]:
        """The turns of a loop at which its inner blocks begin and end, and those before and behind
        them; which of these are inner ones. Where it goes backwards they are counted from the
        end."""
        assert loop.inner is not None, "the pass says which blocks lie in the row"
        begin, end = loop.inner
        extent = self.nest.axes[loop.axis].extent
        if varies(extent):
            name, length = f"{self.nest.axes[loop.axis].name}_inner", self.numbers.text(extent)
            block = self.blocks.sizes[loop.axis]
            self.line(f"{name} = tl.maximum({length} // {block}, {begin})")
            ahead = str(begin), name
            inner = (f"{count} - {name}", f"{count} - {begin}") if loop.reverse else ahead
        else:
            turns = int(count)
            first, last = (turns - end, turns - begin) if loop.reverse else (begin, end)
            inner = str(first), str(last)
        cuts = "0", *inner, count
        return [(each, n == 1) for n, each in enumerate(pairwise(cuts)) if each[0] != each[1]]

    def _first_block(self, each: FirstBlock) -> None:
        """Lanes that masks leave out are not read: beyond the position of a long cache there are
        many."""
        name = self.nest.axes[each.axis].name
        self._index(each.axis, "")
        for limit in self.nest.limits[each.axis]:
            own = f"{name}_left{len(self.left)}" if self.left else f"{name}_left"
            self.line(f"{own} = {name} + ({rest_of(self, limit)}) <= 0", "masks empty the others")
            self.left.append((each.axis, own))
        inner = {a for load in each.loads for a in load.access.axes} - {each.axis}
        for axis in self.nest.with_role(Role.LOOP):
            if axis in inner:
                self._index(axis, "")
        for load in each.loads:
            self.load(load)
        self.first_left, self.left = self.left, []

    def _end_empty(self, each: EndEmpty) -> None:
        """Of what the loop carries the values are known only in the lines that end."""
        last = self.nest.axes[each.axis].extent - 1
        ends = [(rest_of(self, limit), 0 if limit.scale > 0 else last) for limit in each.limits]
        empty = " | ".join(f"({rest} > {end})" for rest, end in ends)
        empty = f"({empty})" if len(ends) > 1 else empty
        first = f"({self.nest.axes[each.along].name}_block > 0)"
        self.line(f"if {first} & {empty}:", "masks leave nothing")
        with self.indented():
            if each.waits:
                self._wait()
            for store in each.stores:
                value = self.nest.values[self.nest.outputs[store.output].value]
                self.dims[value.id] = self.blocks.dims(self.nest.live[value.id])
                self.names[value.id] = reductions.begun(self, value)
                self.store(store)
                del self.dims[value.id], self.names[value.id]
            self.line("return")

    def _together(self, each: LoadsTogether) -> None:
        """The indices of loops that have one block stand before the loops as well."""
        self.left = self.first_left
        needed = {a for load in each.loads for a in load.access.axes}
        for axis in self.nest.with_role(Role.LOOP):
            if axis in needed:
                self._index(axis, "")
        kept = [self.load_raw(load) for load in each.loads]
        self.line("tl.debug_barrier()", "none of these loads begins later")
        for load, raw in zip(each.loads, kept, strict=True):
            self.load(load, raw)
        self.left, self.together = [], {load.value for load in each.loads}

    def _begun(self, loop: TileLoop, carried: reductions.Carried) -> None:
        """The first block, whose loads are under way since before the wait."""
        self.left, self.done = self.first_left, {*loop.begun}
        self._body(loop.body, carried)
        self.left, self.done = [], set()
        carried.again()

    def _turns(
        self,
        loop: TileLoop,
        counter: str,
        turns: tuple[str, str],
        carried: reductions.Carried,
        count: str = "",
    ) -> None:
        """Some turns of a loop. count: of all, where these are a part of them."""
        first, last = turns
        options = f", num_stages={loop.stages}" if loop.stages > 1 else ""
        options += f", loop_unroll_factor={loop.unroll}" if loop.unroll > 1 else ""
        options += ", flatten=True" if loop.flatten else ""
        self.line(f"for {counter} in tl.range({first}, {last}{options}):")
        with self.indented():
            past = count or last
            end = str(int(past) - 1) if past.isdigit() else f"{past} - 1"
            start = "" if first == "0" or count else f"{first} + "
            self._index(loop.axis, f"({start}{end} - {counter})" if loop.reverse else counter)
            self._body(loop.body, carried)

    def _range(self, axis: int) -> tuple[str, str]:
        """First and last block of a loop: all of them, or those that masks do not empty."""
        first, last = "0", self.numbers.text(self.blocks.count(axis))
        name, block = self.nest.axes[axis].name, self.blocks.sizes[axis]
        for limit in self.nest.limits.get(axis, ()):
            rest = rest_of(self, limit)
            if limit.scale > 0 and limit.values:
                # A part of the axis may lie beyond the position altogether: no turn is left.
                text = f"tl.minimum({last}, tl.maximum({block} - ({rest}), 0) // {block})"
                text = f"{text}.to(tl.int32)"
                last = f"{name}_last"
                self.line(f"{last} = {text}", "masks empty the blocks from here on")
            elif limit.scale > 0:
                text = f"tl.minimum({last}, tl.maximum(-({rest}), 0) // {block} + 1)"
                last = f"{name}_last"
                self.line(f"{last} = {text}", "masks empty the blocks from here on")
            else:
                text = f"tl.maximum({first}, tl.maximum({rest}, 0) // {block})"
                text += ".to(tl.int32)" * bool(limit.values)
                first = f"{name}_first"
                self.line(f"{first} = {text}", "masks empty the blocks before")
        return first, last
