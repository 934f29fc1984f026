"""From a nest and a config to the text of one Triton kernel."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace

from ..config import Config
from ..nests.nest import Nest
from ..tiles.instructions import Prefetch, QuadSum, TileStore, loads_of
from ..tiles.passes.sum_in_quads import sum_in_quads
from ..tiles.tile import ALONE, Around, Pass, tile
from ..values import values
from .bit_fields import fields
from .interpreter import InterpreterPrinter
from .intrinsics import GPU, STAND_INS
from .quad_sums import functions as quad_sums
from .row_copies import copied_rows, row_copies
from .scope import Scope
from .source import Buffer, KernelSource
from .triton import TritonPrinter
from .vector_copies import vector_copies

_CALLED = re.compile(r"(?<![\w.])[A-Za-z_]\w*(?=[(),])")
"""What is called in a text, or given to a call."""

_HEADER = "import triton\nimport triton.language as tl\n"
_LIBDEVICE = "from triton.language.extra import libdevice\n"
_NUMPY_FUNCTIONS = f"import {__name__.rpartition('.')[0]}.numpy_functions as libdevice\n"


def emit(
    nest: Nest,
    config: Config,
    name: str,
    *,
    interpreted: bool = False,
    around: Around = ALONE,
    without: Collection[Pass] = (),
) -> KernelSource:
    """One kernel. without: passes that are left out. Raises Refused when the config does not fit
    the nest."""
    kind = InterpreterPrinter if interpreted else TritonPrinter
    printer = kind(tile(nest, config, around, (*kind.left_out, *without)))
    body = printer.kernel()
    plain = None
    if printer.descriptors:
        pointers = replace(config, access="pointer")
        plain = emit(nest, pointers, name, interpreted=interpreted, around=around)
    elif any(isinstance(each, QuadSum) for each in printer.program.body):
        plain = emit(nest, config, name, around=around, without=(sum_in_quads,))
    buffers = _buffers(printer)
    scalars = printer.numbers.used("\n".join(body))
    arguments = ", ".join([*buffers, *scalars])
    kernel = f"@triton.jit\ndef {name}({arguments}):\n" + "\n".join(body) + "\n"
    kernel = "".join(f"{function}\n\n\n" for function in printer.functions.values()) + kernel
    source = KernelSource(
        name,
        _module(kernel, interpreted),
        tuple(buffers.values()),
        printer.grid.programs,
        config.num_warps,
        config.num_stages,
        plain,
        tuple(scalars.values()),
        dependent=around.later and not interpreted,
    )
    if copied_rows(printer.program):
        before = row_copies(printer.program, source)
    elif nest.laid:
        before = vector_copies(printer.program, source)
    else:
        return source
    return replace(source, before=before, dependent=not interpreted)


def _buffers(scope: Scope) -> dict[str, Buffer]:
    """The kernel's arguments by name: pointers to what is accessed by pointer, then descriptors."""
    nest = scope.nest
    loads = [v.kind for v in nest.values if isinstance(v.kind, values.Load)]
    inputs = sorted({load.input: load.dtype for load in loads}.items())
    found = {f"in{i}": Buffer("in", i, dtype) for i, dtype in inputs if i not in nest.laid}
    found |= {f"row{i}": Buffer("row", i, laid.dtype) for i, laid in nest.laid.items()}
    copied = copied_rows(scope.program)
    found |= {f"row{i}": Buffer("row", i, load.access.type.dtype) for i, load in copied.items()}
    found |= {f"out{o.result}": Buffer("out", o.result, o.type.dtype) for o in nest.outputs}
    if scope.descriptors:
        every = [*scope.program.head, *(each for each, _ in scope.program.walk())]
        pointers = {f"in{load.input}" for i in every for load in loads_of(i) if load.via is None}
        pointers |= {f"in{i.input}" for i in every if isinstance(i, Prefetch)}
        pointers |= {
            f"out{nest.outputs[i.output].result}"
            for i in every
            if isinstance(i, TileStore) and i.via is None
        }
        found = {name: buffer for name, buffer in found.items() if name in pointers}
    return found | {name: buffer for buffer, name in scope.descriptors.items()}


def called(kernel: str, interpreted: bool) -> list[str]:
    """The functions of `GPU` that a text needs, those that they call among them."""
    found: set[str] = set()
    waiting = [kernel]
    while waiting:
        text = waiting.pop()
        more = {name for name in _CALLED.findall(text) if name in GPU} - found
        found |= more
        waiting += [GPU[name] for name in more if not (interpreted and name in STAND_INS)]
    return [name for name in GPU if name in found]


def _module(kernel: str, interpreted: bool) -> str:
    needed = called(kernel, interpreted)
    imports = _HEADER
    if interpreted:
        stand_ins = [name for name in needed if name in STAND_INS]
        needed = [name for name in needed if name not in STAND_INS]
        imports += _NUMPY_FUNCTIONS + "".join(f"{n} = libdevice.{n}\n" for n in stand_ins)
    texts = [*(GPU[name] for name in needed), *fields(kernel).values(), *quad_sums(kernel).values()]
    helpers = "".join(text + "\n" for text in texts)
    if not interpreted and "libdevice." in kernel + helpers:
        imports += _LIBDEVICE
    return f"{imports}\n{helpers}\n{kernel}"
