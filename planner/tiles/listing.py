"""A tile program as text, one line for each instruction."""

from __future__ import annotations

from collections.abc import Iterator

from ..nests.nest import Nest
from ..values import values
from .blocks import Blocks
from .descriptors import Described
from .instructions import (
    NO_VALUE,
    BitField,
    Body,
    EndEmpty,
    EndLoads,
    EpilogueSubtiles,
    FirstBlock,
    Grid,
    Head,
    Instruction,
    LaunchNext,
    LoadsTogether,
    Mma,
    OnesMma,
    Prefetch,
    QuadSum,
    Reduce,
    RowEnds,
    SelectedLoad,
    TileCompute,
    TileLoad,
    TileLoop,
    TilePlace,
    TileRepeat,
    TileScan,
    TileStore,
    Welford,
)


def listing(nest: Nest, blocks: Blocks, body: Body, head: Head, grid: Grid | None) -> str:
    """Axes with their blocks, the grid, then the instructions. `v8 [128 64] = mma v4 * v6` gives
    the shape of a tile; a value without one is a scalar."""
    axes = zip(nest.axes, blocks.sizes, strict=True)
    lines = [f"axis {a.name}: {a.extent} {a.role.value}, blocks of {size}" for a, size in axes]
    if blocks.aligned is not None:
        lines[blocks.aligned.axis] += f", from vectors of {blocks.aligned.vector}"
    lines += [] if grid is None else [_grid(grid)]
    told = _Listing(nest, blocks)
    for each in head:
        if isinstance(each, (TileLoad, SelectedLoad)):
            lines += told.lines((each,), "")
        elif isinstance(each, Prefetch):
            name = nest.axes[each.axis].name
            lines.append(f"prefetch in{each.input}, {each.count} lines along {name}")
        elif isinstance(each, FirstBlock):
            lines.append(f"first block of {nest.axes[each.axis].name}, as far as masks leave it:")
            lines += told.lines(each.loads, "  ")
        elif isinstance(each, EndEmpty):
            lines.append(_end(nest, each))
            lines += told.lines(each.stores, "  ")
        elif isinstance(each, LoadsTogether):
            lines.append("at once:")
            lines += told.lines(each.loads, "  ")
        else:
            lines.append("launch next" if isinstance(each, LaunchNext) else "wait")
    return "\n".join([*lines, *told.lines(body, "")])


class _Listing:
    def __init__(self, nest: Nest, blocks: Blocks) -> None:
        self.nest = nest
        self.blocks = blocks

    def lines(self, body: Body, indent: str) -> Iterator[str]:
        for each in body:
            match each:
                case TileLoop(axis=axis, body=inner):
                    yield indent + self._loop(each)
                    before, self.blocks = self.blocks, each.blocks or self.blocks
                    yield from self.lines(inner, indent + "  ")
                    self.blocks = before
                    for values in each.combined:
                        yield f"{indent}combine lanes of {_names(values)}"
                case EpilogueSubtiles(axis=axis, values=values, bodies=bodies):
                    name = self.nest.axes[axis].name
                    before, self.blocks = self.blocks, each.blocks
                    for number, part in enumerate(bodies):
                        yield f"{indent}part {number} of {name}, of {_names(values)}"
                        yield from self.lines(part, indent + "  ")
                    self.blocks = before
                case TileRepeat(turns=turns, body=turn, sums=sums):
                    first = _names(tuple(s.before for s in sums))
                    last = _names(tuple(s.last for s in sums))
                    yield f"{indent}repeat {turns} turns, from {first} to {last}"
                    yield from self.lines(turn, indent + "  ")
                case EndLoads(loads=steps) | RowEnds(body=steps):
                    lanes, when = each.lanes, ", read before" * isinstance(each, EndLoads)
                    ends = "both ends" if lanes.ends == "both" else "the last end"
                    again = "apart" if isinstance(each, RowEnds) and each.apart else "once more"
                    yield f"{indent}{ends} of {self.nest.axes[lanes.axis].name} {again}{when}"
                    before, self.blocks = self.blocks, self.blocks.having(lanes.axis, lanes.size)
                    yield from self.lines(steps, indent + "  ")
                    self.blocks = before
                case TileStore(output=output):
                    value = self.nest.outputs[output].value
                    yield f"{indent}store output {output} <- v{value}{_access(each)}"
                case _:
                    yield indent + self._evaluation(each)

    def _loop(self, loop: TileLoop) -> str:
        words = [f"loop {self.nest.axes[loop.axis].name}"]
        words += ["backwards"] * loop.reverse
        words += [f"{loop.stages} stages"] * (loop.stages > 1) + ["flattened"] * loop.flatten
        words += [f"{loop.unroll} turns as one"] * (loop.unroll > 1)
        if loop.blocks is not None:
            words.append(f"blocks of {loop.blocks.sizes[loop.axis]}")
        if loop.inner is not None:
            words.append(f"unmasked from {loop.inner[0]} to {loop.inner[1]}")
        words += ["first block before it"] * bool(loop.begun)
        words += [f"carrying {_names(loop.carries)}"] * bool(loop.carries)
        lanes = "by lane" if loop.shared == 1 else f"by {loop.shared} lanes"
        return ", ".join([*words, *[lanes] * (loop.by_lane and bool(loop.carries))])

    def _evaluation(self, each: Instruction) -> str:
        assert not isinstance(each, NO_VALUE)
        value = each.value
        dims = self.blocks.dims(self.nest.live[value])
        shape = f" [{' '.join(str(self.blocks.sizes[d]) for d in dims)}]" if dims else ""
        is_carried = isinstance(each, (Mma, OnesMma, Reduce, Welford)) and each.carried
        sign = "+=" if is_carried else "="
        return f"v{value}{shape} {sign} {self._what(each)}  # {self.nest.values[value].origin}"

    def _what(self, each: Instruction) -> str:
        match each:
            case TileLoad(input=number, access=access, place=place, twice=twice):
                at = _names(tuple(at.value for at in access.at))
                words = [f"load in{number}", *[f"at {at}"] * bool(at)]
                words += [f"to {place.value}"] * (place is not TilePlace.REGISTERS)
                return " ".join([*words, *["twice"] * twice]) + _access(each)
            case SelectedLoad(pieces=pieces):
                return f"load {' or '.join(f'in{piece.input}' for piece in pieces)}"
            case TileCompute(bits=BitField(source=source, shift=shift, width=width, offset=less)):
                return f"bits {shift} to {shift + width - 1} of v{source}, less {less}"
            case TileCompute(value=value, rounded=rounded, flushes=flushes, narrow=narrow):
                kind, reads = self.nest.values[value].kind, _names(self.nest.values[value].reads)
                name = kind.op.name if isinstance(kind, values.Compute) else type(kind).__name__
                how = ", rounded" * rounded + ", flushed" * flushes
                how += f", in {narrow}" if narrow else ""
                return f"{name.lower()} {reads}".rstrip() + how
            case QuadSum(source=source, width=width, offset=less, parts=parts):
                terms = (f"bits {n} to {n + width - 1} * v{row}" for n, row in parts)
                return f"sum v{source}, less {less}, by {' and '.join(terms)} in quads"
            case Mma(left=left, right=right, unit=unit, correction=correction, slices=slices):
                followed = ", corrected" * (correction is not None)
                followed += f", {slices} slices" * (slices > 1) + ", swapped" * each.swapped
                return f"mma v{left} * v{right} by {unit.value}{followed}"
            case OnesMma(source=source):
                return f"mma v{source} * ones"
            case Reduce(value=value):
                fold = self.nest.fold(value)
                what = f"v{fold.source}" + (f" * v{fold.times}" if fold.times is not None else "")
                words = [f"{fold.monoid.name} {what}"]
                words += ["corrected"] * (each.correction is not None)
                words += ["compensated"] * each.compensated
                words += [f"with {_names(each.joined)}"] * bool(each.joined)
                words += [f"{each.beyond} beyond rows"] * bool(each.beyond)
                words += {"ends": ["of the ends"], "rest": ["with the ends"], "": []}[each.part]
                return ", ".join(words)
            case Welford(value=value):
                fold = self.nest.fold(value)
                what = "squares" if each.shifted else "welford"
                return f"{what} v{fold.source} about v{fold.about}"
            case TileScan(value=value):
                words = [f"scan {_names(self.nest.values[value].reads)}"]
                words += ["backwards"] * each.reverse + ["carried"] * each.carried
                return ", ".join(words)
        raise TypeError(f"{each!r} gives no value")


def _grid(grid: Grid) -> str:
    words = [f"grid: {grid.tiles} tiles"]
    if grid.persistent:
        words.append(f"{grid.programs} persistent programs")
    words += [f"{grid.stages} stages"] * (grid.persistent and grid.stages > 1)
    words += [f"stripes of {grid.stripe}"] * (grid.stripe > 1)
    return ", ".join([*words, *["backwards"] * grid.reverse])


def _end(nest: Nest, end: EndEmpty) -> str:
    along, loop = (nest.axes[axis].name for axis in (end.along, end.axis))
    waits = ", having waited" * end.waits
    return f"end where masks leave nothing of {loop}, but the first along {along}{waits}, storing:"


def _access(each: TileLoad | TileStore) -> str:
    rows = {"aligned": ", whole vectors", "": ""}.get(each.rows, f", {each.rows}")
    rows += ", in pairs" * (isinstance(each, TileLoad) and each.in_pairs)
    rows += ", as one row" * (isinstance(each, TileLoad) and each.joined is not None)
    rows += ", else -inf" * (isinstance(each, TileLoad) and each.lowest)
    if isinstance(each, TileLoad) and each.repeats > 1:
        rows += f", {each.repeats} times each"
    if isinstance(each, TileLoad) and each.between is not None:
        rows += f", those between as v{each.between}"
    if isinstance(each, TileLoad) and each.chosen is not None:
        rows += f", where v{each.chosen}"
    if isinstance(each, TileLoad) and each.moved is not None:
        rows += f", {each.moved.offset} further in each turn"
    rows += {"": "", "last": " but its last end", "both": " but its ends"}[each.ends]
    return _via(each.via) + rows + (f", evict {each.hint}" if each.hint else "")


def _via(via: Described | None) -> str:
    return "" if via is None else f", by descriptor {list(via.descriptor.block)}"


def _names(values: tuple[int, ...]) -> str:
    return " ".join(f"v{value}" for value in values)
