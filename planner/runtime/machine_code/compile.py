"""Kernel text to machine code, with or without a GPU.

The text is always freshly generated, never read from a store. Triton reads a kernel's source
through `inspect`, so each text is registered in `linecache` under a name made from its digest.
"""

from __future__ import annotations

import hashlib
import json
import linecache
import logging
import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any
from weakref import WeakValueDictionary

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler.errors import CompilationError
from triton.runtime.errors import OutOfResources, PTXASError
from triton.runtime.interpreter import InterpretedFunction

from ...codegen.source import (
    AWAIT_LAST,
    BEGIN_NEXT,
    DOT,
    LOOP,
    REDUCTIONS,
    SCAN,
    TF32,
    Buffer,
    KernelSource,
    loads_early,
)
from ...costs.registers import most
from ...errors import FusionplanError, summary_of
from ...graph.dtypes import SIGNATURE
from ..phases import phase
from . import compiled_before, ready
from .kept_operands import overwritten_operand, renewed, shared_by_turns
from .kernel_cache import is_whole, keep_elsewhere, unwritable
from .left_operands import misread
from .mending import ONE_AT_A_TIME, Mark, mended
from .pipeline_races import overwritten
from .quad_lanes import misplaced
from .residency import RegisterLimit, fewer_registers
from .resources import KernelResources, ToolFailed, listing, used_by
from .thread_locality import passes_for
from .wgmma_waits import awaited

log = logging.getLogger(__name__)

_DEPENDENT = 90
"""The compute capability from which kernels are launched before the last one has ended."""

_SPILLS = 128
"""Bytes a thread that are much. Of 3,857 kernels timed on H200s the compiler spilled more with
registers to spare in 26, and never less than 512 in those."""

_LONE = 132
"""Programs of which each has an SM of an H100 for itself. Of 23 kernels of so few timed on one 8
took 0.2 to 0.86 of the time when ptxas was told, and no other but one of 32 ms more than 1.04; of
71 of more programs 8 took 0.72 to 0.96, and others up to 1.4."""


class CompileFailed(FusionplanError):
    """Triton, LLVM or ptxas would not compile the kernel, or the device cannot hold it. transient:
    for want of memory or disk, or by a setting, which says nothing of the kernel."""

    def __init__(self, text: str, transient: bool = False) -> None:
        super().__init__(text)
        self.transient = transient


@dataclass(frozen=True, slots=True)
class Target:
    """The architecture to compile for; the default is Hopper (H100, H200)."""

    backend: str = "cuda"
    capability: int = 90
    warp_size: int = 32


@dataclass(frozen=True, slots=True)
class Compiled:
    """`kernel` is Triton's CompiledKernel. aligned: it may only be given 16-byte aligned
    pointers (one that takes descriptors always)."""

    source: KernelSource
    kernel: Any
    target: Target
    aligned: bool

    @property
    def dependent(self) -> bool:
        """Whether a launch asks for the kernel to begin while the one before it ends."""
        return self.source.dependent and self.target.capability >= _DEPENDENT


def interpreted() -> bool:
    """Whether Triton's interpreter runs the kernels: TRITON_INTERPRET=1 when triton was
    imported. Then nothing compiles, and kernels take CPU tensors."""
    # A function decorated by the library itself tells what held when it was imported.
    return isinstance(triton.language.cdiv, InterpretedFunction)


def active_target() -> Target:
    """The current CUDA device's target; Hopper when there is no device."""
    import torch

    if not torch.cuda.is_available():
        return Target()
    major, minor = torch.cuda.get_device_capability()
    return Target(capability=major * 10 + minor)


_COMMENT = re.compile(r"[ ]+# .*$", re.MULTILINE)
"""Comments name the nodes of one layer; without them the kernels of equal layers are one text,
which Triton compiles once."""


@lru_cache(maxsize=4096)
def _module(text: str) -> dict[str, Any]:
    name = f"<fusionplan {hashlib.sha256(text.encode()).hexdigest()[:16]}>"
    # No modification time: linecache then never drops the entry as outdated.
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    module: dict[str, Any] = {"__name__": "fusionplan_kernel", "__file__": name}
    exec(compile(text, name, "exec"), module)
    return module


def jit_function(source: KernelSource) -> Any:
    """The kernel as `triton.jit` made it (in the interpreter: callable on CPU tensors)."""
    try:
        return _module(_COMMENT.sub("", source.text))[source.name]
    except (SyntaxError, KeyError, NameError) as error:
        raise CompileFailed(f"kernel {source.name}: its text is no module: {error}") from error


def _argument(buffer: Buffer) -> str:
    """Triton's name for the argument's type. Raises KeyError for a type that it has not."""
    element = SIGNATURE[buffer.dtype]
    if buffer.descriptor is None:
        return f"*{element}"
    if element == "i1":
        raise KeyError("a descriptor of bool")
    return f"tensordesc<{element}[{', '.join(map(str, buffer.descriptor.block))}]>"


def _divisible(source: KernelSource, aligned: bool) -> dict[tuple[int], list[list[object]]]:
    """What is a multiple of 16: aligned pointers, and numbers said to be. A descriptor is an
    opaque value: of it nothing is said."""
    found = [i for i, b in enumerate(source.buffers) if aligned and b.descriptor is None]
    found += [i for i, s in enumerate(source.scalars, len(source.buffers)) if s.aligned]
    return {(i,): [["tt.divisibility", 16]] for i in found}


_KEPT: OrderedDict[str, Any] = OrderedDict()
"""Triton's kernels that take sizes as arguments: they are the same for other sizes."""
_MOST_KEPT = 512
_IN_USE: WeakValueDictionary[str, Any] = WeakValueDictionary()
"""All of Triton's kernels that somebody holds: equal layers of a model share theirs."""
_COUNT = [0]


def compilations() -> int:
    """The number of kernels that take sizes as arguments and that this process has compiled; in
    Triton's interpreter, the number of texts of any kernel that it has read."""
    return _module.cache_info().misses if interpreted() else _COUNT[0]


def compile_kernel(
    source: KernelSource, target: Target | None = None, aligned: bool = True
) -> Compiled:
    """Compile for `target` (the current device when None), unless that was done before: for the
    same text and types of arguments the machine code is the same. Raises CompileFailed."""
    with phase("compile"):
        return Compiled(
            source, kernel_of(source, target, aligned), target or active_target(), aligned
        )


def kernel_of(source: KernelSource, target: Target | None = None, aligned: bool = True) -> Any:
    """Triton's kernel, as `compile_kernel` gives it."""
    wanted = target or active_target()
    key = code_key_of(source, wanted, aligned)
    # A kernel that is loaded belongs to one device.
    same = key if target is not None else f"{key} {_current_device()}"
    kernel = _KEPT.pop(same, None) or _IN_USE.get(same)
    if kernel is None:
        kernel = _ready(source, wanted, aligned, key)
        if kernel is None:
            kernel = _compiled_first(source, wanted, aligned, key)
        _COUNT[0] += bool(source.scalars)
        _IN_USE[same] = kernel
    if source.scalars:
        _KEPT[same] = kernel
        if len(_KEPT) > _MOST_KEPT:
            _KEPT.popitem(last=False)
    return kernel


def _compiled_first(source: KernelSource, wanted: Target, aligned: bool, key: str) -> Any:
    """The kernel as it is compiled now, and remembered; so is that it cannot be."""
    refused = f"{key} refused"
    known = compiled_before.told(refused)
    if isinstance(known, dict) and isinstance(known.get("why"), str):
        raise CompileFailed(known["why"])
    try:
        kernel = _compiled(source, wanted, aligned)
    except CompileFailed as error:
        if not error.transient:
            compiled_before.tell(refused, {"why": str(error)})
        raise
    compiled_before.keep(key, kernel)
    return kernel


def code_key_of(source: KernelSource, target: Target, aligned: bool) -> str:
    """The key of the kernel's machine code; see `ready`."""
    buffers = tuple((b.dtype, b.descriptor and b.descriptor.block) for b in source.buffers)
    scalars = tuple((s.kind, s.aligned) for s in source.scalars)
    numbers = source.num_warps, source.num_stages, source.contracts, aligned, _allowed(source)
    made_for = target.backend, target.capability, target.warp_size
    text = _COMMENT.sub("", source.text)
    return ready.code_key((text, source.name, buffers, scalars, numbers, made_for))


def machine_code(compiled: Compiled) -> ready.MachineCode:
    """The kernel's machine code, for processes to come."""
    key = code_key_of(compiled.source, compiled.target, compiled.aligned)
    return ready.taken(key, compiled.source.name, compiled.kernel)


def _current_device() -> int:
    import torch

    return torch.cuda.current_device() if torch.cuda.is_available() else -1


def _ready(source: KernelSource, wanted: Target, aligned: bool, key: str) -> Any:
    """The kernel, if its machine code is at hand."""

    def parsed() -> Any:
        return _parsed(source, wanted, aligned)[0]

    found = ready.find(key)
    if found is not None:
        try:
            return ready.built(found, parsed())
        except (OSError, ValueError) as error:
            log.warning("kernel %s is not taken from its bundle: %s", source.name, error)
    return compiled_before.find(key, parsed)


def _compiled(source: KernelSource, wanted: Target, aligned: bool) -> Any:
    if interpreted():
        why = "TRITON_INTERPRET is set: Triton compiles nothing in this process"
        raise CompileFailed(why, transient=True)
    registers = _allowed(source)
    kernel = _built(source, wanted, aligned, registers)
    made, ptx = kernel.asm.get("ttgir"), kernel.asm.get("ptx")
    if made is None or (ptx is None and wanted.backend == "cuda"):
        raise CompileFailed(
            f"kernel {source.name}: nothing to check it by: unset TRITON_STORE_BINARY_ONLY, and "
            "empty Triton's cache"
        )
    if misplaced(made) is not None and source.plain is not None:
        return _compiled(source.plain, wanted, aligned)
    wrong = overwritten(made) or misplaced(made)
    told = registers is not None or wanted.backend != "cuda"
    if wrong is None and not told:
        kernel, registers = _told(source, kernel, wanted, aligned)
        ptx = kernel.asm["ptx"]
    if wrong is None and ptx is not None:
        kernel, wrong = _corrected(
            source, kernel, lambda other: _built(other, wanted, aligned, registers)
        )
    if wrong is None and ptx is not None and ".tf32" in ptx and TF32 not in source.text:
        wrong = "it computes a sum of products of float32 in TF32"
    if wrong is not None:
        raise CompileFailed(f"kernel {source.name}: Triton compiled it incorrectly: {wrong}")
    return kernel


def _corrected(
    source: KernelSource, kernel: Any, build: Callable[[KernelSource], Any]
) -> tuple[Any, str | None]:
    """The kernel, built of a mended text where ptxas makes wrong machine code of Triton's; and what
    is wrong with it all the same."""
    ptx = kernel.asm["ptx"]
    if _awaited(source, ptx) != ptx:
        with mended(Mark.WAITS, awaited):
            kernel = build(replace(source, text=Mark.WAITS.on(source.text)))
        ptx = kernel.asm["ptx"]
        if _awaited(source, ptx) != ptx:
            return kernel, "it writes registers that a product still reads"
    if shared_by_turns(ptx) and _overwritten(kernel, "its machine code cannot be read"):
        with mended(Mark.RENEWS, lambda text: awaited(renewed(text))):
            kernel = build(replace(source, text=Mark.RENEWS.on(source.text)))
        if wrong := _overwritten(kernel, None):
            return kernel, wrong
    return kernel, misread(kernel.asm["ptx"])


def _overwritten(kernel: Any, unknown: str | None) -> str | None:
    try:
        return overwritten_operand(listing(kernel.asm["cubin"]))
    except ToolFailed:
        return unknown


def _allowed(source: KernelSource) -> int | None:
    """How many registers ptxas is told that a thread may have, of loops of so few programs that no
    others want them. By itself it leaves room for more: where a turn loads several vectors, each is
    added up before the next is loaded, and the memory is waited for as often. Not of products of
    tiles, whose loads do not pass the registers."""
    lone = source.grid <= _LONE and not source.scalars
    loops = LOOP in source.text and DOT not in source.text
    return most(source.num_warps) if lone and loops else None


def _told(
    source: KernelSource, kernel: Any, wanted: Target, aligned: bool
) -> tuple[Any, int | None]:
    """The kernel by a ptxas that was told how many registers a thread may have, and how many, where
    that is better; else the one that is there."""
    try:
        used = _resources(source, kernel)
    except CompileFailed:
        return kernel, None  # It runs as it is: nobody has to be able to read what it uses.
    if _gave_up(used, source.num_warps):
        limit: RegisterLimit | None = RegisterLimit(most(source.num_warps), used.spill_bytes - 1)
    else:
        limit = _fewer(source, used)
    if limit is None:
        return kernel, None
    try:
        told = _built(source, wanted, aligned, limit.registers)
        spilled = _resources(source, told).spill_bytes
    except CompileFailed:
        return kernel, None
    return (told, limit.registers) if spilled <= limit.may_spill else (kernel, None)


def _gave_up(used: KernelResources, num_warps: int) -> bool:
    """Whether ptxas spilled much though a thread could have had more registers: where all do not
    fit, it may settle for a full SM (32 registers, and 10 KB in local memory)."""
    return used.spill_bytes > _SPILLS and used.registers < 0.9 * most(num_warps)


def _fewer(source: KernelSource, used: KernelResources) -> RegisterLimit | None:
    """With how many registers one program more lies on an SM, of a kernel that reduces rows: with
    products of tiles it has as many stages as shared memory has room for; of others none was timed.
    Not of one that loads before it waits for the kernel before: what it loads until then lies in
    its registers. With 72 of 80 a step of Llama took 739 us on one H200, with 80 692 on another."""
    reduces = any(each in source.text for each in REDUCTIONS)
    if not reduces or SCAN in source.text or DOT in source.text or loads_early(source.text):
        return None
    if used.spill_bytes or source.scalars:
        return None
    of_sm = source.grid / _LONE
    return fewer_registers(used.registers, source.num_warps, used.shared_bytes, of_sm)


def _built(
    source: KernelSource, wanted: Target, aligned: bool, registers: int | None = None
) -> Any:
    """Triton's CompiledKernel. registers: as many as a thread can have, if ptxas is told."""
    parts, gpu = _parsed(source, wanted, aligned)
    options: dict[str, Any] = {"num_warps": source.num_warps, "num_stages": source.num_stages}
    # Functions keep what is below 2**-126; those that need not, flush by themselves.
    options["enable_reflect_ftz"] = False
    if not source.contracts:
        options["enable_fp_fusion"] = False
    if registers is not None:
        options["maxnreg"] = registers
    try:
        with passes_for(source.text):
            try:
                return _whole(parts, gpu, options)
            except OSError as error:
                keep_elsewhere(error)
                return _whole(parts, gpu, options)
    except OSError as error:
        raise CompileFailed(f"kernel {source.name}: {unwritable(error)}", transient=True) from error
    except MemoryError as error:
        raise CompileFailed(f"kernel {source.name}: out of memory", transient=True) from error
    except PTXASError as error:
        wanting = any(sign in str(error) for sign in _WANTING)
        raise CompileFailed(f"kernel {source.name}: {summary_of(error, -1)}", wanting) from error
    except CompilationError as error:
        raise CompileFailed(f"kernel {source.name}: {_refusal(error)}") from error
    except OutOfResources as error:
        raise CompileFailed(f"kernel {source.name}: {summary_of(error, -1)}") from error
    except (RuntimeError, ValueError, IndexError, AssertionError, TypeError) as error:
        # Triton's passes report what they cannot lower as plain errors.
        raise CompileFailed(f"kernel {source.name}: {type(error).__name__}: {error}") from error


def _refusal(error: CompilationError) -> str:
    """What Triton says of a kernel's text; where it refuses a function that the kernel calls, only
    the innermost error says why."""
    inner: BaseException = error
    while isinstance(inner.__cause__, CompilationError):
        inner = inner.__cause__
    told = summary_of(inner, -1)
    return told if inner is error else f"{told}, in `{str(error).splitlines()[-2].strip()}`"


def _whole(parts: Any, gpu: GPUTarget, options: dict[str, Any]) -> Any:
    """Triton's kernel; anew where what its cache has of it was cut short."""
    try:
        kernel = triton.compile(parts, target=gpu, options=options)
        if is_whole(kernel.asm.get("cubin")):
            return kernel
    except (json.JSONDecodeError, UnicodeDecodeError):
        pass
    with ONE_AT_A_TIME, knobs.compilation.scope():
        knobs.compilation.always_compile = True
        return triton.compile(parts, target=gpu, options=options)


def _parsed(source: KernelSource, wanted: Target, aligned: bool) -> tuple[Any, GPUTarget]:
    """What Triton compiles, and for which GPU."""
    function = jit_function(_independent(source) if wanted.capability < _DEPENDENT else source)
    names = function.arg_names
    if len(names) != len(source.buffers) + len(source.scalars):
        raise CompileFailed(f"kernel {source.name}: takes {len(names)} arguments")
    try:
        types = [*map(_argument, source.buffers), *(s.kind for s in source.scalars)]
        signature = dict(zip(names, types, strict=True))
    except KeyError as error:
        raise CompileFailed(f"kernel {source.name}: no Triton type for {error}") from error
    gpu = GPUTarget(wanted.backend, wanted.capability, wanted.warp_size)
    divisible = _divisible(source, aligned)
    return ASTSource(function, signature, constexprs={}, attrs=divisible), gpu


_WANTING = ("error code -9", "No space left on device", "Memory allocation failure")
"""What ptxas is said to end with where memory or disk is short: killed, or by its own words."""


def _awaited(source: KernelSource, ptx: str) -> str:
    try:
        return awaited(ptx)
    except ValueError as error:
        raise CompileFailed(
            f"kernel {source.name}: Triton compiled it incorrectly: {error}"
        ) from error


def _independent(source: KernelSource) -> KernelSource:
    """The kernel for a device that launches each when the last has ended."""
    lines = source.text.splitlines(keepends=True)
    kept = [line for line in lines if not any(f".{c}()" in line for c in (BEGIN_NEXT, AWAIT_LAST))]
    return replace(source, text="".join(kept))


def resources(compiled: Compiled) -> KernelResources:
    """The registers and memory that the machine code uses. Raises CompileFailed."""
    return _resources(compiled.source, compiled.kernel)


def _resources(source: KernelSource, kernel: Any) -> KernelResources:
    try:
        found = used_by(kernel.asm["cubin"], int(kernel.metadata.shared))
    except ToolFailed as error:
        raise CompileFailed(str(error), error.transient) from error
    if found is None:
        raise CompileFailed(f"kernel {source.name}: no resource section in its cubin")
    return found
