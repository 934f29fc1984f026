"""From a nest and a config to the text of one Triton kernel."""

from __future__ import annotations

import math
import re

from ..config import Config
from ..graph import itemsize
from ..nest import Access, Loop, Nest, Role, Step, Store
from ..values import Choice, Compute, Fold, Index, Literal, Load, Value
from .access import Tiles
from .body import TRITON_DTYPE, convert, expression, identity, literal
from .intrinsics import GPU, STAND_INS
from .source import Buffer, KernelSource

_HEADER = "import triton\nimport triton.language as tl\n"
_LIBDEVICE = "from triton.language.extra import libdevice\n"
_INTERPRETED = f"import {__name__.rpartition('.')[0]}.interpreted as libdevice\n"


def emit(nest: Nest, config: Config, name: str, *, interpreted: bool = False) -> KernelSource:
    """One kernel. Raises Refused when the config does not fit the nest."""
    emitter = _Emitter(nest, config, interpreted)
    body = emitter.kernel()
    inputs = sorted({v.kind.input for v in nest.values if isinstance(v.kind, Load)})
    loaded = {v.kind.input: v.kind.dtype for v in nest.values if isinstance(v.kind, Load)}
    buffers = [Buffer("in", i, loaded[i]) for i in inputs]
    buffers += [Buffer("out", o.index, o.type.dtype) for o in nest.outputs]
    arguments = ", ".join(f"{b.kind}{b.index}" for b in buffers)
    kernel = f"@triton.jit\ndef {name}({arguments}):\n" + "\n".join(body) + "\n"
    return KernelSource(
        name,
        _module(kernel, interpreted),
        tuple(buffers),
        emitter.grid,
        config.num_warps,
        config.num_stages,
    )


def _module(kernel: str, interpreted: bool) -> str:
    called = [name for name in GPU if re.search(rf"(?<![\w.]){name}\(", kernel)]
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

    def __init__(self, nest: Nest, config: Config, interpreted: bool) -> None:
        self.nest = nest
        self.interpreted = interpreted
        self.config = config
        self.tiles = Tiles.of(nest, config)
        self.names: dict[int, str] = {}
        self.dtypes = {v.id: v.dtype for v in nest.values}
        # Whether a value is a block (perhaps with every size 1) or a scalar in Triton's eyes.
        self.is_block: dict[int, bool] = {}
        self.lines: list[str] = []
        self.indent = 1
        self.passes = 0
        self.grid = 1
        for axis in nest.with_role(Role.GRID):
            self.grid *= self.tiles.count(axis)

    def kernel(self) -> list[str]:
        self._grid()
        for axis in self.nest.with_role(Role.HELD):
            self._index(axis, "")
        for step in self.nest.body:
            match step:
                case Loop():
                    self._loop(step)
                case Step(value=value):
                    self._value(self.nest.values[value])
                case Store(output=output):
                    self._store(output)
        return self.lines

    def _line(self, text: str, comment: str = "") -> None:
        note = f"  # {comment}" if comment else ""
        self.lines.append("    " * self.indent + text + note)

    # --- axes ---

    def _grid(self) -> None:
        """Program id to block indices: the innermost axis changes fastest."""
        axes = self.nest.with_role(Role.GRID)
        self._line("pid = tl.program_id(0)" + ".to(tl.int64)" * self.tiles.wide)
        rest = "pid"
        for position, axis in reversed(list(enumerate(axes))):
            count, name = self.tiles.count(axis), self.nest.axes[axis].name
            block = f"({rest}) % {count}" if position else rest
            self._line(f"{name}_block = {block if count > 1 else '0'}")
            self._index(axis, f"{name}_block")
            rest = rest if count == 1 else f"{rest} // {count}"

    def _index(self, axis: int, block_index: str) -> None:
        """The index along an axis, as a scalar or as a vector in its dimension."""
        tile, block = self.nest.axes[axis], self.tiles.blocks[axis]
        offset = f"{block_index} * {block}" if block > 1 else block_index
        if block > 1:
            spread = self.tiles.spread(axis)
            lanes = f"tl.arange(0, {block}){spread}"
            text = f"{offset} + {lanes}" if block_index else lanes
        else:
            text = offset or "0"
        self._line(f"{tile.name} = {text}", f"{tile.role.value} axis of {tile.extent}")
        if self.tiles.is_ragged(axis):
            self._line(f"{tile.name}_in = {tile.name} < {tile.extent}")

    # --- statements ---

    def _value(self, value: Value) -> None:
        name = self.names[value.id] = f"v{value.id}"
        reads_block = any(self.is_block[r] for r in value.reads)
        live = self.nest.live[value.id] & set(self.tiles.dims)
        self.is_block[value.id] = reads_block or bool(live)
        match value.kind:
            case Load(dtype=dtype):
                access = self.nest.loads[value.id]
                text = convert(self._load(value.kind.input, access), dtype, value.dtype)
            case Compute() as compute:
                text = expression(compute, self.names, self.dtypes)
                text = convert(text, compute.result, value.dtype)
            case Fold() as fold:
                text = self._fold(value, fold)
            case Index(start=start, step=step):
                form = self.tiles.affine(self.nest.forms[value.id])
                text = f"({form})" + f" * {step}" * (step != 1) + f" + {start}" * (start != 0)
                if live:
                    text = f"({text}).to({TRITON_DTYPE[value.dtype]})"
            case Literal(number=number):
                text = literal(number, value.dtype)
            case Choice() as choice:
                text = self._choice(value, choice)
        shape = self.tiles.shape(self.nest.live[value.id]) if self.is_block[value.id] else "scalar"
        self._line(f"{name} = {text}", f"{value.origin} {shape}")

    def _load(self, index: int, access: Access) -> str:
        options = ""
        if masks := self.tiles.masks(access):
            options += f", mask={_all(masks)}, other=0"
        hint = self._hint(index, access)
        if hint and hint == self.config.eviction:
            options += f', eviction_policy="evict_{hint}"'
        return f"tl.load({self.tiles.pointer(f'in{index}', access)}{options})"

    def _hint(self, index: int, access: Access) -> str:
        """ "first" for what nothing reads again: no other block or pass, no other access to the
        same input. "last" for what other blocks read, and for reads of the same input again at
        another offset. "" for the first of those reads."""
        loops = sum(isinstance(step, Loop) for step in self.nest.body)
        walked = math.prod(axis.extent for axis in self.nest.axes)
        if loops > 1 or access.type.nbytes < walked * itemsize(access.type.dtype):
            return "last"
        kinds = [v.kind for v in self.nest.values]
        readers = sum(isinstance(kind, Load) and kind.input == index for kind in kinds)
        if readers == 1:
            return "first"
        return "last" if access.guards else ""

    def _choice(self, value: Value, choice: Choice) -> str:
        index = self.tiles.affine(self.nest.forms[value.id])
        *rest, last = choice.pieces
        text = convert(self.names[last[0]], self.dtypes[last[0]], value.dtype)
        for piece, _, high in reversed(rest):
            own = convert(self.names[piece], self.dtypes[piece], value.dtype)
            text = f"tl.where({index} < {high}, {own}, {text})"
        return text

    def _fold(self, value: Value, fold: Fold) -> str:
        """A fold whose axes all lie in the tile: one reduction per dimension."""
        source = self._foldable(value, fold)
        axes = self.nest.reduced(fold)
        dims = [self.tiles.dim(a) for a in axes if self.tiles.blocks[a] > 1]
        self.is_block[value.id] = self.is_block[fold.source] or bool(dims)
        return self._finish(value, fold, source, dims)

    def _finish(self, value: Value, fold: Fold, text: str, dims: list[int]) -> str:
        """Reduce along dimensions, then make the result what the value is."""
        working = _fold_dtype(value)
        for dim in dims:
            text = fold.monoid.reduce.format(x=text, axis=dim)
            if working not in ("float32", "float64", "int64"):
                text = f"({text}).to({TRITON_DTYPE[working]})"
        if fold.mean:
            count = 1
            for axis in self.nest.reduced(fold):
                count *= self.nest.axes[axis].extent
            text = f"{text} * {1 / count!r}" if count & (count - 1) == 0 else f"{text} / {count}.0"
        return convert(text, working, value.dtype)

    def _foldable(self, value: Value, fold: Fold) -> str:
        """The fold's source at full shape, with the identity where the axis is padded."""
        working = _fold_dtype(value)
        text = convert(self.names[fold.source], self.dtypes[fold.source], working)
        axes = self.nest.reduced(fold)
        live = self.nest.live[fold.source]
        missing = [a for a in axes if a in self.tiles.dims and a not in live]
        if missing:
            shape = self.tiles.shape(live | set(axes))
            text = (
                f"tl.broadcast_to({text}, {shape})"
                if self.is_block[fold.source]
                else (f"tl.full({shape}, {text}, {TRITON_DTYPE[working]})")
            )
        masks = [f"{self.nest.axes[a].name}_in" for a in axes if self.tiles.is_ragged(a)]
        if masks:
            neutral = identity(dict(fold.monoid.identity), working)
            text = f"tl.where({_all(masks)}, {text}, {neutral})"
        return text

    def _loop(self, loop: Loop) -> None:
        axis = self.nest.axes[loop.axis]
        carries = [self.nest.values[c] for c in loop.carries]
        for value in carries:
            assert isinstance(value.kind, Fold)
            working = _fold_dtype(value)
            live = self.nest.live[value.kind.source] | set(self.nest.reduced(value.kind))
            neutral = identity(dict(value.kind.monoid.identity), working)
            full = f"tl.full({self.tiles.shape(live)}, {neutral}, {TRITON_DTYPE[working]})"
            self._line(f"v{value.id}_sofar = {full}", f"{value.origin}, before its reduction")
        stages = f", num_stages={self.config.num_stages}" if self.config.num_stages > 1 else ""
        counter = f"{axis.name}_block{self.passes}"
        self._line(f"for {counter} in tl.range(0, {self.tiles.count(loop.axis)}{stages}):")
        self.passes += 1
        self.indent += 1
        self._index(loop.axis, counter)
        for step in loop.body:
            if isinstance(step, Step):
                self._value(self.nest.values[step.value])
            else:
                self._store(step.output)
        for value in carries:
            assert isinstance(value.kind, Fold)
            name = f"v{value.id}_sofar"
            item = self._foldable(value, value.kind)
            self._line(f"{name} = {value.kind.monoid.combine.format(a=name, b=item)}")
        self.indent -= 1
        for value in carries:
            assert isinstance(value.kind, Fold)
            self.names[value.id] = f"v{value.id}"
            self.is_block[value.id] = True
            reduced = self.nest.reduced(value.kind)
            dims = [self.tiles.dim(a) for a in reduced if self.tiles.blocks[a] > 1]
            text = self._finish(value, value.kind, f"v{value.id}_sofar", dims)
            self._line(f"v{value.id} = {text}", value.origin)

    def _store(self, output: int) -> None:
        out, access = self.nest.outputs[output], self.nest.stores[output]
        text = convert(self.names[out.value], self.dtypes[out.value], out.type.dtype)
        if self.interpreted and out.type.dtype == "bfloat16":
            # The interpreter cuts the low bits off where the GPU rounds to nearest.
            text = f"libdevice.rounded({self.names[out.value]}).to(tl.bfloat16)"
        pointer = self.tiles.pointer(f"out{output}", access)
        if self.is_block[out.value] and not access.axes & set(self.tiles.dims):
            ones = ", ".join("1" for _ in self.tiles.dims)
            pointer += f" + tl.zeros([{ones}], tl.int32)"
        masks = self.tiles.masks(access)
        for axis in self.nest.with_role(Role.GRID):
            if axis not in access.axes and self.tiles.count(axis) > 1:
                # Blocks along an axis that the output lacks all hold the same; one writes it.
                masks.append(f"({self.nest.axes[axis].name}_block == 0)")
        options = f", mask={_all(masks)}" if masks else ""
        if self.config.eviction == "first":
            options += ', eviction_policy="evict_first"'
        self._line(f"tl.store({pointer}, {text}{options})")


def _all(masks: list[str]) -> str:
    return " & ".join(masks)


def _fold_dtype(value: Value) -> str:
    """Bools fold as int32; everything else as what the result is in registers."""
    return "int32" if value.dtype == "bool" else value.dtype
