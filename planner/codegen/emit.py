"""From a nest and a config to the text of one Triton kernel."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass, replace

from ..config import Config
from ..graph.dtypes import TRITON_DTYPE, is_float, itemsize
from ..graph.op import Accuracy
from ..graph.sizes import varies
from ..nests.linear_forms import Access, Role, Term
from ..nests.nest import Nest
from ..nests.placement import Body, Carry, Loop, Step, Store
from ..values.values import Choice, Compute, Fold, Index, Literal, Load, Value
from . import folds, siblings
from .access import INT32_LIMIT, Dims
from .body import convert, expression, literal
from .intrinsics import GPU, STAND_INS
from .scope import Scope
from .source import AWAIT_LAST, BEGIN_NEXT, Buffer, KernelSource
from .subtiles import Epilogue, epilogue

_HEADER = "import triton\nimport triton.language as tl\n"
_LIBDEVICE = "from triton.language.extra import libdevice\n"
_INTERPRETED = f"import {__name__.rpartition('.')[0]}.interpreted as libdevice\n"


@dataclass(frozen=True, slots=True)
class Around:
    """The kernels around one of several. later: there is one before it. It starts with the last
    tile, because that one read it last, and L2 still has it. again: inputs that a later one
    reads."""

    later: bool = False
    again: frozenset[int] = frozenset()


ALONE = Around()


def emit(
    nest: Nest, config: Config, name: str, *, interpreted: bool = False, around: Around = ALONE
) -> KernelSource:
    """One kernel. Raises Refused when the config does not fit the nest."""
    emitter = _Emitter(nest, config, interpreted, around)
    body = emitter.kernel()
    plain = None
    if emitter.scope.descriptors:
        pointers = replace(config, access="pointer")
        plain = emit(nest, pointers, name, interpreted=interpreted, around=around)
    buffers = _buffers(nest, emitter.scope)
    scalars = emitter.tiles.numbers.used("\n".join(body))
    arguments = ", ".join([*buffers, *scalars])
    kernel = f"@triton.jit\ndef {name}({arguments}):\n" + "\n".join(body) + "\n"
    return KernelSource(
        name,
        _module(kernel, interpreted),
        tuple(buffers.values()),
        emitter.grid,
        config.num_warps,
        config.num_stages,
        plain,
        tuple(scalars.values()),
        dependent=around.later and not interpreted,
    )


def _buffers(nest: Nest, scope: Scope) -> dict[str, Buffer]:
    """The kernel's arguments by name: pointers to what is accessed by pointer, then descriptors."""
    loads = [v.kind for v in nest.values if isinstance(v.kind, Load)]
    inputs = sorted({load.input: load.dtype for load in loads}.items())
    found = {f"in{i}": Buffer("in", i, dtype) for i, dtype in inputs}
    found |= {f"out{o.index}": Buffer("out", o.index, o.type.dtype) for o in nest.outputs}
    if scope.descriptors:
        text = "\n".join(scope.lines)
        found = {n: b for n, b in found.items() if re.search(rf"\b{n}\b", text)}
    return found | {name: buffer for buffer, name in scope.descriptors.items()}


def _module(kernel: str, interpreted: bool) -> str:
    called = [name for name in GPU if re.search(rf"(?<![\w.]){name}[(),]", kernel)]
    imports = _HEADER
    if interpreted:
        stand_ins = [name for name in called if name in STAND_INS]
        called = [name for name in called if name not in STAND_INS]
        imports += _INTERPRETED + "".join(f"{n} = libdevice.{n}\n" for n in stand_ins)
    helpers = "".join(GPU[name] + "\n" for name in called)
    if not interpreted and "libdevice." in kernel + helpers:
        imports += _LIBDEVICE
    return f"{imports}\n{helpers}\n{kernel}"


class _Emitter:
    """Writes the lines of a kernel, walking the nest's body in order."""

    def __init__(self, nest: Nest, config: Config, interpreted: bool, around: Around) -> None:
        self.nest = nest
        self.config = config
        self.around = around
        self.staged = False  # Whether the loop that is being written loads ahead.
        self.scope = Scope(nest, config, interpreted)
        self.tiles = self.scope.tiles
        self.number = self.tiles.numbers.text
        self.loops: Counter[int] = Counter()
        """How often the text has walked each axis."""
        loads = [v.kind for v in nest.values if isinstance(v.kind, Load)]
        self.readers = Counter(load.input for load in loads)
        steps = [item.value for item, _ in nest.walk() if isinstance(item, Step)]
        kinds = [nest.values[value].kind for value in steps]
        self.reads = Counter(kind.input for kind in kinds if isinstance(kind, Load))
        """How often the text has yet to read each input."""
        self.tiles_in_all = math.prod(self.tiles.count(a) for a in nest.with_role(Role.GRID))
        self.grid = min(self.tiles_in_all, config.programs or self.tiles_in_all)
        # Where sizes vary, their number does not decide which kernel it is.
        most = 0 if varies(self.tiles_in_all) else self.tiles_in_all
        self.persistent = config.programs > 0 and most != self.grid
        has_dots = config.subtiles > 1 and bool(self.scope.dots)
        self.epilogue = epilogue(nest, self.tiles, config.subtiles) if has_dots else None

    def kernel(self) -> list[str]:
        scope = self.scope
        self._meet()
        if not self.epilogue:
            self._held()
        if not self.persistent:
            scope.line(f"pid = {self._wide('tl.program_id(0)')}")
            self._tile()
            return scope.lines
        count, programs = self.number(self.tiles_in_all), self.config.programs
        step = programs if varies(self.tiles_in_all) else self.grid
        # Triton begins loads ahead that feed no product only where the loop itself says so.
        has_loop = any(isinstance(item, Loop) for item in self.nest.body)
        ahead = self.config.num_stages > 1 and not has_loop
        more = f", num_stages={self.config.num_stages}" if ahead else ""
        turns = f"tl.program_id(0), {count}, {step}, flatten=True{more}"
        scope.line(f"for turn in tl.range({turns}):")
        with scope.indented():
            scope.line(f"pid = {self._wide('turn')}")
            self._tile()
        return scope.lines

    def _meet(self) -> None:
        """A kernel may be launched while the one before it ends, whose kernel that may be, and
        waits for that to have ended before it reads or writes anything."""
        if not self.scope.interpreted:
            self.scope.line(f"tl.extra.cuda.{BEGIN_NEXT}()", "the next may be launched")
            self.scope.line(f"tl.extra.cuda.{AWAIT_LAST}()", "all of the last is done and seen")

    def _tile(self) -> None:
        if not self.epilogue:
            self._grid()
            self._body(self.nest.body, None)
            return
        self._held()  # Again in every turn of a persistent grid: parts have indices of their own.
        self._grid()
        self._body(self.nest.body[: -len(self.epilogue.items)], None)
        self._in_parts(self.epilogue)

    def _held(self) -> None:
        for axis in self.nest.with_role(Role.HELD):
            self._index(axis, "")

    def _in_parts(self, epilogue: Epilogue) -> None:
        """What follows the products, over one part of the tile's columns after another."""
        scope, axis, parts = self.scope, epilogue.axis, self.config.subtiles
        values = {v: scope.cut(v, axis, parts) for v in epilogue.values}
        start = scope.starts[axis]
        scope.tiles = self.tiles = self.tiles.part(axis, parts)
        for number in range(parts):
            offset = number * self.tiles.blocks[axis]
            self._lanes(axis, f"{start} + {offset}" if number else start)
            for value, names in values.items():
                scope.names[value] = names[number]
            again = (item for item in epilogue.items if not number or item not in epilogue.once)
            self._body(tuple(again), None)

    def _body(self, body: Body, carried: folds.Carried | None) -> None:
        for items in siblings.joined(self.scope, body):
            if len(items) > 1:
                folds.steps(self.scope, [i.value for i in items if isinstance(i, Step)])
                continue
            match items[0]:
                case Loop() as loop:
                    self._loop(loop)
                case Step(value=value):
                    self._value(self.nest.values[value])
                case Carry(value=value):
                    assert carried is not None
                    carried.take(value)
                case Store(output=output):
                    self._store(output)

    # --- axes ---

    def _grid(self) -> None:
        """Program id to block indices: the innermost axis changes fastest, or with `group` blocks
        of the last two axes go in stripes, so that neighbours in time share what they read."""
        last = self.tiles_in_all - 1
        if self.around.later and (last or varies(last)):
            self.scope.line(f"pid = {self.number(last)} - pid")
        axes = self.nest.with_role(Role.GRID)
        counted = [a for a in axes if self.tiles.count(a) > 1]
        rest = "pid"
        blocks = dict.fromkeys(axes, "0")
        if self.config.group > 1 and len(counted) > 1:
            rest = self._grouped(*counted[-2:])
            blocks.update({a: f"{self.nest.axes[a].name}_block" for a in counted[-2:]})
            counted = counted[:-2]
        for position, axis in reversed(list(enumerate(counted))):
            count = self.number(self.tiles.count(axis)) if position else ""
            blocks[axis] = f"({rest}) % {count}" if position else rest
            rest = f"{rest} // {count}"
        for axis in reversed(axes):
            name = f"{self.nest.axes[axis].name}_block"
            if blocks[axis] != name:
                self.scope.line(f"{name} = {blocks[axis]}")
            self._index(axis, name)

    def _grouped(self, outer: int, inner: int) -> str:
        """Block indices of two axes: `group` blocks of the outer, then all of the inner."""
        names = [self.nest.axes[a].name for a in (outer, inner)]
        number, line = self.number, self.scope.line
        rows, columns = self.tiles.count(outer), self.tiles.count(inner)
        most = self.config.group if varies(rows) else min(self.config.group, rows)
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
            block_index = self._wide(block_index)  # Those of the grid come from a wide program id.
        start = f"{block_index} * {self.tiles.blocks[axis]}" if block_index else "0"
        self._lanes(axis, start, block_index or start)

    def _lanes(self, axis: int, start: str, scalar: str = "") -> None:
        """The index along an axis in a block that starts there; scalar: that of a block of one."""
        tile, block = self.nest.axes[axis], self.tiles.blocks[axis]
        self.scope.starts[axis] = start
        text = scalar
        if block > 1:
            lanes = f"tl.arange(0, {block})"
            text = lanes if start == "0" else f"{start} + {lanes}"
        # Loops begin with a wide block, and so do axes of the grid, but where one block holds all.
        whole = tile.role is Role.GRID and self.tiles.count(axis) == 1
        if text != "0" and (whole or tile.role is Role.HELD):
            text = self._wide(text)
        self.scope.line(f"{tile.name} = {text}", f"{tile.role.value} axis of {tile.extent}")
        if self.tiles.is_ragged(axis):
            self.scope.line(f"{tile.name}_in = {tile.name} < {self.number(tile.extent)}")

    def _wide(self, index: str) -> str:
        """An index in 64 bits where a tensor has so many elements; the interpreter counts turns in
        Python's integers, which have no `to`."""
        return f"tl.cast({index}, tl.int64)" if self.tiles.wide else index

    # --- statements ---

    def _value(self, value: Value) -> None:
        scope = self.scope
        match value.kind:
            case Fold() as fold:
                folds.step(scope, value, fold)
                return
            case Load() as load:
                self._load(value, load)
                return
            case Compute() as compute:
                dims = scope.union(value.reads)
                texts = {source: scope.at(source, dims) for source in value.reads}
                if value.id in scope.apart:
                    compute = replace(compute, accuracy=Accuracy.ROUNDED)
                text = expression(compute, texts, scope.dtypes, self.tiles.numbers)
                text = convert(text, compute.result, value.dtype)
                if scope.interpreted and value.dtype == "bool" and not dims:
                    # The interpreter spreads a comparison of scalars as their type, not as bool.
                    text = f"tl.full([], True, tl.int1) & ({text})"
            case Index(start=start, step=step):
                dims = self.tiles.dims(self.nest.forms[value.id].axes)
                form = self.tiles.affine(self.nest.forms[value.id], dims)
                text = f"({form})"
                if _is_long(value.kind, self._extent(value.id)):
                    text = f"tl.cast({form}, tl.int64)"
                text += f" * {self.number(step)}" if step != 1 else ""
                text += f" + {self.number(start)}" if start != 0 else ""
                if dims:
                    text = f"({text}).to({TRITON_DTYPE[value.dtype]})"
            case Literal(number=number):
                dims, text = (), literal(number, value.dtype, self.tiles.numbers)
            case Choice() as choice:
                pieces = scope.union(tuple(piece for piece, _, _ in choice.pieces))
                index = self.nest.forms[value.id].axes if len(choice.pieces) > 1 else ()
                dims = self.tiles.dims([*pieces, *index])
                text = self._choice(value, choice, dims)
        scope.bind(value.id, text, dims)

    def _extent(self, value: int) -> int:
        """Elements of the axes that an index runs over."""
        return math.prod(self.nest.axes[a].extent for a in self.nest.forms[value].axes)

    def _load(self, value: Value, load: Load) -> None:
        access, scope = self.nest.loads[value.id], self.scope
        dims = self.tiles.dims(access.axes)
        multiplied = any(value.id in self.nest.values[c].reads for c in scope.dots)
        text = self._loaded(load, access, dims, multiplied)
        if self.tiles.is_operand_only(value.id):
            scope.raw[value.id] = f"v{value.id}"
            block = scope.described("in", load.input, access, dims)
            if block is not None:
                rows_first = self._is_rows_first(access, dims)
                text = block.format("load", "")
                text = text if rows_first else f"tl.trans({text})"
        elif multiplied:
            scope.assign(value.id, f"v{value.id}_raw", text, dims)
            scope.raw[value.id] = text = f"v{value.id}_raw"
            if self.staged and self.tiles.is_loaded_twice(value.id, self.config.num_warps):
                # One tile for the product and for others would be overwritten (see `races`). With
                # a cache modifier, though it says what is so anyway, the two loads stay two.
                text = self._loaded(load, access, dims, multiplied, ', cache_modifier=".ca"')
            text = convert(text, load.dtype, value.dtype)
        else:
            text = convert(text, load.dtype, value.dtype)
        scope.bind(value.id, text, dims)

    def _loaded(
        self, load: Load, access: Access, dims: Dims, multiplied: bool, again: str = ""
    ) -> str:
        """multiplied: what is padded must be 0, for a matrix product sums it up. again: how it is
        loaded for the second time."""
        options = again
        masks = self.tiles.masks(access, dims)
        terms, inside = self.scope.places(access, dims)
        lost = bool(inside) and is_float(load.dtype)
        if masks or inside:
            other = 'float("nan")' if lost and not multiplied else "0"
            options += f", mask={_all([*masks, *inside])}, other={other}"
        hint = "" if again else self._hint(load.input, access)
        if hint and self.config.eviction in (hint, "both"):
            options += f', eviction_policy="evict_{hint}"'
        pointer = self.tiles.pointer(f"in{load.input}", access, dims, terms)
        text = f"tl.load({pointer}{options})"
        if lost and multiplied:
            outside = _all([*masks, f"(({_all(inside)}) == 0)"])
            return f'tl.where({outside}, float("nan"), {text})'
        return text

    @staticmethod
    def _is_rows_first(access: Access, dims: Dims) -> bool:
        """Whether a descriptor's block has its dimensions in the order of the axes."""
        return any(t.axis == dims[-1] and t.scale == 1 for t in access.offset.terms)

    def _hint(self, index: int, access: Access) -> str:
        """ "first" for what nothing reads again. "last" for what other blocks, a later pass or a
        later kernel read, and for reads of the same input again at another offset. "" for the
        first of those reads."""
        self.reads[index] -= 1
        # A held axis that the input lacks reads nothing again.
        walked = math.prod(
            axis.extent
            for number, axis in enumerate(self.nest.axes)
            if number in access.axes or axis.role is not Role.HELD
        )
        shared = access.type.nbytes < walked * itemsize(access.type.dtype)
        if shared or index in self.around.again:
            return "last"
        passes = len(list(self.nest.loops()))
        if self.readers[index] == 1 or passes > 1:
            return "last" if self.reads[index] > 0 else "first"
        return "last" if access.guards else ""

    def _choice(self, value: Value, choice: Choice, dims: Dims) -> str:
        index = self.tiles.affine(self.nest.forms[value.id], dims)
        *rest, last = choice.pieces
        text = convert(self.scope.at(last[0], dims), self.scope.dtypes[last[0]], value.dtype)
        for piece, _, high in reversed(rest):
            own = convert(self.scope.at(piece, dims), self.scope.dtypes[piece], value.dtype)
            text = f"tl.where({index} < {self.number(high)}, {own}, {text})"
        return text

    def _loop(self, loop: Loop) -> None:
        if loop.carries or self.config.widen == 1:
            self._walk(loop)
            return
        narrow = self.tiles
        self.scope.tiles = self.tiles = narrow.widened(loop.axis, self.config.widen)
        self._walk(loop)
        self.scope.tiles = self.tiles = narrow

    def _walk(self, loop: Loop) -> None:
        axis = self.nest.axes[loop.axis]
        again = self.loops[loop.axis]
        counter = f"{axis.name}_block{self.loops.total()}"
        carried = folds.Carried(self.scope, loop, counter)
        carried.begin()
        self.loops[loop.axis] += 1
        innermost = not any(isinstance(item, Loop) for item in loop.body)
        self.staged = innermost and self.config.num_stages > 1
        stages = f", num_stages={self.config.num_stages}" if self.staged else ""
        stages += ", flatten=True" if not innermost and self.config.flatten else ""
        first, last = self._range(loop.axis)
        self.scope.line(f"for {counter} in tl.range({first}, {last}{stages}):")
        with self.scope.indented():
            # A second walk begins where the first one ended: the caches have that still.
            back = again % 2 == 1 and not carried.counts_turns
            end = str(int(last) - 1) if last.isdigit() else f"{last} - 1"
            start = "" if first == "0" else f"{first} + "
            self._index(loop.axis, f"({start}{end} - {counter})" if back else counter)
            self._body(loop.body, carried)
        self.staged = False
        carried.end()

    def _range(self, axis: int) -> tuple[str, str]:
        """First and last block of a loop: all of them, or those that masks do not empty."""
        first, last = "0", self.number(self.tiles.count(axis))
        name, block = self.nest.axes[axis].name, self.tiles.blocks[axis]
        for limit in self.nest.limits.get(axis, ()):
            parts = [self._least(term) for term in limit.rest.terms]
            base = limit.rest.base
            rest = " + ".join([*parts, self.number(base)] if base else parts or ["0"])
            if limit.scale > 0:
                text = f"tl.minimum({last}, tl.maximum(-({rest}), 0) // {block} + 1)"
                last = f"{name}_last"
                self.scope.line(f"{last} = {text}", "masks empty the blocks from here on")
            else:
                text = f"tl.maximum({first}, tl.maximum({rest}, 0) // {block})"
                first = f"{name}_first"
                self.scope.line(f"{first} = {text}", "masks empty the blocks before")
        return first, last

    def _least(self, term: Term) -> str:
        """The least value of a term of a linear form in this tile."""
        axis, block = self.nest.axes[term.axis], self.tiles.blocks[term.axis]
        start = f"({self.scope.starts[term.axis]})"
        scale = self.number(term.scale) if term.scale != 1 else ""
        if term.scale < 0:
            end = f"tl.minimum({start} + {block - 1}, {self.number(axis.extent - 1)})"
            return f"{end} * {scale}" if block > 1 else f"{start} * {scale}"
        return f"{start} * {scale}" if scale else start

    def _store(self, output: int) -> None:
        out, access, scope = self.nest.outputs[output], self.nest.stores[output], self.scope
        dims = self.tiles.dims([*access.axes, *scope.dims[out.value]])
        value = scope.at(out.value, dims)
        text = convert(value, scope.dtypes[out.value], out.type.dtype)
        if scope.interpreted and out.type.dtype == "bfloat16":
            # The interpreter cuts the low bits off where the GPU rounds to nearest.
            text = f"libdevice.rounded({value}).to(tl.bfloat16)"
        pointer = self.tiles.pointer(f"out{output}", access, dims)
        masks = self.tiles.masks(access, dims)
        for axis in self.nest.with_role(Role.GRID):
            if axis not in access.axes and self.tiles.count(axis) > 1:
                # Blocks along an axis that the output lacks all hold the same; one writes it.
                masks.append(f"({self.nest.axes[axis].name}_block == 0)")
        whole = scope.dims[out.value] == dims and self._is_whole(access, dims)
        block = scope.described("out", output, access, dims) if whole else None
        if block is not None:
            text = text if self._is_rows_first(access, dims) else f"tl.trans({text})"
            scope.line(block.format("store", f", {text}"))
            return
        options = f", mask={_all(masks)}" if masks else ""
        if self.config.eviction in ("first", "both"):
            options += ', eviction_policy="evict_first"'
        scope.line(f"tl.store({pointer}, {text}{options})")

    def _is_whole(self, access: Access, dims: Dims) -> bool:
        """Whether every block of the grid writes a place of its own."""
        grid = (a for a in self.nest.with_role(Role.GRID) if self.tiles.count(a) > 1)
        return all(a in access.axes for a in grid) and set(dims) <= access.axes


def _is_long(index: Index, size: int) -> bool:
    """Whether an index takes more than 32 bits."""
    last = index.start + index.step * (size - 1)
    return max(abs(index.start), abs(last), abs(index.step)) > INT32_LIMIT


def _all(masks: list[str]) -> str:
    return " & ".join(masks)
