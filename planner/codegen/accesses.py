"""Loads and stores as Triton text: addresses, masks, hints, descriptors and prefetches."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from ..graph.dtypes import is_float
from ..nests.linear_forms import Affine, Term
from ..tiles.blocks import TileDims
from ..tiles.instructions import (
    EndLoads,
    Prefetch,
    SelectedLoad,
    TileLoad,
    TilePlace,
    TileStore,
    loads_of,
)
from ..tiles.program import TileProgram
from ..values import values
from .aligned_rows import AlignedText
from .body import convert
from .joined_rows import JoinedRow
from .scope import Scope, zero


class AccessPrinter(Scope):
    """Writes the lines that move data between memory and a program's tiles."""

    def __init__(self, program: TileProgram) -> None:
        super().__init__(program)
        self.rows: AlignedText | None = None
        self.joined: set[tuple[int, int]] = set()
        """Axes that make a row together whose index the text has."""
        self.left: list[tuple[int, str]] = []
        """Axes, and names of the lanes along them that masks leave: no others are loaded here."""
        self.first_left: list[tuple[int, str]] = []
        """Those of a first block."""
        self.done: set[int] = set()
        """Values of a first block that the head has loaded."""
        self.ends: dict[int, str] = {}
        """The names of what a `RowEnds` needs and was loaded before."""
        self.laps: dict[tuple[int, tuple[Term, ...]], str] = {}
        """In a repeat, where an input's loads begin, by the terms of their offset."""

    def load(self, each: TileLoad, raw: str = "") -> None:
        """raw: what was loaded before, as it lies in memory."""
        value, dims = self.nest.values[each.value], self.blocks.dims(each.access.axes)
        load = value.kind
        assert isinstance(load, values.Load)
        name = f"v{value.id}"
        if each.rows == "aligned":
            assert self.rows is not None, "the pass says what rows are aligned"
            text = self.rows.load(each, name, value.origin)
            self.bind(value.id, convert(text, load.dtype, value.dtype), dims)
            return
        if each.between is not None:
            first, second = self._halves(each) if raw else self._load_halves(each)
            self.bind(each.between, self.loaded(second, load.dtype, value.dtype), dims)
            self.bind(value.id, self.loaded(first, load.dtype, value.dtype), dims)
            return
        text = raw or self._loaded(each, load, dims)
        match each.place:
            case TilePlace.SHARED:
                self.raw[value.id] = name
                if each.via is not None:
                    block = self.described("in", each.input, each.access, each.via)
                    text = block.format("load", "")
                    text = f"tl.trans({text})" if each.via.is_turned else text
                self.bind(value.id, text, dims)
                return
            case TilePlace.BOTH:
                name = f"{name}_raw"
                self.assign(value.id, name, text, dims)
                self.raw[value.id] = name
                # With a cache modifier, though it says what is so anyway, the two loads stay two.
                again = self._loaded(each, load, dims, ', cache_modifier=".ca"')
                text = again if each.twice else name
        if each.in_pairs:
            text = f"from_pairs({text})"
        else:
            text = self.loaded(text, load.dtype, value.dtype)
        times = each.repeats
        while times > 1:
            times //= 2
            with self.once(dims[-1], times):
                text = f"each_twice({text}, {self.text.shape(dims)})"
        self.bind(value.id, text, dims)

    @contextmanager
    def once(self, axis: int, times: int) -> Iterator[None]:
        """With one of so many neighbours along an axis."""
        before, self.text = self.text, replace(self.text, once=(axis, times))
        yield
        self.text = before

    def lanes_once(self, axis: int, start: str) -> None:
        """The indices of neighbours that have the same element, in a block that starts there: by
        how many they are, that of the first divided by their number."""
        steps = (*self.program.head, *(each for each, _ in self.program.walk()))
        own = (load for each in steps for load in loads_of(each) if load.repeats > 1)
        last = ((self.blocks.dims(load.access.axes)[-1], load.repeats) for load in own)
        for times in sorted({times for found, times in last if found == axis}):
            tile, block = self.nest.axes[axis], self.blocks.sizes[axis] // times
            text = f"tl.arange(0, {block})" if block > 1 else "tl.zeros([1], tl.int32)"
            if start != "0":
                before = start.removesuffix(f" * {self.blocks.sizes[axis]}")
                first = f"{before} * {block}" if before != start else f"({start}) // {times}"
                text = f"{first} + {text}"
            name = f"{tile.name}_by{times}"
            self.line(f"{name} = {self.wide(text)}", f"{times} neighbours each")
            if self.blocks.is_ragged(axis):
                self.line(f"{name}_in = {name} * {times} < {self.numbers.text(tile.extent)}")

    def wide(self, index: str) -> str:
        """An index in 64 bits where a tensor has so many elements; the interpreter counts turns in
        Python's integers, which have no `to`."""
        return f"tl.cast({index}, tl.int64)" if self.blocks.wide else index

    def load_ends(self, each: EndLoads) -> None:
        """The lanes have names of their own, for the row's follow."""
        assert self.rows is not None, "the pass says what rows are aligned"
        self.rows.begin_ends(each.lanes)
        for load in each.loads:
            name = self.ends[load.value] = f"v{load.value}_ends"
            self.line(f"{name} = {self.rows.load_ends(load)}", self.nest.values[load.value].origin)

    def loaded_end(self, each: TileLoad) -> None:
        """Binds a value that was loaded before to its tile, where it is needed."""
        value, dims = self.nest.values[each.value], self.blocks.dims(each.access.axes)
        text = self.loaded(self.ends[value.id], each.access.type.dtype, value.dtype)
        self.bind(value.id, text, dims)

    def load_raw(self, each: TileLoad) -> str:
        """The name of what is loaded, as it lies in memory."""
        value, dims = self.nest.values[each.value], self.blocks.dims(each.access.axes)
        assert isinstance(value.kind, values.Load)
        if each.between is not None:
            return self._load_halves(each)[0]
        name = f"v{value.id}_kept"
        self.line(f"{name} = {self._loaded(each, value.kind, dims)}")
        return name

    def _load_halves(self, each: TileLoad) -> tuple[str, str]:
        """The elements at even and at odd places of a row, which is loaded as it lies."""
        dims, names = self.blocks.dims(each.access.axes), self._halves(each)
        rest = tuple(term for term in each.access.offset.terms if term.axis not in dims)
        start = self.text.affine(Affine(rest, each.access.offset.base), ())
        row = f"tl.arange(0, {2 * self.blocks.elements(dims)})"
        hint = f', eviction_policy="evict_{each.hint}"' if each.hint else ""
        sizes = [*(self.blocks.sizes[axis] for axis in dims), 2]
        whole = f"tl.load(in{each.input} + ({start} + {row}){hint})"
        self.line(f"{', '.join(names)} = tl.split(tl.reshape({whole}, {sizes}))")
        return names

    @staticmethod
    def _halves(each: TileLoad) -> tuple[str, str]:
        return f"v{each.value}_even", f"v{each.value}_odd"

    def selected_load(self, each: SelectedLoad) -> None:
        """What the index of the choice says of addresses it also says of masks: only the ends of
        axes are left to look at."""
        value, index = self.nest.values[each.value], self.nest.forms[each.value]
        assert isinstance(value.kind, values.Choice)
        axes = index.axes.union(*(piece.access.axes for piece in each.pieces))
        dims = self.blocks.dims(axes)
        row = self._row(each.joined)
        whole, dims = dims, row.dims(dims)
        ends = [self.numbers.text(high) for _, _, high in value.kind.pieces]
        if each.by_tile:
            address = self._address_of_tile(each, index, ends, dims)
        else:
            pointers = [row.pointer(f"in{p.input}", p.access, whole) for p in each.pieces]
            address = chosen(self.text.affine(index, dims), pointers, ends)
            if dims and len({*pointers}) == 1:
                # The same elements again and again: the index gives the tile its shape.
                address += f" + tl.zeros({self.text.shape(dims)}, tl.int32)"
        masks = [self.text.index(a, dims, "_in") for a in sorted(axes) if self.blocks.is_ragged(a)]
        dtype = each.pieces[0].access.type.dtype
        options = f", mask={all_of(masks)}, other={zero(dtype)}" if masks else ""
        hints = {piece.hint for piece in each.pieces}
        if hints in ({"first"}, {"last"}):
            options += f', eviction_policy="evict_{hints.pop()}"'
        text = row.apart(f"tl.load({address}{options})", whole)
        self.bind(value.id, self.loaded(text, dtype, value.dtype), whole)

    def _address_of_tile(
        self, each: SelectedLoad, index: Affine, ends: Sequence[str], dims: TileDims
    ) -> str:
        """The addresses of a tile in the piece that has all of it: the piece, its strides and its
        offset are chosen once for the whole tile."""
        (along,) = index.terms
        name, offsets = f"v{each.value}", [piece.access.offset for piece in each.pieces]
        base = f" + {self.numbers.text(index.base)}" if index.base else ""
        self.line(f"{name}_at = {self.starts[along.axis]}{base}", "all of the tile is in one piece")

        def of_piece(texts: Sequence[str]) -> str:
            return chosen(f"{name}_at", texts, ends)

        parts = []
        for number, terms in enumerate(zip(*(o.terms for o in offsets), strict=True)):
            if len({term.scale for term in terms}) == 1:
                parts.append(self.text.term(terms[0], dims))
                continue
            scale = of_piece([self.numbers.text(term.scale) for term in terms])
            self.line(f"{name}_step{number} = {scale}")
            text = self.text.term(replace(terms[0], scale=1), dims)
            parts.append(f"({text}) * {name}_step{number}")
        self.line(f"{name}_first = {of_piece([self.numbers.text(o.base) for o in offsets])}")
        self.line(f"{name}_piece = {of_piece([f'in{piece.input}' for piece in each.pieces])}")
        return f"{name}_piece + ({' + '.join([*parts, f'{name}_first'])})"

    def _row(self, joined: tuple[int, int] | None) -> JoinedRow:
        """What two axes of a load are; its index is written before it is first read."""
        row = JoinedRow(self.text, joined)
        if joined is not None and joined not in self.joined:
            self.joined.add(joined)
            self.line(f"{row.name} = {row.index}", "both as one")
        return row

    def prefetch(self, each: Prefetch) -> None:
        """One address of every line; the index along the loop has a name of its own."""
        name, dims = self.nest.axes[each.axis].name, self.blocks.dims(each.access.axes)
        self.line(f"{name}_lines = tl.arange(0, {each.count}) * {each.line}", "one in each line")
        pointer = self.text.pointer(f"in{each.input}", each.access, dims)
        pointer = re.sub(rf"\b{name}\b", f"{name}_lines", pointer)
        self.line(f"prefetch({pointer})", "into L2")

    def _loaded(self, each: TileLoad, load: values.Load, dims: TileDims, again: str = "") -> str:
        """A load by pointers. What is padded must be 0 where mmas read it, for they sum it up.
        again: how it is loaded for the second time."""
        options = again
        if each.repeats > 1:
            with self.once(dims[-1], each.repeats):
                text = self._loaded(replace(each, repeats=1), load, dims, again)
            return text
        masks = self.text.masks(each.access, dims, each.moved)
        for axis, left in self.left:
            if axis in each.access.axes:
                masks.append(self.text.broadcast(left, self.blocks.dims((axis,)), dims))
        if each.chosen is not None:
            masks.append(self.at(each.chosen, dims))
        terms, inside = self.places(each.access, dims)
        lost = bool(inside) and is_float(load.dtype)
        # Padding is 0 wherever the index of a value lies.
        apart = lost and (each.place is not TilePlace.REGISTERS or bool(each.access.guards))
        if masks or inside:
            other = 'float("nan")' if lost and not apart else zero(load.dtype)
            options += f", mask={all_of([*masks, *inside])}, other={other}"
        if each.hint and not again:
            options += f', eviction_policy="evict_{each.hint}"'
        row = self._row(each.joined)
        buffer = f"row{each.input}" if each.rows == "laid" else f"in{each.input}"
        pointer = row.pointer(buffer, each.access, dims, terms)
        reached = self.blocks.dims([term.axis for term in each.access.offset.terms])
        if dims and (masks or inside) and not (reached or terms):
            # One element for a whole tile, as of an expanded input that is concatenated.
            pointer = f"{pointer} + tl.zeros({self.text.shape(dims)}, tl.int32)"
        if each.moved is not None:
            start = self.laps[each.input, each.access.offset.terms]
            pointer = f"{start} + {each.access.offset.base}"
        text = row.apart(f"tl.load({pointer}{options})", dims)
        if each.rows == "copied" and self.rows is not None:
            return self.rows.copied(each)
        if each.rows == "apart" and self.rows is not None:
            pointer = pointer if each.access.at else self.rows.apart(each)
            # As a tile of another shape it gets lanes of its own, whatever others are read by.
            masks = [*masks, *inside]
            if self.rows.is_at_ends:
                return f"tl.load({pointer}, mask={all_of(masks)}, other={zero(load.dtype)})"
            mask = f", mask=({all_of(masks)})[None, :], other={zero(load.dtype)}" if masks else ""
            text = f"tl.reshape(tl.load(({pointer})[None, :]{mask}), {self.text.shape(dims)})"
        if apart:
            outside = all_of([*masks, f"(({all_of(inside)}) == 0)"])
            return f"tl.where({outside}, {self.nan(load.dtype)}, {text})"
        return text

    def nan(self, dtype: str) -> str:
        """NaN beside a tile of this type."""
        return 'float("nan")'

    def store(self, each: TileStore) -> None:
        out, access = self.nest.outputs[each.output], each.access
        dims = self.blocks.dims([*access.axes, *self.dims[out.value]])
        text = self.stored(self.at(out.value, dims), self.dtypes[out.value], out.type.dtype)
        terms, inside = self.places(access, dims)
        pointer = self.text.pointer(f"out{out.result}", access, dims, terms)
        if each.via is not None:
            block = self.described("out", out.result, access, each.via)
            text = f"tl.trans({text})" if each.via.is_turned else text
            self.line(block.format("store", f", {text}"))
            return
        masks = self.text.masks(access, dims)
        # Blocks along an axis that the output lacks all hold the same; one writes it.
        masks += [f"({self.nest.axes[a].name}_block == 0)" for a in self.blocks.repeated(access)]
        options = f', eviction_policy="evict_{each.hint}"' if each.hint else ""
        if inside:
            outside = [f"(({all_of(masks)}) == 0)"] if masks else []
            self.line(f"trap_unless({' | '.join([*outside, f'({all_of(inside)})'])})")
        if each.rows == "aligned":
            assert self.rows is not None, "the pass says what rows are aligned"
            self.rows.store(each, f"out{out.result}", text, masks, options)
            return
        options = (f", mask={all_of(masks)}" if masks else "") + options
        self.line(f"tl.store({pointer}, {text}{options})")


def chosen(place: str, texts: Sequence[str], ends: Sequence[str]) -> str:
    """The first of the texts that ends behind the place: by halves, for Python and Triton refuse
    what is nested some hundred times."""
    if len({*texts}) == 1:
        return texts[0]
    half = len(texts) // 2
    low, high = (chosen(place, texts[at], ends[at]) for at in (slice(half), slice(half, None)))
    return f"tl.where({place} < {ends[half - 1]}, {low}, {high})"


def all_of(masks: list[str]) -> str:
    return " & ".join(masks)
